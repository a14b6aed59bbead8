"""The grids that users make."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from sepgconv.grids._axis import Axis
from sepgconv.grids._grid import Grid
from sepgconv.groups import O2, SO2, SO3, Dilation


def scales_of(space: int, count: int, max_scale: float, sampling: str, support: int) -> Axis:
    """Scales from 1 to `max_scale`, equidistant in log s."""
    if isinstance(max_scale, bool) or not isinstance(max_scale, int | float) or not math.isfinite(max_scale):
        raise ValueError(f"max_scale must be a finite number, got {max_scale!r}")
    if max_scale < 1:
        raise ValueError(f"max_scale must be at least 1 (greater than 1 for several scales), got {max_scale!r}")
    if not isinstance(support, int) or isinstance(support, bool) or support < 1:
        raise ValueError(f"scale_support must be a whole number of neighbours, at least 1, got {support!r}")
    if isinstance(count, int) and count > 1 and max_scale == 1:
        raise ValueError(f"max_scale must be greater than 1 for {count} scales, got {max_scale!r}")
    axis = Axis(Dilation(space), count, math.log(max_scale), sampling)
    return replace(axis, support=support * (axis.cell or 1.0))


def se2(rotations: int = 8, *, sampling: str = "random") -> Grid:
    """SE(2): rotations and translations of the plane."""
    return Grid(2, (Axis(SO2(2), rotations, sampling=sampling),))


def e2(rotations: int = 8, *, sampling: str = "random") -> Grid:
    """E(2): rotations, reflections and translations of the plane; two elements per rotation."""
    return Grid(2, (Axis(O2(2), rotations, sampling=sampling),))


def se3(rotations: int = 24, *, sampling: str = "random") -> Grid:
    """SE(3): rotations and translations of space, sampled at 12 (tetrahedron), 24 (cube) or 60 rotations (icosahedron).

    Exact on cubic volumes for all 24 rotations of the cube with 24, for the 12 that they share with it with 12 and 60.
    """
    return Grid(3, (Axis(SO3(3), rotations, sampling=sampling),))


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
    rotation = Axis(SO2(2), rotations, sampling=sampling)
    return Grid(2, (rotation, scales_of(2, scales, max_scale, scale_sampling, scale_support)))


def translation1() -> Grid:
    """Translations of the line: H is trivial, the network a plain CNN of signals."""
    return Grid(1)


def translation2() -> Grid:
    """Translations of the plane: H is trivial, the network a plain CNN."""
    return Grid(2)


def translation3() -> Grid:
    """Translations of space: H is trivial, the network a plain CNN of volumes."""
    return Grid(3)


def scale1(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R ⋊ R⁺: dilations and translations of 1-D signals."""
    return Grid(1, (scales_of(1, scales, max_scale, sampling, scale_support),))


def scale3(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R³ ⋊ R⁺: dilations and translations of volumes."""
    return Grid(3, (scales_of(3, scales, max_scale, sampling, scale_support),))


class Named(NamedTuple):
    """A group by name: the function that makes its grids, and what tables call it."""

    make: Callable[..., Grid]
    label: str


GRIDS: dict[str, Named] = {
    "se2": Named(se2, "SE(2)"),
    "e2": Named(e2, "E(2)"),
    "scale2": Named(scale2, "R²⋊R⁺"),
    "sim2": Named(sim2, "Sim(2)"),
    "translation2": Named(translation2, "R²"),
    "se3": Named(se3, "SE(3)"),
    "scale3": Named(scale3, "R³⋊R⁺"),
    "translation3": Named(translation3, "R³"),
    "scale1": Named(scale1, "R⋊R⁺"),
    "translation1": Named(translation1, "R"),
}
"""All groups: for recipes, benchmarks and the command line. A group of your own is made with `Grid` and `Axis`."""
