"""Grids with dilations as pyramids of images."""

from sepgconv.grids import Grid
from sepgconv.groups import Dilation


def scaled(grid: Grid) -> bool:
    """Whether a grid has dilations."""
    return any(isinstance(axis.group, Dilation) for axis in grid.axes)


def without_dilations(grid: Grid) -> Grid:
    """The grid of a pyramid's layers."""
    return Grid(grid.space, tuple(axis for axis in grid.axes if not isinstance(axis.group, Dilation)))
