"""Grids: samplings of the subgroup H on which features live, and who moves them."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.groups import SO2, Dilation, Group, Trivial, direct_product

SAMPLINGS = ("fixed", "random")


@dataclass(frozen=True)
class Axis:
    """One one-parameter part of H, sampled at `count` equidistant points of its Lie algebra.

    A compact part covers its period; a non-compact one the interval [0, extent]. `support` limits how far a kernel
    reaches along the axis, in units of the algebra (None: everywhere).
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
    def reach(self) -> float:
        """The largest offset that a kernel sees; coordinates are scaled by it to [−1, 1]."""
        return self.support or self.extent / 2

    @property
    def weight(self) -> float:
        """Volume of a cell relative to the volume that a kernel sees: sums over H become integrals.

        A single scale without extent has no volume; its sum has one term, of weight one.
        """
        return self.cell / self.support if self.support and self.cell else 1 / self.count

    def neighbours(self, source: "Axis | None") -> int | None:
        """How many elements on either side a kernel from another sampling sees; None if the two are not alike."""
        if source is None or source.count != self.count:
            return None
        if self.support is None or self.count == 1:
            return self.count - 1
        return min(math.floor(self.support * (1 + 1e-6) / self.cell), self.count - 1)

    @property
    def points(self) -> Float[Tensor, "count"]:
        """The unshifted elements' algebra coordinates, in float64."""
        return torch.arange(self.count, dtype=torch.float64) * self.cell


class Grid(nn.Module):
    """A sampling of H, shared by the layers whose features live on it.

    The elements are h_ε·h for h in an equidistant grid. An axis sampled at random gets a new shift ε, uniform over one
    cell, whenever a layer that produces features on the grid runs in training mode; in `eval()` ε is the identity.
    Element number (…, p, q) of several axes stands at position p·count_q + q of a feature's h axis.

    Args:
        space: dimension d of the space that H acts on.
        axes: the sampled one-parameter parts of H; none for the plain translation group.
    """

    offset: Tensor

    def __init__(self, space: int, axes: tuple[Axis, ...] = ()) -> None:
        super().__init__()
        if space not in (1, 2, 3):
            raise ValueError(f"space must be 1, 2 or 3 dimensions, got {space!r}")
        self.axes = tuple(axes)
        self.group = direct_product(*(axis.group for axis in axes)) if axes else Trivial(space)
        if self.group.space != space:
            raise ValueError(f"{self.group.name} acts on R^{self.group.space}, but the grid's space is R^{space}")
        self.register_buffer("offset", torch.zeros(len(axes)), persistent=False)

    @property
    def space(self) -> int:
        """Dimension d of the space that H acts on."""
        return self.group.space

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""
        return tuple(axis.count for axis in self.axes)

    @property
    def size(self) -> int:
        """|H|: the length of a feature's h axis."""
        return math.prod(self.shape)

    @property
    def reach(self) -> float:
        """How much the largest element of the grid widens a kernel: max_scale, and 1 for rotations."""
        return math.prod((math.exp(axis.extent) for axis in self.axes if axis.group.period is None), start=1.0)

    @property
    def nominal(self) -> Float[Tensor, "h dim"]:
        """The elements without the shift, in float64 and on the CPU."""
        if not self.axes:
            return torch.zeros(1, 0, dtype=torch.float64)
        points = torch.meshgrid(*(axis.points for axis in self.axes), indexing="ij")
        return self.group.exp(torch.stack([p.flatten() for p in points], -1))

    @property
    def elements(self) -> Float[Tensor, "h dim"]:
        """The current elements, shift included."""
        return self.group.product(self.group.exp(self.offset), self.nominal.to(self.offset))

    def resample(self) -> None:
        """Draws a new shift for every axis that is sampled at random."""
        if any(axis.sampling == "random" for axis in self.axes):
            cells = [axis.cell * (axis.sampling == "random") for axis in self.axes]
            shift = torch.rand_like(self.offset) - 0.5
            self.offset.copy_(shift * torch.tensor(cells, dtype=shift.dtype, device=shift.device))

    def train(self, mode: bool = True) -> "Grid":
        """As in `nn.Module`; entering `eval()` moves the grid back to its unshifted elements."""
        if not mode:
            self.offset.zero_()
        return super().train(mode)

    def set_resolution(self, **counts: int) -> None:
        """Changes how many elements are sampled, e.g. `set_resolution(rotations=16)`; extents and supports stay."""
        known = {axis.keyword for axis in self.axes}
        if unknown := set(counts) - known:
            raise ValueError(f"this grid has {sorted(known) or 'no axes'}, got {sorted(unknown)}")
        self.axes = tuple(replace(axis, count=counts.get(axis.keyword, axis.count)) for axis in self.axes)
        self.offset.zero_()

    def extra_repr(self) -> str:
        """Counts and sampling of every axis."""
        axes = [f"{axis.keyword}={axis.count} ({axis.sampling})" for axis in self.axes]
        return ", ".join([f"space={self.space}", *axes])


def _rotations(space: int, count: int, sampling: str) -> Axis:
    return Axis(SO2(space), count, 2 * math.pi, sampling)


def _scales(space: int, count: int, max_scale: float, sampling: str, support: int) -> Axis:
    if isinstance(max_scale, bool) or not isinstance(max_scale, int | float) or not math.isfinite(max_scale):
        raise ValueError(f"max_scale must be a finite number, got {max_scale!r}")
    if max_scale < 1:
        raise ValueError(f"max_scale must be at least 1 (greater than 1 for several scales), got {max_scale!r}")
    if not isinstance(support, int) or isinstance(support, bool) or support < 1:
        raise ValueError(f"scale_support must be a whole number of neighbours, at least 1, got {support!r}")
    axis = Axis(Dilation(space), count, math.log(max_scale), sampling)
    return replace(axis, support=support * (axis.cell or 1.0))


def se2(rotations: int = 8, *, sampling: str = "random") -> Grid:
    """SE(2): rotations and translations of the plane."""
    return Grid(2, (_rotations(2, rotations, sampling),))


def scale2(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R² ⋊ R⁺: dilations and translations of the plane, scales from 1 to `max_scale`.

    A kernel reaches over `scale_support` neighbouring scales on either side.
    """
    return Grid(2, (_scales(2, scales, max_scale, sampling, scale_support),))


def sim2(
    rotations: int = 8,
    scales: int = 4,
    max_scale: float = 3**0.5,
    *,
    sampling: str = "random",
    scale_sampling: str = "fixed",
    scale_support: int = 1,
) -> Grid:
    """Sim(2): rotations, dilations and translations of the plane; `sampling` is that of the rotations."""
    rotation = _rotations(2, rotations, sampling)
    return Grid(2, (rotation, _scales(2, scales, max_scale, scale_sampling, scale_support)))


def translation2() -> Grid:
    """Translations of the plane: H is trivial, the network a plain CNN."""
    return Grid(2)


def scale1(scales: int = 4, max_scale: float = 3**0.5, *, sampling: str = "fixed", scale_support: int = 1) -> Grid:
    """R ⋊ R⁺: dilations and translations of 1-D signals."""
    return Grid(1, (_scales(1, scales, max_scale, sampling, scale_support),))


def set_resolution(model: nn.Module, **counts: int) -> None:
    """Samples a (trained) model's groups at another resolution, e.g. `set_resolution(model, rotations=16)`.

    Kernels are continuous functions on the group, so the same weights serve every resolution.
    """
    grids = [module for module in model.modules() if isinstance(module, Grid)]
    known = {axis.keyword for grid in grids for axis in grid.axes}
    if not counts or set(counts) - known:
        raise ValueError(
            f"set_resolution takes {sorted(known) or 'nothing: the model has no grid'}, got {sorted(counts)}"
        )
    for grid in grids:
        keywords = {axis.keyword for axis in grid.axes}
        grid.set_resolution(**{keyword: count for keyword, count in counts.items() if keyword in keywords})
