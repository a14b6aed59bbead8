"""Sums over rotations and mirrors as matrix products, in the basis of the dihedral group's representations."""

import math
from functools import cache

import torch
from torch import Tensor

from sepgconv.execution.native import MIRRORED
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways.product import Fourier, Product


@cache
def dihedral_waves(count: int) -> tuple[tuple[float, ...], ...]:
    """Entries of the real irreducible representations at n rotations and their n mirror images, one a row, in pairs.

    First the signs: 1 and the mirror's sign; for even n also (−1)^a and the product of both. Then, for each frequency
    f, the rows (cos, ∓sin) and (sin, ±cos) of the matrix R(fθ)·diag(1, ±1), lower signs after a mirror.
    """
    elements = [(a, sign) for sign in (1.0, -1.0) for a in range(count)]
    rows = [[1.0 for _ in elements], [sign for _, sign in elements]]
    if count % 2 == 0:
        rows += [[(-1.0) ** a for a, _ in elements], [sign * (-1.0) ** a for a, sign in elements]]
    for frequency in range(1, (count + 1) // 2):
        angles = [2 * math.pi * (frequency * a % count) / count for a, _ in elements]
        signs = [sign for _, sign in elements]
        rows += [[math.cos(t) for t in angles], [-s * math.sin(t) for t, s in zip(angles, signs, strict=True)]]
        rows += [[math.sin(t) for t in angles], [s * math.cos(t) for t, s in zip(angles, signs, strict=True)]]
    return tuple(map(tuple, rows))


class Dihedral(Fourier):
    """A matrix product whose outermost part is a circle with its mirror image: block-diagonal in a basis over both.

    For a representation ρ the coefficients F = Σ f(h̃)ρ(h̃) become F·K with K = Σ k(u)ρ(u)ᵀ over u = h⁻¹h̃. Both rows
    of a 2×2 matrix F are multiplied by the same K: as many blocks, of the same size, as for a circle of 2n elements.
    """

    name, points = "blocks in a dihedral basis", MIRRORED

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether the outermost of the summed parts has rotations and then their mirror images."""
        if not contraction.parts or not Product.fits(contraction, sizes):
            return False
        first = contraction.parts[0]
        return sizes.dihedral[first] and sizes.source[first] > 2

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """One block `(in, out)` per pair of functions: two numbers for two signs, Kᵀ for a row of F; and the basis."""
        offsets = self.row(kernel)
        waves = torch.tensor(dihedral_waves(self.count // 2), dtype=offsets.dtype, device=offsets.device)
        moments = torch.tensordot(waves, offsets, dims=1)  # function, in, out
        signs = 2 if self.count % 4 else 4
        flat = [torch.block_diag(*pair) for pair in moments[:signs].unflatten(0, (-1, 2))]
        square = moments[signs:].unflatten(0, (-1, 2, 2))  # frequency, s, t, in, out: from t to s
        square = square.permute(0, 2, 3, 1, 4).flatten(3, 4).flatten(1, 2)
        blocks = torch.cat([torch.stack(flat), square.repeat_interleave(2, 0)])
        return blocks, waves / waves.square().sum(1, keepdim=True).sqrt()
