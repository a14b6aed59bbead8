"""A run, from its settings to what was measured: networks are fitted with `sepgconv.training.fit`."""

import logging
import math
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from sepgconv.data.places import atomic_write
from sepgconv.kernels import KernelConfig
from sepgconv.provenance import environment
from sepgconv.training import (
    Checkpoints,
    Classifier,
    GridConfig,
    History,
    Images,
    NetworkConfig,
    OptimiserConfig,
    fit,
    storage,
)
from sepgconv.training.datamodule import EVAL_FACTOR
from sepgconv.training.seeding import derive

from .data import images, shape
from .experiment import Plain, Run

FORMAT = 1  # of the results; raise it when old ones can no longer be read


@dataclass(frozen=True)
class Job:
    """Executes runs; plain values only, so that it travels to any process or machine.

    Args:
        scratch: where unfinished runs keep their checkpoints.
        root: where data is; by default `$SEPGCONV_DATA`, else the user's cache.
        threads: for one run.
    """

    scratch: str
    root: str | None = None
    threads: int = 1

    def __call__(self, run: Run) -> Plain:
        """The run's result."""
        torch.set_num_threads(self.threads)
        return execute(run, Path(self.scratch) / run.experiment / run.name, self.root)


def execute(run: Run, folder: Path, root: str | None = None) -> Plain:
    """Does what a run's `measure` says and describes the outcome; resumes from the checkpoints in its folder.

    Returns:
        `rows` with metrics by name (and axes of their own, such as the layer), `arrays` for figures, and all it takes
        to judge and repeat the run.
    """
    from .measures import MEASURES

    if run.config["measure"] not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}; got {run.config['measure']!r}")
    start, spent = time.monotonic(), Spent(folder)
    with quiet():
        measured = MEASURES[run.config["measure"]](run, folder, root)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "format": FORMAT,
        "experiment": run.experiment,
        "budget": run.budget,
        "axes": run.axes,
        "config": run.config,
        "seed": run.seed,
        "rows": measured["rows"],
        "arrays": measured.get("arrays", {}),
        "seconds": round(time.monotonic() - start, 2),
        "core_seconds": round(spent.seconds, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(),
    }


class Spent(Callback):
    """Seconds of cores that a run has taken, before it was stopped, too; pauses do not count.

    Args:
        folder: of the unfinished run, where they are kept after every epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "core_seconds.txt"
        self.before = float(self.path.read_text()) if self.path.exists() else 0.0
        self.start = time.process_time()

    @property
    def seconds(self) -> float:
        """Of all threads, until now."""
        return self.before + time.process_time() - self.start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps what was taken so far."""
        with atomic_write(self.path) as file:
            file.write(f"{self.seconds:.2f}".encode())


def classifier(run: Run) -> Classifier:
    """The run's network, drawn from its seed."""
    config = run.config
    channels, size, classes = shape(config["data"]["name"])
    settings = {**config["network"], "kernel": KernelConfig(**config["network"]["kernel"])}
    settings["width"] *= config["shrink"]
    torch.manual_seed(derive(run.seed))
    return Classifier(
        NetworkConfig(**settings, in_channels=channels, num_classes=classes, image_size=size),
        GridConfig(**config["grid"]),
        OptimiserConfig(**config["optimiser"]),
        seed=run.seed,
    )


def train(run: Run, folder: Path, root: str | None) -> tuple[Classifier, Images, Plain]:
    """Fits the run's network, tests it once, and loads the weights that were best on validation."""
    config = run.config
    model, data = classifier(run), images(config, run.seed, root)
    history = History()
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="auto",
        devices=1,
        max_epochs=config["epochs"],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[history, Spent(folder), Checkpoints()],
        limit_val_batches=batches(config, "valid"),
        limit_test_batches=batches(config, "test"),
    )
    result = fit(trainer, model, data, "last", draw=False)
    result["course"] = {name: [round(row[name], 3) for row in history.rows] for name in ("train/error", "val/error")}
    best = storage.read(folder / "checkpoints" / storage.BEST)  # also for a run that was killed after its test
    model.load_state_dict(best["state_dict"])
    return model.cpu().eval(), data, result


def batches(config: Plain, part: str) -> int | float:
    """How many batches of a split are evaluated: those that hold the wanted number of images, or all."""
    wanted = config["data"][part]
    return 1.0 if wanted is None else math.ceil(wanted / (EVAL_FACTOR * config["data"]["batch_size"]))


def metrics(model: Classifier, result: Plain) -> dict[str, float]:
    """What every fitted network is measured by."""
    error = result["metrics"]["test/error"]
    return {
        "test_error": error,
        "test_accuracy": 100 - error,
        "val_error": result["metrics"]["best"]["score"],
        "train_error": result["metrics"]["final"]["train/error"],
        "parameters": parameters(model),
        "seconds_fit": result["seconds"]["fit"],
    }


def parameters(model: Classifier) -> int:
    """Trainable parameters of the bare network."""
    return sum(p.numel() for p in model.net.parameters())


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Lightning's remarks out of a sweep's output; its errors come through."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning_utilities")]
    levels: list[Any] = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
