"""Sums over the subgroup as matrix products."""

import math
from collections.abc import Sequence
from functools import cache

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native import POINTS, circular_product, status
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways.base import Way, filled


class Product(Way):
    """Σ over h̃ and i as one matrix product; the summed parts are the innermost ones."""

    rate, name = 0.065, "one matrix product"

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        self.inner = tuple(sizes.target[part] for part in contraction.parts)
        o, h = " ".join(self.o), " ".join(self.h)
        self.pattern = f"{o} {h} 1 i j -> ({o} j) ({h} i)"

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether the parts are innermost and i becomes j."""
        rank = len(sizes.target)
        innermost = tuple(range(rank - len(contraction.parts), rank))
        return not contraction.spatial and contraction.mixes and contraction.parts == innermost

    @property
    def moved(self) -> float:
        """Both ends."""
        return self.ends

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """`(o… j) (h… i)`."""
        return (rearrange(kernel, self.pattern),)

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """One product of all rows with the matrix, `… h… i 1 -> … o… 1 j`."""
        rows = F.linear(state.flatten(state.ndim - 2 - len(self.inner)), weights[0])
        return rows.unflatten(-1, (*self.inner, 1, rows.shape[-1] // math.prod(self.inner)))


@cache
def real_fourier(count: int) -> tuple[tuple[float, ...], ...]:
    """The orthonormal real Fourier basis over a circle of n points, one function a row, the rows in pairs.

    First 1/√n and (−1)^θ/√n, then √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, …; for odd n the second row
    is zero. Plain numbers: a tensor that is kept for the whole process would belong to a device and a mode.
    """
    circle, size = range(count), math.sqrt(2 / count)
    last = [math.cos(math.pi * n) / math.sqrt(count) if count % 2 == 0 else 0.0 for n in circle]
    rows = [[1 / math.sqrt(count)] * count, last]
    for frequency in range(1, (count + 1) // 2):
        angles = [2 * math.pi * (frequency * n % count) / count for n in circle]
        rows += [[size * math.cos(a) for a in angles], [size * math.sin(a) for a in angles]]
    return tuple(map(tuple, rows))


class Fourier(Product):
    """A matrix product whose outermost part is a circle: block-diagonal in a real Fourier basis over it.

    k(h⁻¹h̃) depends on the difference of two angles only: it is circulant, whatever the shifts of the grids. With
    a_f = Σ_d k(d)·cos(2πfd/n) and b_f = Σ_d k(d)·sin(2πfd/n), the cosine and sine coefficients (c, s) of frequency f
    become (c·a_f + s·b_f, s·a_f − c·b_f): n/2 blocks of 2×2 instead of n×n products.
    """

    name, points = "blocks in a Fourier basis", POINTS

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        self.first = contraction.parts[0]
        self.count = sizes.source[self.first]
        o, h, first = " ".join(self.o), self.h, self.h[self.first]
        inner = " ".join(name for name in h if name != first)
        self.pattern = f"{o} {' '.join(h)} 1 i j -> {first} ({inner} i) ({o} j)"
        self.compiled = self.count in self.points and status().active
        self.rate = 0.0235 if self.compiled else 0.037

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether the outermost of the summed parts is a circle of more than two elements."""
        if not contraction.parts or not Product.fits(contraction, sizes):
            return False
        first = contraction.parts[0]
        return sizes.circulant[first] and sizes.source[first] > 2

    @property
    def moved(self) -> float:
        """Both ends; several times where transforms are no part of the product."""
        return self.ends * (1 if self.compiled else 5.5)

    @property
    def work(self) -> float:
        """The blocks, and the two transforms."""
        return super().work * self._share + self.count * self.ends

    @property
    def paid(self) -> float:
        """Compiled, the blocks alone, of whole panels: transforms are hidden behind reading and writing."""
        if not self.compiled:
            return self.work
        sizes, parts = self.sizes, self.contraction.parts
        outside = math.prod(n for part, n in enumerate(sizes.source) if part not in parts)
        sides = zip((sizes.source, sizes.target), sizes.channels, strict=True)
        panels = [filled(math.prod(side[part] for part in parts[1:]) * channels) for side, channels in sides]
        return outside * self.count**2 * self._share * math.prod(panels)

    @property
    def _share(self) -> float:
        """Of all pairs of elements that are left in the basis."""
        return 4 * ((self.count + 1) // 2) / self.count**2

    def row(self, kernel: Tensor) -> Tensor:
        """The kernel at the first output element, which says it all, `(h, in, out)`."""
        return rearrange(kernel.narrow(self.first, 0, 1), self.pattern)

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """Two matrices `(in, out)` per pair of waves, a and b, and a_0 and a_{n/2} for the first; and the basis."""
        offsets = self.row(kernel)
        basis = torch.tensor(real_fourier(self.count), dtype=offsets.dtype, device=offsets.device)
        sizes = [math.sqrt(self.count)] * 2 + [math.sqrt(self.count / 2)] * (len(basis) - 2)
        waves = basis * torch.tensor(sizes, dtype=basis.dtype, device=basis.device)[:, None]
        return torch.tensordot(waves, offsets, dims=1).unflatten(0, (-1, 2)), basis

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """Transforms, multiplies block by block, transforms back."""
        rows = state.flatten(state.ndim - 1 - len(self.inner))  # … n, all that is inside
        result = circular_product(rows, *weights, native=native)
        return result.unflatten(-1, (*self.inner[1:], 1, self.sizes.channels[1]))
