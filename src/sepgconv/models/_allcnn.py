"""All-CNN-C (Springenberg et al. 2014) with group convolutions, as in the paper's comparison on CIFAR-10."""

import copy
from collections.abc import Sequence

from torch import nn

from sepgconv.grids import Grid
from sepgconv.kernels import Factor, KernelConfig
from sepgconv.models._resnet import antialiased, widen
from sepgconv.models._segments import Layers, Recomputed
from sepgconv.nn import BatchNorm, GroupConv, GroupPool, LiftingConv, SpatialPool
from sepgconv.nn._check import whole


def allcnnc(
    grid: Grid,
    in_channels: int = 3,
    num_classes: int = 10,
    *,
    factorisation: str | Sequence[Factor] = "separable",
    kernel: KernelConfig = KernelConfig(hidden=6, layers=1),
    width: float = 1.0,
    kernel_size: int = 3,
    dropout: float = 1.0,
    recompute: bool = False,
    image_size: int = 32,
    antialias: bool = False,
) -> nn.Sequential:
    """Seven convolutions with spatial extent and two without, pooled to logits over the group.

    Args:
        grid: the group that all layers are equivariant to; the model takes a copy of it.
        in_channels: channels of the images.
        num_classes: number of logits.
        factorisation: as in `GroupConv`.
        kernel: settings of the kernel networks; the paper compares widths 5, 6 and 16 with one hidden layer.
        width: multiplies all hidden channel counts.
        kernel_size: odd width of the kernels in pixels.
        dropout: multiplies the rates of dropout; 0 leaves it out.
        recompute: whether to compute activations again in the backward pass instead of keeping them.
        image_size: height of the images in pixels, to which the filters of `antialias` are fitted.
        antialias: whether features are low-passed where they are subsampled, and space is projected by its mean.

    Shapes:
        `(b, in_channels, y, x)` → `(b, num_classes)`
    """
    narrow, wide = widen(96, width), widen(192, width)
    grid = copy.deepcopy(grid)  # whose shift is the model's alone
    shared = {"grid": grid, "factorisation": factorisation, "kernel": kernel}

    def conv(before: int, after: int, size: int) -> list[nn.Module]:
        return [GroupConv(before, after, size, **shared), BatchNorm(after), nn.ReLU()]

    pools: list[nn.Module] = [SpatialPool("max", 2), SpatialPool("max", 2)]
    projection = GroupPool("max")
    if antialias:
        pools, _ = antialiased(image_size, 2)
        projection = GroupPool("max", space="mean")
    sequence = Recomputed if recompute else Layers
    return sequence(
        nn.Dropout(0.2 * dropout),
        LiftingConv(in_channels, narrow, kernel_size, grid=grid, kernel=kernel),
        BatchNorm(narrow),
        nn.ReLU(),
        *conv(narrow, narrow, kernel_size),
        pools[0],
        *conv(narrow, narrow, kernel_size),
        nn.Dropout(0.5 * dropout),
        *conv(narrow, wide, kernel_size),
        *conv(wide, wide, kernel_size),
        pools[1],
        *conv(wide, wide, kernel_size),
        nn.Dropout(0.5 * dropout),
        *conv(wide, wide, kernel_size),
        *conv(wide, wide, 1),
        GroupConv(wide, whole("num_classes", num_classes, 1), 1, **shared),
        projection,
    )
