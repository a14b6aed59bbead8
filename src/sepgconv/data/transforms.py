"""Random changes of training images, whole batches at a time and from an explicit generator.

Each transform is called as `transform(images, generator)` with floats `(b, c, y, x)` and changes every
image of the batch in its own way. The same generator state gives the same images. What comes in from
outside an image is zero, so apply them before normalising.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .resample import MODES, Mode, bspline, rotate, scale, warp

__all__ = [
    "Compose",
    "HorizontalFlip",
    "PadCrop",
    "RandomRotation",
    "RandomScale",
    "RandomWarp",
    "Transform",
    "rotate",
    "scale",
    "warp",
]


class Transform(Protocol):
    """A change of a batch of images."""

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The changed batch, of the same shape."""
        ...


@dataclass(frozen=True)
class RandomRotation:
    """Turn each image by an angle drawn uniformly from `[low, high)`, in degrees.

    Args:
        low: the least angle; positive is counter-clockwise.
        high: the bound above; 0 to 360 covers all orientations evenly.
        mode: `"bicubic"`, `"bilinear"` or `"spline"`.
    """

    low: float = 0.0
    high: float = 360.0
    mode: Mode = "bicubic"

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low must not exceed high, got low={self.low}, high={self.high}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The turned batch."""
        return rotate(images, _uniform(images, generator, self.low, self.high), self.mode)


@dataclass(frozen=True)
class RandomScale:
    """Scale each image about its centre by a factor drawn uniformly from `[low, high)`.

    Args:
        low: the least factor, positive.
        high: the bound above.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"low must be positive and not exceed high, got low={self.low}, high={self.high}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The scaled batch."""
        return scale(images, _uniform(images, generator, self.low, self.high))


@dataclass(frozen=True)
class RandomWarp:
    """Turn, scale, stretch and bend each image, all at once, so that it is read only once between its pixels.

    Bending moves points of a coarse lattice at random and everything between them smoothly: an elastic deformation,
    as of another hand's digits or another sample's tissue. Images are read with splines, which blur least, and keep
    their range of values, so that they look like images that were not changed.

    Args:
        elastic: deviation of the displacements, in pixels.
        rotate: whether to turn images by any angle as well.
        scale: scale them by a factor between this and its inverse as well; 1 is no change.
        spacing: pixels between points of the lattice.
        stretch: lengthen images along a random direction and shorten them across it, too, by up to this part of their
            size; with a turn that is a slant.
    """

    elastic: float
    rotate: bool = False
    scale: float = 1.0
    spacing: float = 7.0
    stretch: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.elastic < float("inf"):
            raise ValueError(f"elastic must be a number of pixels, not negative, got {self.elastic!r}")
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale must lie in (0, 1], got {self.scale!r}")
        if not 1 <= self.spacing < float("inf"):
            raise ValueError(f"spacing must be one pixel at least, got {self.spacing!r}")
        if not 0 <= self.stretch < 1:
            raise ValueError(f"stretch must lie in [0, 1), got {self.stretch!r}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The changed batch."""
        b, _, *size = images.shape
        angles = _uniform(images, generator, 0, 360 if self.rotate else 0)
        factors = _uniform(images, generator, self.scale, 1 / self.scale)
        # Two points more than lie within an image, since a cubic needs one beyond either end of what it fills.
        points = [math.ceil((n - 1) / self.spacing) + 3 for n in size]
        lattice = torch.randn(b, 2, *points, generator=generator, device=generator.device, dtype=torch.float64)
        for axis, n in enumerate(size, 2):
            lattice = (lattice.movedim(axis, -1) @ self._between(n, lattice.shape[axis]).to(lattice)).movedim(-1, axis)
        offsets = (self.elastic * lattice).to(images.device)
        if self.stretch:
            offsets = offsets + self._stretched(images, generator)
        low, high = (f(images, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
        return warp(images, angles, factors, offsets, "spline").clamp(low, high)

    def _stretched(self, images: Tensor, generator: Generator) -> Tensor:
        """Displacements τ·F·x, where F mirrors the plane at a random line.

        A mirror times a turn is a mirror, so with or without a turn R the map R + τF stretches by 1 + τ along
        some direction and by 1 - τ across it.
        """
        size = _uniform(images, generator, 0, self.stretch)
        angle = _uniform(images, generator, 0, 2 * math.pi)
        cos, sin = ((size * f(angle))[:, None, None] for f in (torch.cos, torch.sin))
        y, x = (torch.arange(n, dtype=size.dtype, device=size.device) - (n - 1) / 2 for n in images.shape[-2:])
        return torch.stack([sin * x - cos * y[:, None], cos * x + sin * y[:, None]], 1)

    def _between(self, n: int, points: int) -> Tensor:
        """The matrix `(points, n)` of a cubic B-spline from the lattice to pixels, of variance 1 in the mean."""
        middle = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2) / self.spacing
        weights = bspline(middle - (torch.arange(points, dtype=torch.float64) - (points - 1) / 2)[:, None])
        return weights / weights.square().sum(0).mean().sqrt()


@dataclass(frozen=True)
class PadCrop:
    """Pad with zeros on all sides, then cut each image back to its size at a random place.

    Args:
        padding: pixels on each side, which is also the furthest that an image moves.
    """

    padding: int

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must not be negative, got {self.padding}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The shifted batch."""
        b, c, height, width = images.shape
        padded = F.pad(images, [self.padding] * 4)
        shifts = torch.randint(0, 2 * self.padding + 1, (2, b, 1), generator=generator, device=generator.device).to(
            images.device
        )
        rows = shifts[0] + torch.arange(height, device=images.device)
        columns = shifts[1] + torch.arange(width, device=images.device)
        item = torch.arange(b, device=images.device)[:, None, None, None]
        channel = torch.arange(c, device=images.device)[:, None, None]
        return padded[item, channel, rows[:, None, :, None], columns[:, None, None, :]]


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror each image left to right with a probability.

    Args:
        probability: between 0 and 1.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}")

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The batch with some images mirrored."""
        chosen = _uniform(images, generator, 0, 1) < self.probability
        return torch.where(chosen[:, None, None, None], images.flip(-1), images)


class Compose:
    """Several transforms, one after the other."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """The batch after all of them."""
        for transform in self.transforms:
            images = transform(images, generator)
        return images

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def _uniform(images: Tensor, generator: Generator, low: float, high: float) -> Tensor:
    """One number per image; float64, so that a narrow range far from zero is still fine."""
    unit = torch.rand(len(images), generator=generator, device=generator.device, dtype=torch.float64)
    return (low + (high - low) * unit).to(images.device)
