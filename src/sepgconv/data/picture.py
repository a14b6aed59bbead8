"""A picture of a data set: a row of samples for each class."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from .dataset import DataSet

GAP = 2  # pixels between samples
STRIP = 12  # pixels that a signal is high
MAX_ROWS = 20


def sample_sheet(data: DataSet, per_class: int = 8) -> Tensor:
    """The first training samples of each class (of at most 20), a class per row, on a mid-grey ground.

    Shapes:
        returns uint8 `(y, x, c)`.
    """
    flat = _flat(data.train.images[:1])
    c, height, width = flat.shape[1:]
    rows = min(data.classes, MAX_ROWS)
    sheet = torch.full((c, rows * (height + GAP) - GAP, per_class * (width + GAP) - GAP), 128, dtype=torch.uint8)
    for row in range(rows):
        images = data.train.images[data.train.labels == row][:per_class]
        for column, image in enumerate(_flat(images)):
            y, x = row * (height + GAP), column * (width + GAP)
            sheet[:, y : y + height, x : x + width] = image
    return sheet.permute(1, 2, 0)


def _flat(images: Tensor) -> Tensor:
    """As pictures: the brightest voxel along z, and a signal as a strip."""
    if images.ndim == 5:
        return images.amax(2)
    return images.unsqueeze(2).repeat(1, 1, STRIP, 1) if images.ndim == 3 else images


def save_samples(data: DataSet, class_names: tuple[str, ...], path: Path) -> None:
    """Write the sample sheet with the names of the classes beside it."""
    sheet = sample_sheet(data)
    rows = min(data.classes, MAX_ROWS)
    height = len(_flat(data.train.images[:1])[0, 0])
    step = height + GAP
    figure = Figure(figsize=(6.5, 1.0 + 5.5 * sheet.shape[0] / sheet.shape[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(sheet.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_yticks([row * step + height / 2 for row in range(rows)], class_names[:rows])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    sizes = " / ".join(f"{len(split):,}" for split in data.splits.values())
    shown = "" if rows == data.classes else f", the first {rows} of {data.classes} classes"
    axes.set_title(f"{data.name}: {sizes} images (train / valid / test){shown}", fontsize="medium")
    figure.savefig(path, dpi=150, bbox_inches="tight")
