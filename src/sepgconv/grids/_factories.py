"""The grids that users make."""

import math
from dataclasses import replace

from sepgconv.grids._axis import Axis
from sepgconv.grids._grid import Grid
from sepgconv.groups import SO2, Dilation


def rotations_of(space: int, count: int, sampling: str) -> Axis:
    """Rotations, equidistant on the circle."""
    return Axis(SO2(space), count, 2 * math.pi, sampling)


def scales_of(space: int, count: int, max_scale: float, sampling: str, support: int) -> Axis:
    """Scales from 1 to `max_scale`, equidistant in log s."""
    if isinstance(max_scale, bool) or not isinstance(max_scale, int | float) or not math.isfinite(max_scale):
        raise ValueError(f"max_scale must be a finite number, got {max_scale!r}")
    if max_scale < 1:
        raise ValueError(f"max_scale must be at least 1 (greater than 1 for several scales), got {max_scale!r}")
    if not isinstance(support, int) or isinstance(support, bool) or support < 1:
        raise ValueError(f"scale_support must be a whole number of neighbours, at least 1, got {support!r}")
    axis = Axis(Dilation(space), count, math.log(max_scale), sampling)
    return replace(axis, support=support * (axis.cell or 1.0))


def se2(rotations: int = 8, *, sampling: str = "random") -> Grid:
    """SE(2): rotations and translations of the plane."""
    return Grid(2, (rotations_of(2, rotations, sampling),))


def scale2(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R² ⋊ R⁺: dilations and translations of the plane, scales from 1 to `max_scale`.

    A kernel sees `scale_support` neighbouring scales on either side.
    """
    return Grid(2, (scales_of(2, scales, max_scale, sampling, scale_support),))


def sim2(
    rotations: int = 8,
    scales: int = 4,
    max_scale: float = 3**0.5,
    *,
    sampling: str = "random",
    scale_sampling: str = "fixed",
    scale_support: int = 1,
) -> Grid:
    """Sim(2): rotations, dilations and translations of the plane; `sampling` is that of the rotations."""
    rotation = rotations_of(2, rotations, sampling)
    return Grid(2, (rotation, scales_of(2, scales, max_scale, scale_sampling, scale_support)))


def translation2() -> Grid:
    """Translations of the plane: H is trivial, the network a plain CNN."""
    return Grid(2)


def scale1(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R ⋊ R⁺: dilations and translations of 1-D signals."""
    return Grid(1, (scales_of(1, scales, max_scale, sampling, scale_support),))
