"""One sampled part of H."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sepgconv.groups import Group, OneParameter

SAMPLINGS = ("fixed", "random")
SAME = 1e-6
"""Distance of two matrices below which they are those of one element."""


@dataclass(frozen=True)
class Axis:
    """One part of H, and how it is sampled.

    Args:
        group: the part.
        count: how finely it is sampled: the number of rotations or scales.
        extent: length of a truncated grid in units of the part's coordinate; a compact part covers itself.
        sampling: `random` shifts the grid in training, `fixed` does not.
        support: how far a kernel sees along a truncated axis, in the same units (None: everywhere).
    """

    group: Group
    count: int
    extent: float = 0.0
    sampling: str = "fixed"
    support: float | None = None

    def __post_init__(self) -> None:
        name, counts = self.keyword, self.group.counts
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {self.count!r}")
        if counts and self.count not in counts:
            raise ValueError(f"{name} must be one of {', '.join(map(str, counts))}, got {self.count}")
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}; got {self.sampling!r}")
        if not self.group.compact and self.count > 1 and not self.extent > 0:
            raise ValueError(f"{self.count} {name} need an extent greater than 0, got {self.extent:g}")

    @property
    def keyword(self) -> str:
        """The name by which users set the count: `rotations`, `scales`."""
        return self.group.keyword

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.elements)

    @property
    def elements(self) -> Float[Tensor, "h dim"]:
        """The unshifted elements, in float64 and on the CPU."""
        return self.group.sample(self.count, self.extent)

    @property
    def cell(self) -> float:
        """Distance between neighbouring elements, where they lie on a line or a circle."""
        return self.group.cell(self.count, self.extent)

    @property
    def farthest(self) -> float:
        """How far a kernel sees along a truncated axis."""
        return self.support or self.extent or 1.0

    @property
    def weight(self) -> float:
        """Volume of a cell relative to the volume that a kernel sees: sums over H become integrals.

        A single scale without extent has no volume; its sum has one term, of weight one.
        """
        return self.cell / self.support if self.support and self.cell else 1 / self.size

    def several(self, count: int) -> Float[Tensor, "h dim"]:
        """Elements from end to end, however finely the axis is sampled."""
        return self.group.sample(self.group.counts[0] if self.group.counts else count, self.extent)

    def coordinates(self, elements: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch c"]:
        """What kernels see of relative elements, scaled to [−1, 1]."""
        ranges = [c.range or self.farthest for c in self.group.seen for _ in range(c.columns)]
        if len(set(ranges)) == 1:
            return self.group.coordinates(elements) / ranges[0]
        return self.group.coordinates(elements) / torch.tensor(ranges).to(elements)

    def places(self, element: Float[Tensor, "dim"]) -> Int[Tensor, "h"] | None:
        """Where each h finds g⁻¹h among the elements, −1 beyond a truncated grid; None if g falls between them."""
        group, elements = self.group, self.elements
        moved = group.matrix(group.product(group.inverse(element.double()), elements)).flatten(1)
        distance = (moved[:, None] - group.matrix(elements).flatten(1)[None]).abs().amax(-1)
        closest, places = distance.min(1)
        found = closest < 100 * SAME * moved.abs().amax(-1).clamp_min(1)
        if not found.any() and not group.compact and isinstance(group, OneParameter):  # all are beyond, or between
            steps = (group.log(element.double())[0] / (self.cell or 1.0)).item()
            return None if abs(steps - round(steps)) > 1e-4 else places.fill_(-1)
        if not found.any() or (group.compact and not found.all()):
            return None
        return places.masked_fill(~found, -1)
