"""Random changes of training images, whole batches at a time and from an explicit generator.

Each transform is called as `transform(images, generator)` with floats `(b, c, y, x)` and changes every
image of the batch in its own way. The same generator state gives the same images. What comes in from
outside an image is zero, so apply them before normalising.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .resample import MODES, Mode, rotate, scale

__all__ = [
    "Compose",
    "HorizontalFlip",
    "PadCrop",
    "RandomRotation",
    "RandomScale",
    "Transform",
    "rotate",
    "scale",
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
        mode: `"bicubic"` or `"bilinear"`.
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
