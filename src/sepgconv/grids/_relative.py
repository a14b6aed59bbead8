"""Tables of the relative elements h⁻¹h̃ between two samplings."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sepgconv.grids._axis import SAME, Axis


@dataclass(frozen=True)
class Relative:
    """The distinct elements h⁻¹h̃ between two samplings of one part of H, and where each pair finds its own.

    `weight` is the volume of a cell for pairs that a kernel sees, zero for the others. The structure that plans make
    use of is found in the table, whatever the group.
    """

    elements: Float[Tensor, "n dim"]
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
    def dihedral(self) -> bool:
        """Whether it is the table of n rotations and their n mirror images: (f, a)⁻¹(g, b) = (f + g, ±(b − a))."""
        rows, columns = self.index.shape
        if rows != columns or rows % 2 or self.weight.unique().numel() > 1:
            return False
        places = torch.arange(rows, device="cpu")
        mirror, angle = places // (rows // 2), places % (rows // 2)
        turned = (1 - 2 * mirror)[:, None] * (angle[None] - angle[:, None]) % (rows // 2)
        flipped = (mirror[:, None] + mirror[None]) % 2
        return torch.equal(self.index, self.index[0][flipped * (rows // 2) + turned])

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
    """The products h⁻¹h̃ of unshifted elements, each distinct one once; equal ones are told by their matrices.

    Pairs beyond the kernel's support get weight zero; the others the volume of a cell.
    """
    group = source.group
    pairs = group.product(group.inverse(target.elements)[:, None], source.elements[None])
    active = torch.ones(pairs.shape[:2], dtype=torch.bool, device="cpu")
    if source.support is not None:
        active = group.coordinates(pairs).abs().amax(-1) <= source.support * (1 + 1e-6)
    found = pairs[active]
    number, firsts = distinct(group.matrix(found).flatten(1))
    index = torch.zeros(pairs.shape[:2], dtype=torch.long, device="cpu")
    index[active] = number
    return Relative(found[firsts], index, active.double() * source.weight)


def distinct(rows: Float[Tensor, "n m"]) -> tuple[Int[Tensor, "n"], Int[Tensor, "k"]]:
    """Rows that are equal but for rounding: the number of each one's kind, and the first row of every kind.

    Rows are laid along a line by weights that no two of them share by chance, and told apart where there is a gap:
    rounding to a lattice would split those that fall on a border of it.
    """
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device="cpu").sqrt().add(math.e / 3)
    line, order = (rows @ weights).sort(stable=True)
    gaps = line.diff() > 1e-10 * line.abs().max().clamp_min(1)
    number = torch.empty_like(order)
    number[order] = torch.cat([gaps.new_zeros(1), gaps]).cumsum(0)
    places = torch.arange(len(rows), device="cpu")
    firsts = places.new_full((int(gaps.sum()) + 1,), len(rows)).scatter_reduce(0, number, places, "amin")
    if (rows - rows[firsts][number]).abs().max() > SAME * rows.abs().max().clamp_min(1):
        raise ValueError("two relative elements of the grids differ by less than rounding: sample fewer elements")
    return number, firsts
