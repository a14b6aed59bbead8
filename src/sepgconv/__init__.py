"""Separable group convolutions on affine Lie groups R^d ⋊ H, with continuous kernels, in PyTorch."""

from sepgconv import groups, models, testing
from sepgconv.deploy import fold
from sepgconv.grids import Grid, scale1, scale2, se2, set_resolution, sim2, translation2
from sepgconv.kernels import FACTORISATIONS, Factor, KernelConfig
from sepgconv.nn import BatchNorm, GroupConv, GroupPool, LiftingConv, ResidualBlock, SpatialPool
from sepgconv.nn._check import EquivarianceWarning
from sepgconv.profiling import profile

__version__ = "0.1.0"

__all__ = [
    "FACTORISATIONS",
    "BatchNorm",
    "EquivarianceWarning",
    "Factor",
    "Grid",
    "GroupConv",
    "GroupPool",
    "KernelConfig",
    "LiftingConv",
    "ResidualBlock",
    "SpatialPool",
    "fold",
    "groups",
    "models",
    "profile",
    "scale1",
    "scale2",
    "se2",
    "set_resolution",
    "sim2",
    "testing",
    "translation2",
]
