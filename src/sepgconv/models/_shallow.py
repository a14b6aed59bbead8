"""Two convolutions, a maximum and a linear layer: the networks that STIR's published comparison is made of."""

import copy
from collections.abc import Sequence

from torch import nn

from sepgconv.grids import Grid
from sepgconv.kernels import Factor, KernelConfig
from sepgconv.models._resnet import widen
from sepgconv.models._scales import scaled, without_dilations
from sepgconv.models._segments import Layers
from sepgconv.nn import BatchNorm, GroupConv, GroupPool, LiftingConv, ScalePool, ScalePyramid, SpatialPool
from sepgconv.nn._check import check_grid, whole
from sepgconv.nn._scale_pool import DROPPING

DROPOUT = 0.5
"""Of scales. Without it, networks trained on large objects do not know small ones (docs/equivariance.md)."""


def shallow(
    grid: Grid,
    in_channels: int = 1,
    num_classes: int = 10,
    *,
    factorisation: str | Sequence[Factor] = "nonseparable",
    kernel: KernelConfig = KernelConfig(layers=1),
    width: float = 1.0,
    kernel_size: int = 7,
    finest: float = 1.0,
    pool: int | None = None,
    project: str = "max",
    dropout: float = 1.0,
    recompute: bool = False,
    antialias: bool = False,
) -> nn.Sequential:
    """Two layers of 16 and 32 channels; on a grid with dilations they run on a pyramid of images.

    Args:
        grid: without dilations the layers see images as they are, padded by nothing; with them, images at all scales.
        in_channels: channels of the images.
        num_classes: number of logits.
        factorisation: as in `GroupConv`.
        kernel: settings of the kernel networks.
        width: multiplies the channel counts.
        kernel_size: odd width of the kernels in pixels, at every scale.
        finest: the first scale of the pyramid, see `ScalePyramid`.
        pool: width and stride of a spatial maximum between the layers; by default 2 with dilations, which makes a step
            cost a third, and 1 without, as published.
        project: over scales, as in `ScalePool`.
        dropout: multiplies the rate, 1/2, at which scales are not read in training, see `ScalePool`; 0 leaves it out.
        recompute, antialias: of deeper networks; True is an error.

    Shapes:
        `(b, in_channels, y, x)` → `(b, num_classes)`
    """
    check_grid(grid)
    for name, value in (("recompute", recompute), ("antialias", antialias)):
        if value:
            raise ValueError(f"{name} is for deeper networks, models.shallow has two layers; got {name}={value!r}")
    first, second = widen(16, width), widen(32, width)
    grid = copy.deepcopy(grid)
    rest = without_dilations(grid) if scaled(grid) else grid
    pool = (2 if scaled(grid) else 1) if pool is None else pool
    layers: list[nn.Module] = [
        LiftingConv(in_channels, first, kernel_size, grid=rest, kernel=kernel, padding="valid"),
        BatchNorm(first),
        nn.ReLU(),
        *([SpatialPool("max", pool)] if pool > 1 else []),
        GroupConv(first, second, kernel_size, grid=rest, factorisation=factorisation, kernel=kernel, padding="valid"),
        BatchNorm(second),
        nn.ReLU(),
    ]
    head = nn.Linear(second, whole("num_classes", num_classes, 1))
    if not scaled(grid):
        return Layers(*layers, GroupPool("max"), head)
    scales = ScalePool(project, grid=grid, dropout=DROPOUT * dropout if project in DROPPING else 0.0)
    pyramid = ScalePyramid(nn.Sequential(*layers), grid=grid, padding=(1 + pool) * (kernel_size // 2), finest=finest)
    return Layers(pyramid, scales, GroupPool("max"), head)
