"""The paper's ResNet (appendix B.1): one lifting convolution, two residual blocks, one last group convolution."""

import copy
from collections.abc import Sequence

from torch import nn

from sepgconv.grids import Grid
from sepgconv.kernels import Factor, KernelConfig
from sepgconv.models._scales import scaled, without_dilations
from sepgconv.models._segments import Layers, Recomputed
from sepgconv.nn import (
    BatchNorm,
    GroupConv,
    GroupPool,
    LiftingConv,
    ResidualBlock,
    ScalePool,
    ScalePyramid,
    SpatialPool,
)
from sepgconv.nn._check import check_grid, whole


def widen(channels: int, width: float) -> int:
    """A channel count times a width multiplier, at least one."""
    if not width > 0:
        raise ValueError(f"width must be positive, got {width!r}")
    return max(round(channels * width), 1)


def antialiased(size: int, count: int) -> tuple[list[nn.Module], int]:
    """So many anti-aliased pools, one after the other, for images of a size; and the size that is left."""
    pools: list[nn.Module] = []
    for _ in range(count):
        pool = SpatialPool.fitting("mean", size)
        pools.append(pool)
        size = pool.out_size(size)
    return pools, size


def relu_and(pool: nn.Module) -> list[nn.Module]:
    """A pool and a ReLU. They commute for a maximum, and the smaller map is cheaper; a filter has to come second."""
    plain = isinstance(pool, SpatialPool) and not pool.antialias
    return [pool, nn.ReLU()] if plain else [nn.ReLU(), pool]


def resnet(
    grid: Grid,
    in_channels: int = 1,
    num_classes: int = 10,
    *,
    factorisation: str | Sequence[Factor] = "separable",
    kernel: KernelConfig = KernelConfig(),
    width: float = 1.0,
    kernel_size: int | None = None,
    image_size: int = 28,
    dropout: float = 1.0,
    recompute: bool = False,
    antialias: bool = False,
    pyramid: bool = False,
    centred: bool = False,
    finest: float = 1.0,
    scale_dropout: float = 0.0,
) -> nn.Sequential:
    """The paper's shallow ResNet; on `translation2()` with `factorisation="nonseparable"` it is the plain baseline.

    Args:
        grid: the group that all layers are equivariant to; the model takes a copy of it.
        in_channels: channels of the images.
        num_classes: number of logits.
        factorisation: as in `GroupConv`.
        kernel: settings of the kernel networks.
        width: multiplies all channel counts but the classifier's.
        kernel_size: odd width of the kernels in pixels; by default 7, and 5 for volumes.
        image_size: height of the images in pixels, from which the last kernel's size follows.
        dropout: multiplies the rate of dropout; 0 leaves it out.
        recompute: whether to compute activations again in the backward pass instead of keeping them.
        antialias: whether to treat angles between the pixels as well as quarter turns: features are low-passed where
            they are subsampled, the last kernel has five taps at least, and space is projected by its mean (on a
            pyramid that is not centred by its maximum, as without). Weights have the same names and shapes.
        pyramid: on a grid with dilations, whether to run the layers on the image at every scale instead of widening
            their kernels (`ScalePyramid`): for objects of very different sizes. Features are pooled once, not twice,
            since the smallest image has few pixels.
        centred: whether the images of the pyramid all have the size of the image itself, about its centre, and layers
            are those of the network without dilations: for objects that stand in the middle.
        finest: the first scale of the pyramid; below 1 it begins with an enlarged image, which small objects need.
        scale_dropout: probability of not reading a scale in training, see `ScalePool`. It helps where sizes are to be
            recognised that training does not show (1/2 is a good value), and harms where it shows them all.

    Shapes:
        `(b, in_channels, y, x)` → `(b, num_classes)`; on the groups of signals and volumes, one or three spatial axes.

    Memory: an activation is b·c·|H|·pixels numbers. On `se3(24)` with 32 channels, 16³ voxels and a batch of 64 that
    is 0.8 GB for each of about ten that a training step keeps: take a smaller `width`, smaller batches or `recompute`.
    """
    check_grid(grid)
    if pyramid:
        if recompute:
            raise ValueError(f"recompute is not for a pyramid, got recompute={recompute!r} with pyramid=True")
        if not scaled(grid):
            raise ValueError(f"pyramid=True needs a grid with dilations, such as scale2 or sim2; got {grid}")
    elif centred or finest != 1 or scale_dropout:
        given = f"centred={centred!r}, finest={finest!r} and scale_dropout={scale_dropout!r}"
        raise ValueError(f"{given} are for pyramid=True")
    small = pyramid and not centred  # some of its images are
    narrow, wide = widen(32, width), widen(64, width)
    size = kernel_size or (5 if grid.space == 3 else 7)
    grid = copy.deepcopy(grid)  # whose shift is the model's alone
    on = without_dilations(grid) if pyramid else grid
    shared = {"grid": on, "factorisation": factorisation, "kernel": kernel}
    last = min(max(image_size // 4 - 7, 3), 11)
    last += 1 - last % 2
    pools: list[nn.Module] = [SpatialPool("max", 2), SpatialPool("max", 2)]
    projection = GroupPool("max")
    if antialias:
        pools, left = antialiased(image_size, 1 if small else 2)  # small ones are all odd or all even
        last, projection = min(max(last, 5), left - 1 + left % 2), GroupPool("max", space="mean")
    layers: list[nn.Module] = [
        LiftingConv(in_channels, narrow, size, grid=on, kernel=kernel, padding="valid" if small else "same"),
        BatchNorm(narrow),
        nn.ReLU(),
        ResidualBlock(narrow, narrow, size, recompute=recompute, **shared),
        BatchNorm(narrow),
        *relu_and(pools[0]),
        ResidualBlock(narrow, wide, size, recompute=recompute, **shared),
        BatchNorm(wide),
        *([nn.ReLU()] if small else relu_and(pools[1])),
        GroupConv(wide, wide, last, padding="same" if small else "valid", **shared),
        BatchNorm(wide),
        nn.ReLU(),
    ]
    if pyramid:
        on_all = {"finest": finest, "centred": centred, "padding": size // 2 if small else 0}
        space = "mean" if antialias and centred else "max"
        images = ScalePyramid(Layers(*layers), grid=grid, space=space, **on_all)
        layers = [images, ScalePool("max", grid=grid, dropout=scale_dropout)]
    sequence = Recomputed if recompute else Layers
    return sequence(
        *layers,
        projection,
        nn.Linear(wide, 256, bias=False),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.3 * dropout),
        nn.Linear(256, whole("num_classes", num_classes, 1)),
    )
