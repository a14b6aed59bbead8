"""Checks that layers share: shapes that are wrong, and sizes with which equivariance cannot hold."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sepgconv.grids import GRIDS, Grid
from sepgconv.kernels import Factor, KernelConfig

AXES = {1: "x", 2: "y, x", 3: "z, y, x"}
LARGEST = 1 << 32
"""Bytes that sampling a kernel may take: 4 GB."""


class EquivarianceWarning(UserWarning):
    """A layer's stride, padding and input size do not allow the network to be equivariant."""


def whole(name: str, value: object, least: int) -> int:
    """A whole number of at least `least`, or a ValueError that names it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def check_grid(grid: object, name: str = "grid") -> None:
    """Refuses what is no grid: a group's name, its number of elements, a group."""
    if not isinstance(grid, Grid):
        raise ValueError(f"{name} must be a grid, such as sg.se2(8); got {grid!r}")


def described(layer: nn.Module) -> str:
    """A layer in a message."""
    return f"{type(layer).__name__}({layer.extra_repr()})"


def floating(x: Tensor, layer: nn.Module) -> None:
    """Refuses integer and complex input."""
    if not x.is_floating_point():
        raise ValueError(f"{type(layer).__name__} takes real floating-point input, got {x.dtype}")


def groups_for(space: int) -> str:
    """The end of a message about an input of the wrong dimension: whose inputs have so many axes of space."""
    names = [name for name, named in GRIDS.items() if named.make().space == space]
    return f"; ({AXES[space]}) is for {', '.join(names)}" if names else ""


def sampling_bytes(
    kernel_size: int,
    channels: tuple[int, int],
    factors: Sequence[Factor],
    config: KernelConfig,
    grids: tuple[Grid, Grid | None],
) -> int:
    """Memory of the largest factor's samples: its network's units and values at all points, in float32."""
    grid, source = grids
    sizes = []
    for factor in factors:
        seen = factor.coordinates.split()
        points = kernel_size**grid.space * grid.size if "x" in seen else 1
        points *= source.size if source is not None and seen not in ([], ["x"]) else 1
        values = math.prod(n for n, index in zip(channels, "ij", strict=True) if index in factor.channels)
        sizes.append(4 * points * (2 * config.hidden * (config.layers + 1) + values))
    return max(sizes)


def check_memory(
    kernel_size: int,
    channels: tuple[int, int],
    factors: Sequence[Factor],
    config: KernelConfig,
    grids: tuple[Grid, Grid | None],
) -> None:
    """Refuses kernels that no machine could sample, with the memory they would take and the largest allowed."""
    needed = sampling_bytes(kernel_size, channels, factors, config, grids)
    if needed <= LARGEST:
        return
    fits = [
        k for k in range(1, min(kernel_size, 100), 2) if sampling_bytes(k, channels, factors, config, grids) <= LARGEST
    ]
    most = f"kernels of up to {fits[-1]} fit" if fits else "none fits: take fewer channels or elements"
    raise ValueError(
        f"kernel_size={kernel_size} in {grids[0].space} dimensions with {channels[0]} and {channels[1]} channels on "
        f"{grids[0].size} elements would take {needed / 2**30:,.1f} GB to sample, more than {LARGEST / 2**30:.0f} GB; "
        f"{most}"
    )


def symmetric_sampling(layer: nn.Module, sizes: tuple[int, ...], kernel: int, stride: int, padding: int) -> None:
    """Warns, once per layer, when the strided positions are not symmetric about the image's centre.

    A window of `kernel` taps at stride s visits positions that a turn or a dilation about the centre maps onto
    themselves only if s divides n + 2·padding − kernel; otherwise the far edge is cut off on one side.
    """
    if stride == 1 or getattr(layer, "_warned", False) or torch.compiler.is_compiling():
        return
    broken = [size for size in sizes if (size + 2 * padding - kernel) % stride]
    if not broken:
        return
    layer.__dict__["_warned"] = True
    size = broken[0]
    larger = next(n for n in range(size, size + stride + 1) if (n + 2 * padding - kernel) % stride == 0)
    smaller = larger - stride
    fits = f"{smaller} or {larger}" if smaller >= kernel - 2 * padding and smaller > 0 else f"{larger}"
    warnings.warn(
        f"{described(layer)} loses equivariance on an input of size {size}: stride {stride} "
        f"with a window of {kernel} and padding {padding} samples it off centre. Crop, pad or resize so that this "
        f"layer sees {fits}, or use stride 1; sg.strided and SpatialPool.fitting make layers that fit a size.",
        EquivarianceWarning,
        stacklevel=3,
    )
