"""STIR: digits of 17 to 64 pixels at a random place in 64×64, made from MNIST by the published recipe.

Scaled and Translated Image Recognition (Altstidl et al. 2022, "Just a Matter of Scale?"). Of every class 50 digits are
drawn for each split, those of train and valid out of MNIST's training set and those of test out of its test set. Each
is shown at all 48 sizes: scaled by cubic splines, put somewhere, blurred by a Gaussian of 7/8·size/28 pixels, sharpened
by 2/π·atan(0.02·(v − 128)) and stretched to 0…255. Seed 0 draws the very digits and places of the published set.

Images of a digit follow one another, in the order of sizes that `sizes_of` knows. `stir-mnist-half` holds the same at
32×32, each pixel the mean of four; sizes keep their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .dataset import DataSet, Split
from .mnist import read_mnist
from .places import data_root
from .variants import kept

NAME, HALF = "stir-mnist", "stir-mnist-half"
SIZES = range(17, 65)
CANVAS = 64
CLASSES = 10
PER_CLASS = 50
COUNT = CLASSES * PER_CLASS * len(SIZES)
PARTS = ("train", "valid", "test")
SCENARIOS = ((17, 32), (33, 48), (49, 64))
"""First and last size of the published training sets; the other sizes are unseen."""
PUBLISHED_SEED = 42
STRIDE = 17
"""Sizes of a digit follow one another in steps of so many, so that neighbours look different."""

Array = np.ndarray[Any, np.dtype[np.float64]]
ORDER = tuple(SIZES[STRIDE * step % len(SIZES)] for step in range(len(SIZES)))


def sizes_of(index: Tensor | range) -> Tensor:
    """The size in pixels of the digits with these numbers in a split."""
    return torch.tensor(ORDER)[torch.as_tensor(index) % len(SIZES)]


def at_sizes(split: Split, sizes: Iterable[int]) -> Split:
    """The images of a whole STIR split that show digits of these sizes."""
    wanted = list(sizes)
    wrong = [size for size in wanted if size not in SIZES]
    if wrong or not wanted:
        raise ValueError(f"sizes must lie between {SIZES[0]} and {SIZES[-1]}, got {wrong or 'none'}")
    if not len(split) or len(split) % (CLASSES * len(SIZES)):
        raise ValueError(f"sizes are known of whole splits such as of {COUNT} images, got {len(split)}")
    return split.take(torch.isin(sizes_of(torch.arange(len(split))), torch.tensor(wanted)))


def scenario(data: DataSet, sizes: tuple[int, int]) -> DataSet:
    """The set with digits from one size to another in train and valid; test keeps all sizes."""
    seen = range(sizes[0], sizes[1] + 1)
    return replace(data, train=at_sizes(data.train, seen), valid=at_sizes(data.valid, seen))


def read(
    root: str | os.PathLike[str] | None,
    seed: int,
    download: bool,
    *,
    half: bool = False,
    source: Callable[[], tuple[Split, Split]] | None = None,
    per_class: int = PER_CLASS,
) -> tuple[Split, Split, Split]:
    """The splits of a seed, from the cache if they are there, else made and cached.

    Args:
        root: where MNIST is and the result is kept, see `load`.
        seed: of every draw; 0 is the published set.
        download: whether MNIST may be downloaded.
        half: whether images have 32×32 pixels.
        source: what gives training and test images to draw from; MNIST unless told.
        per_class: digits of a class in a split.
    """
    name, base = HALF if half else NAME, data_root(root)

    def make() -> dict[str, Split]:
        if half:
            whole = read(root, seed, download, source=source, per_class=per_class)
            return {part: halved(split) for part, split in zip(PARTS, whole, strict=True)}
        return generate(*(source() if source else read_mnist(base, download)), seed, per_class)

    sizes = dict.fromkeys(PARTS, CLASSES * per_class * len(SIZES))
    splits = kept(base, {"name": name, "seed": seed, "format": 1, "sizes": sizes}, make, compress=True)
    return splits["train"], splits["valid"], splits["test"]


read_half = partial(read, half=True)


def generate(train: Split, test: Split, seed: int = 0, per_class: int = PER_CLASS) -> dict[str, Split]:
    """Draws, scales, puts, blurs and sharpens: the splits by name, the same for the same source and seed."""
    order = [[_drawn(split, digit, seed) for digit in range(CLASSES)] for split in (train, test)]
    sources = [train, train, test]
    for split, numbers, wanted in zip((train, test), order, (2 * per_class, per_class), strict=True):
        if (fewest := min(map(len, numbers))) < wanted:
            raise ValueError(f"{NAME} needs {wanted} digits of every class, got {fewest} of one in {split}")
    chosen = [
        [order[part // 2][digit][(part == 1) * per_class :][:per_class] for digit in range(CLASSES)]
        for part in range(3)
    ]
    corners = _places(seed, per_class)
    shape = (per_class, CLASSES, len(SIZES), 1, CANVAS, CANVAS)
    images = {part: torch.empty(shape, dtype=torch.uint8) for part in PARTS}
    for step, size in enumerate(tqdm(ORDER, desc=NAME, disable=None)):
        for number, part in enumerate(PARTS):
            pixels = sources[number].images[np.stack(chosen[number], 1).ravel(), 0].double().numpy()
            made = made_of(pixels, size, corners[:, :, size - SIZES[0], number].reshape(-1, 2))
            images[part][:, :, step] = torch.from_numpy(made).unflatten(0, (per_class, CLASSES)).unsqueeze(2)
    labels = torch.arange(CLASSES)[None, :, None].expand(shape[:3]).reshape(-1)
    return {part: Split(images[part].flatten(0, 2), labels.clone()) for part in PARTS}


def _drawn(split: Split, digit: int, seed: int) -> np.ndarray[Any, np.dtype]:
    """Numbers of a class's images in the order in which they are drawn."""
    numbers = (split.labels == digit).nonzero().flatten().numpy().copy()
    np.random.RandomState(PUBLISHED_SEED + seed).shuffle(numbers)
    return numbers


def _places(seed: int, per_class: int) -> np.ndarray[Any, np.dtype]:
    """Left and upper margin in pixels, `(instance, digit, size, part, 2)`, in the published order of draws."""
    random = np.random.RandomState(PUBLISHED_SEED + seed)
    corners = np.empty((per_class, CLASSES, len(SIZES), len(PARTS), 2), dtype=np.int64)
    for digit in range(CLASSES):
        for instance in range(per_class):
            for size in reversed(SIZES):
                for part in range(len(PARTS)):
                    corners[instance, digit, size - SIZES[0], part] = random.randint(0, CANVAS - size + 1, 2)
    return corners


def made_of(images: Array, size: int, corners: np.ndarray[Any, np.dtype]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Digits at a size and at their places, blurred, sharpened and stretched.

    Shapes:
        images `(n, y, x)`, corners `(n, 2)` as (left, top); returns `(n, 64, 64)`.
    """
    matrix = spline_matrix(images.shape[-1], size)
    scaled = matrix @ images @ matrix.T
    scaled = scaled.clip(images.min((1, 2), keepdims=True), images.max((1, 2), keepdims=True))
    canvas = np.zeros((len(images), CANVAS, CANVAS))
    for picture, digit, (left, top) in zip(canvas, scaled, corners, strict=True):
        picture[top : top + size, left : left + size] = digit
    blur = gaussian_matrix(CANVAS, 7 / 8 * size / 28, mirrored=False)
    sharp = 2 / np.pi * np.arctan(0.02 * (blur @ canvas @ blur.T - 128))
    low, high = sharp.min((1, 2), keepdims=True), sharp.max((1, 2), keepdims=True)
    return (255 * (sharp - low) / (high - low)).astype(np.uint8)


def spline_matrix(n: int, size: int) -> Array:
    """What scales a line of n pixels to another size by a cubic spline; where it shrinks, blurred before.

    Pixels are cells: the first and the last end where the line does. Beyond, the line is mirrored at its last pixels.
    """
    places = (np.arange(size) + 0.5) * n / size - 0.5
    spline = np.zeros((size, n))
    for row, place in enumerate(places):
        for tap in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            spline[row, _mirrored(tap, n)] += _cubic_spline(abs(place - tap))
    samples = np.zeros((n, n))  # from a spline's coefficients to its values at the pixels
    for row in range(n):
        for tap, weight in ((row - 1, 1 / 6), (row, 4 / 6), (row + 1, 1 / 6)):
            samples[row, _mirrored(tap, n)] += weight
    matrix = spline @ np.linalg.inv(samples)
    return matrix @ gaussian_matrix(n, (n / size - 1) / 2) if size < n else matrix


def gaussian_matrix(n: int, sigma: float, mirrored: bool = True) -> Array:
    """What blurs a line of n pixels, cut off at four deviations; beyond its ends it is mirrored or goes on as it is."""
    reach = int(4 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    matrix = np.zeros((n, n))
    for row in range(n):
        for tap, weight in zip(range(row - reach, row + reach + 1), weights / weights.sum(), strict=True):
            matrix[row, _mirrored(tap, n) if mirrored else min(max(tap, 0), n - 1)] += weight
    return matrix


def _mirrored(place: int, n: int) -> int:
    place = abs(place) % (2 * n - 2)
    return min(place, 2 * n - 2 - place)


def _cubic_spline(t: float) -> float:
    """The cubic B-spline at a distance of less than two from its centre."""
    return (4 - 6 * t * t + 3 * t**3) / 6 if t < 1 else max(2 - t, 0.0) ** 3 / 6


def halved(split: Split) -> Split:
    """Images of half the size, each pixel the mean of four."""
    pieces = [images.float().unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)) for images in split.images.split(2000)]
    return Split(torch.cat([p.mean((-1, -3)).round().byte() for p in pieces]), split.labels)
