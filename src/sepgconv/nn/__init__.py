"""Layers. Features are plain tensors `(b, c, h, y, x)`; anything that acts on them elementwise is stock torch."""

from sepgconv.nn._block import ResidualBlock
from sepgconv.nn._conv import GroupConv, LiftingConv
from sepgconv.nn._norm import BatchNorm
from sepgconv.nn._pool import SpatialPool
from sepgconv.nn._projection import GroupPool
from sepgconv.nn._pyramid import ScalePyramid
from sepgconv.nn._scale_pool import ScalePool
from sepgconv.nn._strided import strided

__all__ = [
    "BatchNorm",
    "GroupConv",
    "GroupPool",
    "LiftingConv",
    "ResidualBlock",
    "ScalePool",
    "ScalePyramid",
    "SpatialPool",
    "strided",
]
