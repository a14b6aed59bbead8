"""Tables of the relative elements h⁻¹h̃ between two samplings."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sepgconv.grids._axis import Axis


@dataclass(frozen=True)
class Relative:
    """The distinct offsets log(h⁻¹h̃) between two samplings of one part of H, and where each pair finds its own.

    `weight` is the volume of a cell for pairs that a kernel sees, zero for the others.
    """

    values: Float[Tensor, "offsets"]
    index: Int[Tensor, "o h"]
    weight: Float[Tensor, "o h"]

    @property
    def circulant(self) -> bool:
        """Whether an entry depends on the difference of two positions modulo their number only."""
        rows, columns = self.index.shape
        if rows != columns:
            return False
        rolled = [torch.stack([t[0].roll(n) for n in range(rows)]) for t in (self.index, self.weight)]
        return torch.equal(rolled[0], self.index) and torch.equal(rolled[1], self.weight)

    @property
    def band(self) -> int | None:
        """How many neighbours on either side a kernel sees; None where entries are not those of a difference h − o."""
        rows, columns = self.index.shape
        if rows != columns:
            return None
        for table in (self.index.masked_fill(self.weight == 0, -1), self.weight):
            if not torch.equal(table[1:, 1:], table[:-1, :-1]):
                return None
        seen = self.weight[0].nonzero().flatten()
        return int(seen.max()) if len(seen) else 0


def relative_elements(source: Axis, target: Axis) -> Relative:
    """Offsets between unshifted axes: circulant on a period, Toeplitz and banded on R⁺, each evaluated once.

    Pairs beyond the kernel's support get weight zero; the others the volume of a cell.
    """
    pairs = source.points[None, :] - target.points[:, None]
    pairs = source.group.log(source.group.exp(pairs[..., None]))[..., 0]
    # Rounding decides on which side of the cut an offset of π falls: all of them take the positive one.
    unit = min(source.cell, target.cell) or 1.0
    fine = math.factorial(12)  # offsets are rational multiples of a cell: these keys are whole for all small ones
    keys = torch.round(pairs / unit * fine).long()
    if source.group.period:
        period = round(source.group.period / unit * fine)
        keys = torch.where(2 * keys <= -period + 2, keys + period, keys)
        pairs = torch.where(pairs < -math.pi + 1e-9, pairs + source.group.period, pairs)
    support = math.inf if source.support is None else source.support * (1 + 1e-6)
    active = pairs.abs() <= support
    distinct, inverse = torch.unique(keys[active], return_inverse=True)
    values = torch.zeros(len(distinct), dtype=torch.float64, device="cpu")
    values[inverse] = pairs[active]
    index = torch.zeros_like(keys)
    index[active] = inverse
    return Relative(values, index, active.double() * source.weight)
