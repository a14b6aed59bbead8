"""Sums over one part of the subgroup as convolutions along it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sepgconv.execution.native import banded_product, depthwise, status
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways.base import Way, filled
from sepgconv.execution.ways.product import Product


class Along(Way):
    """Σ over h̃ for each channel by itself: a depthwise convolution along one part of H.

    Along a circle the kernel is laid out over twice its period, so that the convolution needs no wrapped copy.
    """

    rate, name = 0.4, "a depthwise convolution along h"

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        self.part = contraction.parts[0]
        count = sizes.source[self.part]
        band = sizes.band[self.part]
        self.neighbours = count - 1 if sizes.circulant[self.part] or band is None else band

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether one part is summed over, whose entries are those of a difference, and no channel."""
        if contraction.spatial or contraction.before != contraction.after or len(contraction.parts) != 1:
            return False
        part = contraction.parts[0]
        return sizes.circulant[part] or sizes.band[part] is not None

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """The kernel at all differences of two positions, `(d, i, j)`."""
        shape = kernel.shape[self.part], kernel.shape[self.rank + self.part], *kernel.shape[-2:]
        pairs, width = kernel.reshape(shape), self.neighbours + 1
        return (torch.cat([pairs[1:width, 0].flip(0), pairs[0, :width]]),)

    def _images(self, state: Tensor) -> Tensor:
        """Images `(b, all that is inside, all that is outside, h)`."""
        axis = state.ndim - 2 - self.rank + self.part
        outer, inner = math.prod(state.shape[1:axis]), math.prod(state.shape[axis + 1 :])
        return state.reshape(state.shape[0], outer, state.shape[axis], inner).permute(0, 3, 1, 2)

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """A convolution of images whose channels are all that is inside."""
        inner = state.shape[state.ndim - 1 - self.rank + self.part :]
        kernel = weights[0].expand(-1, *state.shape[-2:])
        kernel = kernel.reshape(len(kernel), *(1,) * (len(inner) - 2), *kernel.shape[1:]).expand(-1, *inner)
        kernel = kernel.reshape(len(kernel), 1, 1, math.prod(inner)).permute(3, 1, 2, 0)
        result = depthwise(self._images(state), kernel, 1, (0, self.neighbours), native=native)
        return result.permute(0, 2, 3, 1).reshape(state.shape)


class Band(Along):
    """Σ over h̃ and i along the last part of H, on which kernels see only a few elements.

    k(h⁻¹h̃) is Toeplitz and banded there: an ordinary convolution along the h axis, from i to j channels.
    """

    name = "a convolution along h"

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        self.compiled = status().active
        self.rate = 0.055 if self.compiled else 0.017

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether the last part is all that is summed over, and its kernels are local."""
        last = len(sizes.target) - 1
        local = last >= 0 and sizes.band[last] is not None and not sizes.circulant[last]
        return local and contraction.parts == (last,) and Product.fits(contraction, sizes)

    @property
    def work(self) -> float:
        """Pairs within the band."""
        return self.pairs * math.prod(self.sizes.channels)

    @property
    def paid(self) -> float:
        """Compiled, channels are filled up on both sides."""
        return self.pairs * math.prod(map(filled, self.sizes.channels)) if self.compiled else self.work

    @property
    def moved(self) -> float:
        """A stock convolution waits for memory."""
        return 0 if self.compiled else 3 * self.ends

    @property
    def pairs(self) -> int:
        """Of elements that see each other."""
        n = self.neighbours
        return math.prod(self.sizes.source[:-1]) * (self.sizes.source[-1] * (2 * n + 1) - n * (n + 1))

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """All neighbours of an element lie side by side: one product with rows that overlap."""
        return banded_product(state.squeeze(-1), weights[0], native=native).unsqueeze(-2)
