"""What runs measure, by name: each is a function from a run to rows of metrics."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.analysis.redundancy import (
    LayerValues,
    explained_variance,
    subgroup_variance,
    subgroup_variance_relative,
)
from sepgconv.data import Split, rotate
from sepgconv.models._average import mean_over_shifts
from sepgconv.training import Classifier, Images
from sepgconv.training.datamodule import EVAL_FACTOR

from .data import images
from .experiment import Plain, Run
from .runs import batches, classifier, metrics, parameters, train
from .stir import accuracy_by_size

Measure = Callable[[Run, Path, str | None], Plain]
BINS = 40
SHIFTS = 2  # of a random grid: two give most of what a mean over shifts can (docs/equivariance.md)


def error(run: Run, folder: Path, root: str | None) -> Plain:
    """Test error after training, also of the mean over shifts of a random grid; the time of an epoch if asked for."""
    model, data, result = train(run, folder, root)
    row = metrics(model, result)
    if model.grid.build().random:
        row["shifts_error"] = error_over_shifts(model.to(device()), data, run)
    if run.config["timing"] is not None:
        row |= epoch_time(classifier(run), data, run.config["timing"])
    return {"rows": [{"axes": {}, "metrics": row}], "arrays": {"course": result["course"]}}


def count(run: Run, folder: Path, root: str | None) -> Plain:
    """The number of parameters; nothing is trained."""
    return {"rows": [{"axes": {}, "metrics": {"parameters": parameters(classifier(run))}}]}


def timing(run: Run, folder: Path, root: str | None) -> Plain:
    """The time of an epoch; nothing is tested."""
    model, data = classifier(run), images(run.config, run.seed, root)
    row = {**epoch_time(model, data, run.config["timing"]), "parameters": parameters(model)}
    return {"rows": [{"axes": {}, "metrics": row}]}


def invariance(run: Run, folder: Path, root: str | None) -> Plain:
    """Test error with the test set turned by each of so many angles."""
    model, data, result = train(run, folder, root)
    wanted, test = run.config["data"]["test"], data.data.test
    assert isinstance(test, Split)  # experiments have data sets by name
    some = test if wanted is None else test.take(torch.arange(min(wanted, len(test))))
    model.to(device())
    angles = [360 * step / run.config["angles"] for step in range(run.config["angles"])]
    errors = [turned_error(model, data, some, angle) for angle in angles]
    summary = {"mean_error": sum(errors) / len(errors), "worst_error": max(errors)}
    return {
        "rows": [{"axes": {}, "metrics": metrics(model, result) | summary}],
        "arrays": {"angles": angles, "errors": errors, "course": result["course"]},
    }


def redundancy(run: Run, folder: Path, root: str | None) -> Plain:
    """Per layer, the variance along h that one spatial kernel explains, before and after training."""
    return _before_and_after(run, folder, root, (explained_variance,), ("",), lambda v: v, (0.0, 1.0))


def kernel_variance(run: Run, folder: Path, root: str | None) -> Plain:
    """Per layer, the variance of k_H along h, before and after training; as it is, and relative to its square."""
    both = (subgroup_variance, subgroup_variance_relative)
    return _before_and_after(run, folder, root, both, ("", "relative_"), lambda v: v.clamp_min(1e-12).log10(), None)


MEASURES: dict[str, Measure] = {
    "error": error,
    "parameters": count,
    "time": timing,
    "invariance": invariance,
    "redundancy": redundancy,
    "kernel_variance": kernel_variance,
    "sizes": accuracy_by_size,
}


@torch.no_grad()
def error_over_shifts(model: Classifier, data: Images, run: Run) -> float:
    """Percentage of the run's test images that the mean of answers at several shifts of the grid gets wrong."""
    tested, where = data.test_dataloader(), device()
    limit = batches(run.config, "test")
    wrong = total = 0
    for pictures, labels in itertools.islice(tested, limit if isinstance(limit, int) else None):
        answers = mean_over_shifts(model, pictures.to(where), SHIFTS)
        wrong, total = wrong + int((answers.argmax(1).cpu() != labels).sum()), total + len(labels)
    return 100 * wrong / total


@torch.no_grad()
def turned_error(model: Classifier, data: Images, split: Split, degrees: float) -> float:
    """Percentage of a split's images, turned by an angle, that are classified wrongly."""
    wrong, device = 0, next(model.parameters()).device
    for pictures, labels in zip(split.images.split(128), split.labels.split(128), strict=True):
        turned = rotate(pictures.float(), degrees).clamp(0, 255)
        wrong += int((model(data.normaliser(turned).to(device)).argmax(1).cpu() != labels).sum())
    return 100 * wrong / len(split)


def epoch_time(model: Classifier, data: Images, steps: int) -> dict[str, float]:
    """Seconds of an epoch, which is one pass over the whole training and test set.

    Args:
        model: a network that has not been fitted.
        data: the images.
        steps: how many training steps are timed, after one that is not, and scaled to an epoch; 0 is all of it.
    """
    where = device()
    model.to(where).train()
    loader = data.train_dataloader()
    chosen = len(loader) if steps == 0 else min(steps, len(loader))
    optimiser, _ = model.optimiser.build(model.net, max(len(loader), 2))

    def step(batch: tuple[Tensor, Tensor]) -> None:
        loss = F.cross_entropy(model(batch[0].to(where)), batch[1].to(where))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    rest = iter(loader)
    first = next(rest)
    step(first)
    each = _timed(lambda: [step(next(rest, first)) for _ in range(chosen)], where) / chosen
    model.eval()
    tested = data.test_dataloader()
    evaluated = len(tested) if steps == 0 else 1
    with torch.no_grad():
        pictures = next(iter(tested))[0].to(where)
        pictures = pictures if steps == 0 else pictures[: data.batch_size]
        model(pictures)  # kernels are sampled once
        seconds = _timed(
            lambda: [model(batch.to(where)) for batch, _ in tested] if steps == 0 else model(pictures), where
        )
    test = seconds if steps == 0 else seconds * len(data.data.test) / len(pictures)
    return {
        "seconds_per_step": each,
        "seconds_per_test_batch": seconds / evaluated,
        "seconds_per_epoch": each * (len(data.data.train) // data.batch_size) + test,
        "batch_size": data.batch_size,
        "test_batch_size": len(pictures) if steps else EVAL_FACTOR * data.batch_size,
    }


def device() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _timed(work: Callable[[], object], where: torch.device) -> float:
    if where.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if where.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _before_and_after(
    run: Run,
    folder: Path,
    root: str | None,
    looks: tuple[Callable[..., list[LayerValues]], ...],
    prefixes: tuple[str, ...],
    shown: Callable[[Tensor], Tensor],
    limits: tuple[float, float] | None,
) -> Plain:
    """Looks at all layers of a network as it is drawn and as it is trained; histograms are of the first look."""
    before = [look(classifier(run).net) for look in looks]
    model, _, result = train(run, folder, root)
    after = [look(model.net) for look in looks]
    rows, layers = [], []
    for number in range(len(before[0])):
        row: dict[str, float] = {}
        for prefix, old, new in zip(prefixes, before, after, strict=True):
            row |= {
                f"{prefix}before": float(old[number].values.mean()),
                f"{prefix}after": float(new[number].values.mean()),
            }
        rows.append({"axes": {"layer": number + 1}, "metrics": row | metrics(model, result)})
        pair = [shown(values[number].values.double()).flatten() for values in (before[0], after[0])]
        both = torch.cat(pair)
        low, high = limits or (float(both.min()), float(both.max()) + 1e-9)
        counts = [torch.histc(values, BINS, low, high) / values.numel() for values in pair]
        layers.append(
            {
                "name": before[0][number].name,
                "kernels": before[0][number].kernels,
                "edges": [low, high],
                "before": [round(v, 5) for v in counts[0].tolist()],
                "after": [round(v, 5) for v in counts[1].tolist()],
            }
        )
    return {"rows": rows, "arrays": {"layers": layers}}
