"""Separable group convolutions on affine Lie groups R^d ⋊ H, with continuous kernels, in PyTorch."""

from sepgconv import groups, models, testing
from sepgconv.deploy import fold
from sepgconv.grids import (
    Axis,
    Grid,
    e2,
    scale1,
    scale2,
    scale3,
    se2,
    se3,
    set_resolution,
    sim2,
    translation1,
    translation2,
    translation3,
)
from sepgconv.kernels import FACTORISATIONS, Factor, KernelConfig
from sepgconv.nn import (
    BatchNorm,
    GroupConv,
    GroupPool,
    LiftingConv,
    ResidualBlock,
    ScalePool,
    ScalePyramid,
    SpatialPool,
    strided,
)
from sepgconv.nn._check import EquivarianceWarning
from sepgconv.profiling import profile

__version__ = "0.1.0"

__all__ = [
    "FACTORISATIONS",
    "Axis",
    "BatchNorm",
    "EquivarianceWarning",
    "Factor",
    "Grid",
    "GroupConv",
    "GroupPool",
    "KernelConfig",
    "LiftingConv",
    "ResidualBlock",
    "ScalePool",
    "ScalePyramid",
    "SpatialPool",
    "e2",
    "fold",
    "groups",
    "models",
    "profile",
    "scale1",
    "scale2",
    "scale3",
    "se2",
    "se3",
    "set_resolution",
    "sim2",
    "strided",
    "testing",
    "translation1",
    "translation2",
    "translation3",
]
