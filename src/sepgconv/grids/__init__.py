"""Samplings of the subgroup H, on which features live."""

from sepgconv.grids._axis import Axis
from sepgconv.grids._factories import scale1, scale2, se2, sim2, translation2
from sepgconv.grids._grid import Grid, set_resolution
from sepgconv.grids._relative import Relative, relative_elements

__all__ = [
    "Axis",
    "Grid",
    "Relative",
    "relative_elements",
    "scale1",
    "scale2",
    "se2",
    "set_resolution",
    "sim2",
    "translation2",
]
