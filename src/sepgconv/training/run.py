"""A run from start to result: check, fit or resume, test once with the best weights, report."""

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_info

from sepgconv.provenance import environment

from . import lock, preparation, settings, signals, storage
from .best import best_weights
from .checkpoints import LATEST, Checkpoints
from .confusion import PICTURE, draw_confusion, figures
from .datamodule import Images
from .history import History, draw_curves
from .loaders import has_test
from .module import Classifier
from .origin import check_output, origin
from .report import RESULT, write_result

T = TypeVar("T")

ERRORS = {"test error": "test/error", "balanced": "test/balanced_error"}
SPARE = 64 * 2**20  # bytes, for logs and pictures
COPIES = 4  # last, previous, best, and the one that is being written
RAW = (AttributeError, IndexError, KeyError, RuntimeError, TypeError)  # what loading a crafted checkpoint ends with


def fit(
    trainer: Trainer,
    classifier: Classifier,
    data: LightningDataModule,
    ckpt_path: str | None = None,
    *,
    draw: bool = True,
) -> dict[str, Any]:
    """Fits, tests once with the weights that are best on validation, and writes `result.json` and `curves.png`.

    The directory is this run's alone until it ends. SIGTERM and SIGINT end it with `signals.Stopped`.

    Args:
        trainer: with the callbacks `Checkpoints` and `History`; `default_root_dir` is where the run is kept.
        classifier: what to fit.
        data: what to fit it to: `Images`, `Loaders`, or any DataModule of pairs of images and labels.
        ckpt_path: `last` to go on with the run that is there (or begin it), or the path of a checkpoint.
        draw: whether to draw the curves, which takes longer than a very short run.

    Returns:
        The result, as it is in `result.json`.
    """
    output = Path(trainer.default_root_dir)
    checkpoints = _callback(trainer, Checkpoints)
    weights = sum(p.numel() * p.element_size() for p in classifier.parameters())
    check_output(output, need=COPIES * 4 * weights + SPARE)  # weights, two moments, and the safetensors

    def advice() -> str:
        if checkpoints.saved is None:
            return "nothing was saved yet; begin again with the same command"
        return f"the checkpoint of step {checkpoints.saved} is kept; go on with the same command and --ckpt_path last"

    with signals.stoppable(trainer, advice):
        if not trainer.is_global_zero:
            return _fit(trainer, classifier, data, ckpt_path, draw)
        with lock.held(output) as checkpoints.claim:
            try:
                storage.clear_leftovers(output)
                return _fit(trainer, classifier, data, ckpt_path, draw)
            finally:
                checkpoints.claim = None


def _fit(
    trainer: Trainer, classifier: Classifier, data: LightningDataModule, ckpt_path: str | None, draw: bool
) -> dict[str, Any]:
    output = Path(trainer.default_root_dir)
    checkpoints, history = _callback(trainer, Checkpoints), _callback(trainer, History)
    if not isinstance(data, Images):  # whose class names and statistics might not fit
        preparation.of_data(data, classifier.network)
    if getattr(data, "train_on_valid", False) and checkpoints.monitor != LATEST:
        raise ValueError(
            f"data.train_on_valid leaves no images to choose weights by, but checkpoint.monitor is "
            f"{checkpoints.monitor!r}: set it to {LATEST!r}"
        )
    ours = settings.of_run(trainer, classifier, data)
    resume = origin(output, ckpt_path, ours, checkpoints, first=trainer.is_global_zero)
    if ckpt_path is not None and (output / RESULT).exists():
        rank_zero_info(f"this run is finished; its result is in {output / RESULT}")
        return json.loads((output / RESULT).read_text())
    parameters = sum(p.numel() for p in classifier.net.parameters())
    name = getattr(data, "data_name", type(data).__name__)
    rank_zero_info(f"{classifier.network.name} with {parameters:,} parameters on {name!r}; the run is kept in {output}")
    _train(trainer, classifier, data, resume)
    checkpoints.take_inheritance()  # if there was nothing left to train
    signals.check(trainer)
    seconds, best = history.seconds, checkpoints.best
    if best:
        chosen, best = best_weights(output / "checkpoints", best, ours)
        classifier.load_checkpoint(chosen)
    tested = trainer.test(classifier, datamodule=data, verbose=False)[0] if has_test(data) else {}
    signals.check(trainer)
    names = preparation.of_data(data, classifier.network)["class_names"]
    result = {
        "metrics": {**tested, "best": best, "final": history.rows[-1] if history.rows else {}},
        "test": figures(classifier.tested, names) if tested else {},
        "seed": classifier.seed,
        "parameters": parameters,
        "settings": ours,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": {"fit": round(seconds, 1), "test": round(history.seconds - seconds, 1)},
        **environment(),
    }
    if trainer.is_global_zero:
        if draw:
            draw_curves(history.rows, output / "curves.png")
            if tested:
                draw_confusion(classifier.tested, names, output / PICTURE)
        if checkpoints.claim is not None:
            checkpoints.claim.check()
        errors = (f"{name} {tested[key]:.2f} %" for name, key in ERRORS.items()) if tested else ["nothing to test on"]
        rank_zero_info(f"{', '.join(errors)}; wrote {write_result(result, output)}")
    return result


def _train(trainer: Trainer, classifier: Classifier, data: LightningDataModule, resume: Path | None) -> None:
    checkpoints = _callback(trainer, Checkpoints)
    try:
        trainer.fit(classifier, datamodule=data, ckpt_path=resume, weights_only=True)
    except RAW as error:
        if resume is None or checkpoints.began or isinstance(error, torch.OutOfMemoryError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{resume} is not a checkpoint that a run can go on from: {reason}") from error


def _callback(trainer: Trainer, kind: type[T]) -> T:
    found = [callback for callback in getattr(trainer, "callbacks", []) if isinstance(callback, kind)]
    if not found:
        raise ValueError(f"the trainer must have the callback {kind.__name__}")
    return found[0]
