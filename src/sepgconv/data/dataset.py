"""What every reader returns: three in-memory splits of labelled uint8 images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Args:
        images: `uint8`, pixel values 0-255.
        labels: `int64`, class numbers from 0.

    Shapes:
        images `(n, c, y, x)`, or one or three axes of space; labels `(n,)`.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or not 3 <= self.images.dim() <= 5:
            raise ValueError(
                "images must be a uint8 tensor (n, c, x), (n, c, y, x) or (n, c, z, y, x), "
                f"got {self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be an int64 tensor of {len(self.images)} classes, one per image, "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {'×'.join(map(str, self.images.shape[1:]))})"

    def pixels(self, index: Tensor | slice) -> Tensor:
        """The images of an index."""
        return self.images[index]

    def take(self, index: Tensor) -> Split:
        """The images that an index tensor or a mask names."""
        return Split(self.images[index], self.labels[index])


def join(*splits: Split) -> Split:
    """Several splits as one, in order."""
    return Split(torch.cat([s.images for s in splits]), torch.cat([s.labels for s in splits]))


class Pixels(Protocol):
    """Images that can be had a few at a time."""

    def __len__(self) -> int: ...

    def pixels(self, index: slice) -> Tensor:
        """The images of an index, as uint8 `(n, c, y, x)`."""
        ...


Trained = TypeVar("Trained", bound=Pixels)


class Normalised(Generic[Trained]):
    """What normalises images: the moments of those that are trained on."""

    train: Trained

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel over train, pixels scaled to [0, 1]."""
        return tuple(self._moments[0].tolist())

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel over train, pixels scaled to [0, 1]."""
        return tuple(self._moments[1].tolist())

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        return moments(self.train)


@dataclass(frozen=True, eq=False)
class DataSet(Normalised[Split]):
    """A data set: its splits, its number of classes, and the statistics that normalise it.

    Args:
        name: as `names()` lists it.
        classes: how many; labels lie in `[0, classes)`.
        train: what is fitted, and what `mean` and `std` are computed from.
        valid: what models and settings are chosen on.
        test: what is reported, once.
    """

    name: str
    classes: int
    train: Split
    valid: Split
    test: Split

    def __post_init__(self) -> None:
        shapes = {part: tuple(split.images.shape[1:]) for part, split in self.splits.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"data set {self.name!r}: the splits' image shapes differ: {shapes}")
        for part, split in self.splits.items():
            low, high = (int(v) for v in split.labels.aminmax()) if len(split) else (0, 0)
            if low < 0 or high >= self.classes:
                raise ValueError(
                    f"data set {self.name!r}: labels of {part} must lie in [0, {self.classes - 1}], "
                    f"found {low} to {high}"
                )

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def train_and_valid(self) -> Split:
        """For a last run, when all choices are made."""
        return join(self.train, self.valid)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image; of signals and volumes, channels and the axes of space."""
        return tuple(self.train.images.shape[1:])


def moments(split: Pixels) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, pixels scaled to [0, 1].

    A histogram gives exact moments of uint8 data, a few images at a time and without a float copy of all of them.

    Shapes:
        returns `(c,)` and `(c,)`, float64.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = sum(
        torch.stack([plane.reshape(-1).bincount(minlength=256) for plane in split.pixels(slice(i, i + 256)).unbind(1)])
        for i in range(0, len(split), 256)
    )
    weights = torch.as_tensor(counts, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    mean = weights @ levels
    variance = (weights * (levels - mean[:, None]).square()).sum(1)
    return mean, variance.sqrt()


def stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """A mask of `count` of the items that holds every class in proportion, to within one item.

    The items are shuffled, sorted by class, and taken at equal distances (systematic sampling).

    Shapes:
        labels `(n,)`, mask `(n,)`.
    """
    n = len(labels)
    if not 0 <= count <= n:
        raise ValueError(f"count must be between 0 and the {n} items there are, got {count}")
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    ordered = shuffled[labels[shuffled].argsort(stable=True)]
    step = n / max(count, 1)
    places = ((torch.arange(count, dtype=torch.float64) + 0.5) * step).long()
    mask = torch.zeros(n, dtype=torch.bool)
    mask[ordered[places]] = True
    return mask
