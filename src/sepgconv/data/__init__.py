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
    Transform,
    rotate,
    scale,
)

__all__ = [
    "Compose",
    "DataSet",
    "DataUnavailable",
    "HorizontalFlip",
    "PadCrop",
    "RandomRotation",
    "RandomScale",
    "Split",
    "Transform",
    "join",
    "load",
    "names",
    "rotate",
    "scale",
]
