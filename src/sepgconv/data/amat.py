"""The original MNIST-rot of Larochelle et al. (2007), from its two text files.

Each row is 784 pixels in [0, 1] and the label. The pixels are in row-major order: of the sets of that
paper only those with a background were saved sideways (James Bergstra, one of its authors, transposes
those and not this one in `skdata`; and all published results on MNIST-rot read it so).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import torch

from .dataset import Split
from .download import Remote
from .files import Source, damaged, obtain

TRAIN_VALID = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST = "mnist_all_rotation_normalized_float_test.amat"
SIDE = 28

SOURCE = Source(
    name="mnist-rot-original",
    folders=("mnist-rot-original", "mnist_rotation_new", "."),
    remotes=(
        Remote(
            name="mnist_rotation_new.zip",
            checksum="md5:0f9a947ff3d30e95cd685462cbf3b847",
            urls=(
                "http://www.iro.umontreal.ca/~lisa/icml2007data/mnist_rotation_new.zip",
                "https://zenodo.org/record/3670627/files/mnist_rotation_new.zip?download=1",
            ),
            holds=(TRAIN_VALID, TEST),
        ),
    ),
)


def read_amat(path: Path, rows: int) -> Split:
    """The images of an amat file, which must have so many rows.

    Pixels are stored as `round(255 * value)`, clipped: interpolation may leave them just outside [0, 1].
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of an empty file, which is an error below
            table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise damaged(path, f"{rows} rows of {SIDE * SIDE + 1} numbers", str(error)) from error
    if table.shape != (rows, SIDE * SIDE + 1):
        raise damaged(path, f"{rows} rows of {SIDE * SIDE + 1} numbers", f"{table.shape[0]} of {table.shape[1]}")
    pixels, labels = table[:, :-1], table[:, -1]
    if not (pixels.min() >= -0.1 and pixels.max() <= 1.1):
        raise damaged(path, "pixels in [0, 1]", f"{pixels.min():g} to {pixels.max():g}")
    if not np.isin(labels, np.arange(10)).all():
        raise damaged(path, "labels 0 to 9 in the last column", f"{labels.min():g} to {labels.max():g}")
    images = (pixels * 255).round().clip(0, 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def read(
    root: str | os.PathLike[str] | None,
    seed: int,
    download: bool,
    *,
    sizes: tuple[int, int, int] = (10_000, 2_000, 50_000),
) -> tuple[Split, Split, Split]:
    """10,000 / 2,000 / 50,000; as published, the last 2,000 rows of the first file are for validation."""
    paths = obtain(SOURCE, root, download)
    train, valid, test = sizes
    first = read_amat(paths[TRAIN_VALID], train + valid)
    order = torch.arange(train + valid)
    return first.take(order[:train]), first.take(order[train:]), read_amat(paths[TEST], test)
