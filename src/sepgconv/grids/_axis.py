"""One sampled one-parameter part of H."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups import Group

SAMPLINGS = ("fixed", "random")


@dataclass(frozen=True)
class Axis:
    """One one-parameter part of H, sampled at `count` equidistant points of its Lie algebra.

    A compact part covers its period; a non-compact one the interval [0, extent]. `support` limits how far a kernel
    sees along the axis, in units of the algebra (None: everywhere).
    """

    group: Group
    count: int
    extent: float
    sampling: str = "fixed"
    support: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise ValueError(f"{self.keyword} must be a whole number of at least 1, got {self.count!r}")
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}; got {self.sampling!r}")
        if self.group.period is None and self.count > 1 and self.extent <= 0:
            raise ValueError(
                f"max_{self.group.name} must be greater than 1 for {self.count} {self.keyword}, "
                f"got {math.exp(self.extent):g}"
            )

    @property
    def keyword(self) -> str:
        """The name by which users set the count: `rotations`, `scales`."""
        return f"{self.group.name}s"

    @property
    def cell(self) -> float:
        """Distance between neighbouring elements, in the algebra."""
        return self.extent / (self.count if self.group.period else max(self.count - 1, 1))

    @property
    def farthest(self) -> float:
        """The largest offset that a kernel sees; coordinates are scaled by it to [−1, 1]."""
        return self.support or self.extent / 2

    @property
    def weight(self) -> float:
        """Volume of a cell relative to the volume that a kernel sees: sums over H become integrals.

        A single scale without extent has no volume; its sum has one term, of weight one.
        """
        return self.cell / self.support if self.support and self.cell else 1 / self.count

    @property
    def points(self) -> Float[Tensor, "count"]:
        """The unshifted elements' algebra coordinates, in float64 and on the CPU."""
        return torch.arange(self.count, dtype=torch.float64, device="cpu") * self.cell
