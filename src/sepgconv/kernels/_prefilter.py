"""Band-limited kernels: a low-pass filter between a kernel network and the pixels.

A kernel k is evaluated on a lattice of half pixels, multiplied by its window there, and spread by a round filter φ:
k̃(u) = Σ_m φ(u − u_m) · w(u_m) · k(u_m). It is a function of u = h⁻¹x like any other, so that nothing changes for the
group; and it has no frequencies but those that φ lets through. Lattice and filter are fixed in the coordinates of k,
their sizes in pixels hold at the smallest scale: fixed in pixels at every scale, each would have another kernel.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.kernels._window import ball

SPACING = 0.5
"""Distance between the points of the lattice, in pixels at the smallest scale."""


@dataclass(frozen=True)
class Prefilter:
    """The filter of one kernel.

    Args:
        cutoff: frequency in cycles per pixel at the smallest scale, of which about a half gets through.
        radius: of the kernel's ball, in pixels at the smallest scale.
        space: number of spatial dimensions.
    """

    cutoff: float
    radius: float
    space: int

    def __post_init__(self) -> None:
        if self.reach >= self.radius:
            raise ValueError(
                f"cutoff={self.cutoff:g} needs a filter that reaches {self.reach:.3g} pixels, but the kernel ends "
                f"after {self.radius:.3g} at its smallest scale; take a cutoff above {0.5 / self.radius:.3g}, or a "
                "larger kernel"
            )

    @property
    def reach(self) -> float:
        """Radius of φ in pixels: half a period of the cut-off. The kernel's own ball is so much smaller."""
        return 0.5 / self.cutoff

    @property
    def lattice(self) -> Float[Tensor, "m d"]:
        """The points u_m at which the window is not 0, where the kernel's own ball ends at 1."""
        return self._points(self.radius - self.reach) / self.radius

    def window(self, radius: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """The smaller ball, whose edge is a pixel wide if it can be."""
        within = self.radius - self.reach
        return ball(radius * (self.radius / within), min(1 / within, 1.0))

    @cached_property
    def total(self) -> float:
        """Sum of φ over the lattice around a point."""
        return ball(self._points(self.reach).norm(dim=-1) / self.reach, 1.0).sum().item()

    def _points(self, radius: float) -> Float[Tensor, "m d"]:
        """The lattice within a ball, in pixels."""
        count = int(radius / SPACING)
        line = SPACING * torch.arange(-count, count + 1, dtype=torch.float64, device="cpu")
        points = torch.stack(torch.meshgrid(*[line] * self.space, indexing="ij"), -1).flatten(0, -2)
        return points[points.norm(dim=-1) < radius]

    def spread(self, positions: Float[Tensor, "*o k d"], lattice: Float[Tensor, "m d"]) -> Float[Tensor, "*o k m"]:
        """φ between positions and the points of the lattice."""
        distance = (positions.unsqueeze(-2) - lattice).square().sum(-1).sqrt()
        return ball(distance * (self.radius / self.reach), 1.0) / self.total


def filtered(spread: Float[Tensor, "*o k m"], values: Float[Tensor, "*o_h m c"]) -> Float[Tensor, "*o_h k c"]:
    """Σ_m φ(u − u_m)·values, in float64: a quarter turn changes the order of sums, and must not change a bit.

    Values are those of every output and input element `(o…, h…, m, c)`, or the same for all of them `(m, c)`.
    """
    wide = values.double()
    if values.ndim == 2:
        return (spread.double() @ wide).to(values)
    rank = spread.ndim - 2
    return (spread.double().reshape(*spread.shape[:-2], *(1,) * rank, *spread.shape[-2:]) @ wide).to(values)
