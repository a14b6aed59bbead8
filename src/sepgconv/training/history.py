"""The course of a run: one row per epoch, kept in the checkpoint, written as a table and drawn as curves."""

import csv
import io
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from sepgconv.data.places import atomic_write

Row = dict[str, float | int]


class History(Callback):
    """Collects the metrics of every epoch.

    The rows travel with the checkpoint, so a resumed run has those of the epochs before, and `metrics.csv` is written
    anew after every epoch: no row is lost and none is there twice.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._validated: Row = {}
        self._before, self._start = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Time spent in training, over all parts of a run that was resumed."""
        return self._before + time.monotonic() - self._start

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._start = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers the metrics for the row of this epoch."""
        if not trainer.sanity_checking:
            self._validated = _metrics(trainer, "val/")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adds a row."""
        lr = float(trainer.optimizers[0].param_groups[0]["lr"])
        start: Row = {"epoch": trainer.current_epoch, "step": trainer.global_step, "lr": lr}
        self.rows.append({**start, **_metrics(trainer, "train/"), **self._validated})
        self._validated = {}
        if trainer.is_global_zero:
            write_csv(self.rows, Path(trainer.default_root_dir) / "metrics.csv")

    def state_dict(self) -> dict[str, Any]:
        """The rows and the time so far."""
        rows = [dict(row) for row in self.rows]
        return {"rows": rows, "validated": dict(self._validated), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on after the rows of a checkpoint."""
        self.rows = [dict(row) for row in state_dict["rows"]]
        self._validated = dict(state_dict["validated"])
        self._before = state_dict["seconds"]


def _metrics(trainer: Trainer, prefix: str) -> Row:
    chosen = {key: value for key, value in trainer.callback_metrics.items() if key.startswith(prefix)}
    return {key: value.item() for key, value in chosen.items() if not key.endswith("_step")}


def write_csv(rows: list[Row], path: Path) -> None:
    """The rows as a table; columns are in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns)
    table.writeheader()
    table.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def draw_curves(rows: list[Row], path: Path) -> None:
    """Loss, error and learning rate by epoch, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = {"cross-entropy": ("train/loss", "val/loss"), "error (%)": ("train/error", "val/error"), "rate": ("lr",)}
    for axes, (label, keys) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for key in keys:
            points = [(row["epoch"] + 1, row[key]) for row in rows if key in row]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=key)
        axes.set(xlabel="epoch", ylabel=label)
        if all(value > 0 for row in rows for key in keys if (value := row.get(key)) is not None) and label != "rate":
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
