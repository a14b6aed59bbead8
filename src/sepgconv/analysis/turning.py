"""The demo's task as an experiment: what each part of `antialias=True` gives on turned digits.

Networks are trained as `sepgconv demo` does, on the 4,500 embedded upright digits, and tested on all 10,000 test digits
of MNIST. `python -m sepgconv.analysis.turning --help`. A result is a JSON file per network and seed; what is there is
not done again, so a run that was stopped goes on where it was.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from sepgconv.analysis.equivariance import logit_changes
from sepgconv.data import Split
from sepgconv.demo import KERNEL, error, fit, no_advice
from sepgconv.kernels import KernelConfig
from sepgconv.models._resnet import antialiased
from sepgconv.nn import BatchNorm, GroupPool, SpatialPool
from sepgconv.provenance import environment
from sepgconv.training import Classifier, GridConfig, Images, NetworkConfig, OptimiserConfig
from sepgconv.training.seeding import generator

ANGLES = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0)
TURNS = (10.0, 22.5, 45.0, 90.0)
FIRST, SECOND, PROJECTION = slice(5, 7), slice(9, 11), 14
"""Where the pools, each with its ReLU, and the projection are in `models.resnet`."""


@dataclass(frozen=True)
class Parts:
    """Which parts of the better network a network has; none of them is the paper's.

    Args:
        pool: whether pools are low-pass filters instead of maxima.
        last: whether the last kernel is 5×5 instead of 3×3.
        space: whether space is projected by its mean instead of its maximum.
        peak: whether the maximum over h is taken between the rotations.
        cutoff: whether kernels are band-limited.
    """

    pool: bool = False
    last: bool = False
    space: bool = False
    peak: bool = False
    cutoff: bool = False


NETWORKS = {
    "paper": Parts(),
    "pool": Parts(pool=True),
    "last": Parts(last=True),
    "space": Parts(space=True),
    "peak": Parts(peak=True),
    "cutoff": Parts(cutoff=True),
    "antialias": Parts(pool=True, last=True, space=True),
    "better": Parts(pool=True, last=True, space=True, cutoff=True),
    "better-peak": Parts(pool=True, last=True, space=True, peak=True, cutoff=True),
}
WEIGHTS_OF = {"peak": "paper", "better-peak": "better"}
"""Networks that are not trained themselves: a projection without weights is put in the place of another one."""
TITLES = {
    "paper": "the paper's",
    "pool": "anti-aliased pools alone",
    "last": "last kernel 5×5 alone",
    "space": "mean over space alone",
    "peak": "peak between rotations alone (trained without)",
    "cutoff": "`cutoff=0.4` alone",
    "antialias": "`antialias=True`: pools, last kernel, mean",
    "better": "and `cutoff=0.4`",
    "better-peak": "and the peak between rotations (trained without)",
}


def build(parts: Parts, *, width: float, seed: int) -> Classifier:
    """A network with these parts, as the demo makes its own."""
    torch.manual_seed(seed)
    kernel = KERNEL if parts.cutoff else KernelConfig(layers=KERNEL.layers)
    network = NetworkConfig(kernel=kernel, width=width, antialias=parts.last)
    classifier = Classifier(network, GridConfig("se2", rotations=8), OptimiserConfig(), seed=seed)
    net = classifier.net
    assert isinstance(net, nn.Sequential)
    if parts.pool:
        pools, _ = antialiased(network.image_size, 2)
        pairs = [[nn.ReLU(), pool] for pool in pools]
    else:
        pairs = [[SpatialPool("max", 2), nn.ReLU()] for _ in range(2)]
    for place, pair in zip((FIRST, SECOND), pairs, strict=True):
        for index, layer in zip(range(place.start, place.stop), pair, strict=True):
            net[index] = layer
    grid: Any = net[0].grid
    space = "mean" if parts.space else "max"
    net[PROJECTION] = GroupPool("peak", space=space, grid=grid) if parts.peak else GroupPool("max", space=space)
    return classifier


class Run:
    """A network and a seed, with what is known of them in a file.

    Args:
        name: of `NETWORKS`.
        seed: of everything random.
        results: the folder of the results.
        weights: the folder of trained weights, which need no second training.
        epochs: passes over the training digits.
        width: multiplies all channel counts.
    """

    def __init__(
        self, name: str, seed: int, results: Path, *, weights: Path | None = None, epochs: int = 5, width: float = 0.5
    ) -> None:
        if name not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(NETWORKS)}; got {name!r}")
        self.name, self.seed, self.epochs, self.width = name, seed, epochs, width
        self.path = results / f"{name}-{seed}.json"
        self.weights = None if weights is None else weights / f"{WEIGHTS_OF.get(name, name)}-{seed}.pt"
        self.found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        same = {"network": name, "seed": seed, "epochs": epochs, "width": width}
        known = {key: self.found[key] for key in same if key in self.found}
        if self.found and known != same:
            raise ValueError(f"{self.path} holds another run: {known}, not {same}")
        self.found |= same

    def save(self) -> None:
        """Writes what is known."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(self.path)

    def trained(self, data: Images) -> Classifier:
        """The network, with weights of before where they are kept."""
        classifier = build(NETWORKS[self.name], width=self.width, seed=self.seed)
        if self.weights is not None and self.weights.exists():
            classifier.net.load_state_dict(torch.load(self.weights, weights_only=True))
            return classifier.eval()
        if self.name in WEIGHTS_OF:
            raise ValueError(
                f"{self.name} takes the weights of {WEIGHTS_OF[self.name]}: train that first and keep them"
            )
        images = data.normaliser(data.data.test.pixels(slice(0, 200)))
        self.found["untrained logits"] = dict(zip(map(str, TURNS), untrained(classifier.net, images), strict=True))
        start = time.process_time()
        with no_advice():
            fit(classifier, data, epochs=self.epochs, quiet=True)
        self.found |= {"training CPU seconds": time.process_time() - start, **environment()}
        self.found["trained logits"] = dict(
            zip(map(str, TURNS), logit_changes(classifier.net, images, TURNS), strict=True)
        )
        if self.weights is not None:
            self.weights.parent.mkdir(parents=True, exist_ok=True)
            torch.save(classifier.net.state_dict(), self.weights)
        return classifier

    def test(self, data: Images, digits: Split, angles: Iterable[float | None]) -> None:
        """Finds the error in per cent at these angles (None: another random one for each digit) that are not known."""
        errors: dict[str, float] = self.found.setdefault("errors", {})
        missing = [angle for angle in angles if label(angle) not in errors]
        if not missing:
            return
        classifier = self.trained(data)
        self.save()
        for angle in missing:
            random = 360 * torch.rand(len(digits), generator=generator(0, 360), dtype=torch.float64)
            errors[label(angle)] = error(classifier, data, digits, random if angle is None else angle)
            self.save()


def label(angle: float | None) -> str:
    """An angle's name in the results."""
    return "random" if angle is None else f"{angle:g}"


def untrained(net: nn.Module, images: Tensor) -> list[float]:
    """Changes of the logits by `TURNS` of a network as it is drawn, with the norms' statistics of these images."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, BatchNorm | nn.BatchNorm1d):
            module.momentum = 1.0
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad(), torch.random.fork_rng():
        net.train()(images)
    return logit_changes(net, images, TURNS)


def as_markdown(results: Path, angles: Sequence[float | None]) -> str:
    """A table of all results: mean error in per cent and, of several seeds, the deviation."""
    labels = [label(angle) for angle in angles]
    head = [name if name == "random" else f"{name}°" for name in labels]
    lines = [f"| network | seeds | {' | '.join(head)} |", "|---" * (len(labels) + 2) + "|"]
    for name, title in TITLES.items():
        runs = [json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-[0-9]*.json"))]
        rows = [run["errors"] for run in runs if set(labels) <= set(run.get("errors", ()))]
        if rows:
            cells = (_cell([row[key] for row in rows]) for key in labels)
            lines.append(f"| {title} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def logits_as_markdown(results: Path) -> str:
    """How much turns change the logits, before and after training: the mean over seeds."""
    lines = [f"| network | | {' | '.join(f'{turn:g}°' for turn in TURNS)} |", "|---" * (len(TURNS) + 2) + "|"]
    for state in ("untrained", "trained"):
        for name, title in TITLES.items():
            runs = [json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-[0-9]*.json"))]
            if rows := [run[f"{state} logits"] for run in runs if f"{state} logits" in run]:
                cells = (f"{mean(row[str(turn)] for row in rows):.2f}" for turn in TURNS)
                lines.append(f"| {title} | {state} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Path, path: Path) -> None:
    """Error against angle, before and after: the mean over seeds, and every seed as a dot."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    degrees = [quarter + angle for quarter in (0, 90, 180, 270) for angle in ANGLES] + [360]
    for name, title, colour in (("paper", "the paper's network", "#c0392b"), ("better", "anti-aliased", "#1b6ca8")):
        runs = [json.loads(path.read_text())["errors"] for path in sorted(results.glob(f"{name}-[0-9]*.json"))]
        rows = [[run[label(angle % 90)] for angle in degrees] for run in runs if set(map(label, ANGLES)) <= set(run)]
        if not rows:
            raise ValueError(f"no result of {name} at {', '.join(map(label, ANGLES))} degrees in {results}")
        means = [mean(values) for values in zip(*rows, strict=True)]
        for row in rows:
            axes.plot(degrees, row, ".", color=colour, ms=4, alpha=0.5)
        axes.plot(degrees, means, "-", color=colour)
        axes.annotate(
            title, (225, means[degrees.index(225)]), (0, 6), textcoords="offset points", ha="center", color=colour
        )
    axes.set_xlim(0, 360)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])
    axes.set_xlabel("the test digits are turned by")
    axes.set_ylabel("error (%)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("SE(2) with 8 rotations, trained on upright digits, tested on turned ones")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _cell(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _angle(text: str) -> float | None:
    return None if text == "random" else float(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m sepgconv.analysis.turning", description=__doc__)
    parser.add_argument("--networks", nargs="*", default=["paper", "better"], help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--angles", nargs="*", type=_angle, default=[*ANGLES, None], help="degrees, or random")
    parser.add_argument("--results", type=Path, default=Path("results/turning"), help="(%(default)s)")
    parser.add_argument("--weights", type=Path, help="where trained weights are kept")
    parser.add_argument("--root", help="where MNIST's files are")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--width", type=float, default=0.5, help="(%(default)s)")
    parser.add_argument("--picture", type=Path, help="draw error against angle, before and after, into this file")
    parser.add_argument("--limit", type=int, help="test on so many digits only")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        for name in options.networks:
            kept = {"weights": options.weights, "epochs": options.epochs, "width": options.width}
            run = Run(name, seed, options.results, **kept)
            data = Images("digits", batch_size=64, seed=seed)
            digits = Images("mnist", root=options.root).data.test
            assert isinstance(digits, Split)
            if options.limit:
                digits = Split(digits.images[: options.limit], digits.labels[: options.limit])
            run.test(data, digits, options.angles)
    print(as_markdown(options.results, options.angles), logits_as_markdown(options.results), sep="\n\n")
    if options.picture:
        draw(options.results, options.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
