"""What all ways have in common.

The state that they work on is `(b, y, x, h…, i, j)` in memory, where a channel index that is not there has length 1.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from sepgconv.execution.sizes import Contraction, Sizes

MOVE = 0.9
"""Nanoseconds, forward and backward on one core, to read or write a number; each way has its `rate` per multiply-add.

All were measured on AVX-512 (docs/speed.md); only their ratios matter, and a wrong one costs time, never correctness.
"""
PANEL = 32
"""Channels that a compiled product takes at once, two vectors of AVX-512: fewer take as long."""
LAUNCH, BUILD = 1e6, 18.0
"""Nanoseconds, forward and backward, that a contraction takes however few the pixels; and per entry of its kernel."""


class Way:
    """One way to take a contraction.

    Args:
        contraction: what to sum over.
        sizes: of the convolution.
    """

    rate: float
    name: str

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        self.contraction, self.sizes = contraction, sizes
        self.rank = len(sizes.target)
        self.o = [f"o{part}" for part in range(self.rank)]
        self.h = [f"h{part}" for part in range(self.rank)]

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whether it gives the right result."""
        raise NotImplementedError

    @property
    def work(self) -> float:
        """Multiply-adds per pixel: by default those of all pairs of elements."""
        sizes, parts = self.sizes, self.contraction.parts
        width = sizes.width("".join({*self.contraction.before, *self.contraction.after}))
        pairs = [n * (sizes.target[part] if part in parts else 1) for part, n in enumerate(sizes.source)]
        return math.prod([width, *pairs])

    @property
    def paid(self) -> float:
        """Multiply-adds per pixel that take time: more than `work` where channels are filled up to a panel."""
        return self.work

    @property
    def ends(self) -> int:
        """Numbers per pixel before and after."""
        before, after = (self.sizes.width(labels) for labels in self.contraction[3:])
        return math.prod(self.sizes.source) * before + math.prod(self.sizes.target) * after

    @property
    def moved(self) -> float:
        """Numbers per pixel that are read or written, where the rate does not count them."""
        return 0

    @property
    def entries(self) -> float:
        """Numbers in the kernel that it needs."""
        return 0

    def nanoseconds(self, pixels: int) -> float:
        """What it is expected to take on a CPU, forward and backward."""
        return LAUNCH + BUILD * self.entries + pixels * (self.rate * self.paid + MOVE * self.moved)

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """Weights from the contraction's kernel `(o…, h…, k, i, j)`, whose constant axes have length 1."""
        raise NotImplementedError

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """The next state; `native` says whether compiled kernels may be used."""
        raise NotImplementedError


def filled(channels: int) -> int:
    """Channels of whole panels."""
    return math.ceil(channels / PANEL) * PANEL
