"""Which classes are taken for which: counted, put in figures per class, and drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sepgconv.data.places import atomic_write

PICTURE = "confusion.png"
LARGEST_WITH_NUMBERS = 20  # classes; above, a picture has colours only


class Confusion(Metric):
    """Counts how often each class is taken for each, summed over processes; its value is the balanced error.

    Shapes:
        counts `(classes, classes)`: true class, predicted class.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.add_state("counts", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch."""
        cells = labels * self.classes + logits.argmax(1)
        self.counts += cells.bincount(minlength=self.classes**2).reshape_as(self.counts)

    def compute(self) -> Tensor:
        """The mean over classes of the percentage that is wrong; classes that were not seen do not count."""
        seen = self.counts.sum(1) > 0
        right = self.counts.diagonal()[seen].double() / self.counts[seen].sum(1)
        return 100 * (1 - right.mean())


def figures(counts: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """What `result.json` says: the matrix, and for each class how many images, recall, precision and F1 in per cent."""
    found, said, right = counts.sum(1).tolist(), counts.sum(0).tolist(), counts.diagonal().tolist()
    classes = {
        name: {
            "images": found[i],
            "recall": _percent(right[i], found[i]),
            "precision": _percent(right[i], said[i]),
            "f1": _percent(2 * right[i], found[i] + said[i]),
        }
        for i, name in enumerate(names)
    }
    recalls = [value["recall"] for value in classes.values() if value["recall"] is not None]
    return {
        "accuracy": _percent(sum(right), sum(found)),
        "balanced_accuracy": round(sum(recalls) / len(recalls), 3) if recalls else None,
        "classes": classes,
        "confusion": {"rows": "true class", "columns": "predicted class", "counts": counts.tolist()},
    }


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 3) if whole else None


def draw_confusion(counts: Tensor, names: Sequence[str], path: Path) -> None:
    """The matrix as a picture: rows are true classes and coloured by their share, cells have the counts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = len(names)
    side = min(2.5 + 0.55 * n, 14)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = 100 * counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, label="% of the true class", shrink=0.8)
    if n <= LARGEST_WITH_NUMBERS:
        for row in range(n):
            for column in range(n):
                colour = "white" if shares[row, column] > 55 else "black"
                axes.text(column, row, f"{int(counts[row, column]):,}", ha="center", va="center", color=colour)
        axes.set_xticks(range(n), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(n), names)
    axes.set(xlabel="predicted class", ylabel="true class")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
