"""Samplings of the subgroup H, on which features live."""

from sepgconv.grids._axis import Axis
from sepgconv.grids._factories import (
    GRIDS,
    e2,
    scale1,
    scale2,
    scale3,
    se2,
    se3,
    sim2,
    translation1,
    translation2,
    translation3,
)
from sepgconv.grids._grid import Grid, set_resolution
from sepgconv.grids._relative import Relative, relative_elements

__all__ = [
    "GRIDS",
    "Axis",
    "Grid",
    "Relative",
    "e2",
    "relative_elements",
    "scale1",
    "scale2",
    "scale3",
    "se2",
    "se3",
    "set_resolution",
    "sim2",
    "translation1",
    "translation2",
    "translation3",
]
