"""Data sets as in-memory tensors, and the augmentations that go with them."""

from .dataset import DataSet, Split, join
from .download import DataUnavailable
from .registry import load, names
from .transforms import (
    Compose,
    HorizontalFlip,
    PadCrop,
    RandomRotation,
    RandomScale,
    RandomWarp,
    Transform,
    rotate,
    scale,
    warp,
)

__all__ = [
    "Compose",
    "DataSet",
    "DataUnavailable",
    "HorizontalFlip",
    "PadCrop",
    "RandomRotation",
    "RandomScale",
    "RandomWarp",
    "Split",
    "Transform",
    "join",
    "load",
    "names",
    "rotate",
    "scale",
    "warp",
]
