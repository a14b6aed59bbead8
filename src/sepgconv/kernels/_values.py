"""Values of a kernel's factors on a grid."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "*#o_h_k #i #j"]
"""A term's values `(o…, h…, k, i, j)`: output and input elements (one axis each per part of H), spatial taps, channels;
axes on which the term is constant have length 1."""


def multiply(values: Sequence[Values]) -> Values:
    """The product of factors, broadcast over the axes on which each is constant."""
    return math.prod(values[1:], start=values[0])


def run(columns: list[int]) -> slice | list[int]:
    """Columns that lie side by side as a slice, which no device has to be told about."""
    run = slice(columns[0], columns[-1] + 1)
    return run if columns == list(range(run.start, run.stop)) else columns
