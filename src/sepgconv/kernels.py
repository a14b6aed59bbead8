"""Kernels on G = R^d ⋊ H: where they are supported, and their values on a grid."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sepgconv.factors import Factor, Term
from sepgconv.grids import Axis, Grid
from sepgconv.initialisation import initialise
from sepgconv.siren import KernelConfig, KernelNetwork

Values = Float[Tensor, "*#o_h_k #i #j"]
"""A term's values `(o…, h…, k, i, j)`: output and input elements (one axis each per part of H), spatial taps, channels;
axes on which the term is constant have length 1."""

UNIT = 4.0
"""What a factor's network counts in. Its weights are then about 0.2 at init, for which Adam's usual steps are right."""


@dataclass(frozen=True)
class RelativeOffsets:
    """The distinct offsets log(h⁻¹h̃) between two samplings of one part of H, and where each pair finds its own."""

    values: Float[Tensor, "offsets"]
    index: Int[Tensor, "o h"]
    weight: Float[Tensor, "o h"]


def relative_offsets(source: Axis, target: Axis) -> RelativeOffsets:
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
    values = torch.zeros(len(distinct), dtype=torch.float64)
    values[inverse] = pairs[active]
    index = torch.zeros_like(keys)
    index[active] = inverse
    return RelativeOffsets(values, index, active.double() * source.weight)


def ball(radius: Float[Tensor, "*s"], edge: float) -> Float[Tensor, "*s"]:
    """A ball with a smooth edge, as a function of the distance from its centre: 1 up to 1 − edge, 0 from 1 on."""
    return 0.5 + 0.5 * torch.cos(math.pi * ((radius - 1 + edge) / edge).clamp(0, 1))


def taps(kernel_size: int, space: int) -> Float[Tensor, "k d"]:
    """Positions of a kernel's taps in pixels, (x, y, z) with y up, in the order of a convolution weight's elements."""
    line = torch.arange(kernel_size, dtype=torch.float64) - (kernel_size - 1) / 2
    axes = torch.meshgrid(*[line] * space, indexing="ij")
    flipped = [-axis if name == space - 2 else axis for name, axis in enumerate(axes)]
    return torch.stack([axis.flatten() for axis in reversed(flipped)], dim=-1)


class GroupKernel(nn.Module):
    """A continuous kernel k^{ij}(h⁻¹x, h⁻¹h̃)/|det h| from one grid to another, one network per factor.

    Args:
        channels: number of input and of output channels.
        kernel_size: width of the window in pixels, at the grid's largest scale.
        factors: the resolved factorisation.
        config: settings of the kernel networks.
        grid: where the output lives.
        source: where the input lives; None for a lifting kernel.
    """

    taps: Tensor
    inverses: Tensor
    dets: Tensor

    def __init__(
        self,
        channels: tuple[int, int],
        kernel_size: int,
        *,
        factors: tuple[Factor, ...],
        config: KernelConfig,
        grid: Grid,
        source: Grid | None,
    ) -> None:
        super().__init__()
        self.channels, self.kernel_size, self.factors = channels, kernel_size, factors
        self.grid, self.source = grid, source
        self.names = [axis.group.name for axis in grid.axes]
        self.networks = nn.ModuleList()
        for factor in factors:
            seen = factor.coordinates.split()
            dims = len(seen) + (grid.space - 1) * ("x" in seen)
            self.networks.append(KernelNetwork(dims, math.prod(self._widths(factor.channels)), config))
        # |h⁻¹x| in these units ends at 1; the largest scale fills the window.
        self.radius = (kernel_size + 1) / 2 / grid.reach
        self.edge = min(1 / self.radius, 1.0)
        self.gain = UNIT ** len(factors) / math.sqrt(channels[0] * self._reference_taps())
        rank = range(len(self.names))
        seen = [factor.coordinates.split() for factor in factors]
        parts = [tuple(part for part in rank if self.names[part] in names) for names in seen]
        terms = [Term(p, "x" in n, f.channels) for p, n, f in zip(parts, seen, factors, strict=True)]
        volumes = [Term((part,), False, "") for part in rank if source]
        self.terms = (*terms, Term((), True, ""), *volumes)
        self._build()
        self.reset_parameters()

    def _widths(self, indices: str) -> tuple[int, int]:
        return (self.channels[0] if "i" in indices else 1, self.channels[1] if "j" in indices else 1)

    def _reference_taps(self) -> float:
        """Mean of Σ_x (window/|det|)² over scales: the spatial fan-in, the same at every resolution of the grid."""
        if self.kernel_size == 1:
            return 1.0
        scales = torch.linspace(0, math.log(self.grid.reach), 16, dtype=torch.float64).exp()
        distance = taps(self.kernel_size, self.grid.space).norm(dim=-1) / self.radius
        window = self.window(distance / scales[:, None]) / scales[:, None] ** self.grid.space
        return window.square().sum(-1).mean().item()

    @property
    def resolution(self) -> tuple[tuple[int, ...], ...]:
        """The grids' shapes that the tables were built for."""
        return (self.grid.shape, self.source.shape if self.source else ())

    def _build(self) -> None:
        """Constants that depend on the grids' resolution, computed in float64 and kept as buffers."""
        like = next(self.parameters())

        def constant(name: str, value: Tensor) -> None:
            value = value.to(like.device) if value.dtype == torch.long else value.to(like)
            self.register_buffer(name, value, persistent=False)

        group, nominal = self.grid.group, self.grid.nominal
        constant("taps", taps(self.kernel_size, self.grid.space) / self.radius)
        constant("inverses", group.matrix(group.inverse(nominal)))
        constant("dets", group.det(nominal).abs())
        for part, (target, source) in enumerate(
            zip(self.grid.axes, self.source.axes if self.source else (), strict=False)
        ):
            offsets = relative_offsets(source, target)
            constant(f"offsets{part}", offsets.values)
            constant(f"index{part}", offsets.index)
            constant(f"weight{part}", offsets.weight)
        self._built = self.resolution

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        self._build()  # in the new precision, not merely cast to it
        return self

    def reset_parameters(self) -> None:
        """Draws all kernel networks anew."""
        initialise(self)

    def window(self, radius: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """The kernel's window as a function of |h⁻¹x|: a ball, which turns into itself and fits the k×k taps.

        At the largest scale it reaches 0 at the first tap outside of the k×k. Its edge is a pixel wide at the smallest:
        a narrower one would fall between pixels, and dilations would not find it again.
        """
        return ball(radius, self.edge)

    def positions(self) -> tuple[Float[Tensor, "*o k d"], Float[Tensor, "*o k"]]:
        """h⁻¹x for all output elements and taps, and the window at each divided by |det h|."""
        group, shift = self.grid.group, self.grid.group.exp(self.grid.offset.to(self.taps))
        # Multiplied and added one by one: a fused product would round differently for each quarter turn.
        turned = (group.matrix(group.inverse(shift)) * self.taps[:, None, :]).sum(-1)
        positions = (self.inverses[:, None] * turned[:, None, :]).sum(-1)
        window = self.window(positions.square().sum(-1).sqrt())
        if self.kernel_size > 1:  # a kernel of one tap is a point mass, δ(h⁻¹x)/|det h| = δ(x)
            window = window / (self.dets * group.det(shift))[:, None]
        shape = (*self.grid.shape, len(self.taps))
        return positions.reshape(*shape, -1), window.reshape(shape)

    def _offsets(self, part: int) -> Float[Tensor, "offsets"]:
        """The distinct relative offsets of one part, shifts included, scaled to [−1, 1]."""
        assert self.source is not None
        axis, values = self.source.axes[part], getattr(self, f"offsets{part}")
        if self.source is not self.grid:
            shift = (self.source.offset - self.grid.offset).to(values)[part]
            values = axis.group.log(axis.group.exp((values + shift)[:, None]))[:, 0]
        return values / axis.reach

    def coordinates(
        self, factor: Factor, element: tuple[int, ...] | None = None
    ) -> tuple[Float[Tensor, "rows n"], tuple[int, ...]]:
        """The rows on which a factor's network is evaluated, and how they are laid out.

        A factor that does not see x is evaluated once per distinct relative offset, `(offsets…)`; one that does, at
        every output element (or one of them), input element that it sees and tap, `(o…, h…, k)`.
        """
        seen = factor.coordinates.split()
        parts = [part for part, name in enumerate(self.names) if name in seen]
        if "x" not in seen:
            if not parts:
                return self.taps.new_zeros(1, 0), ()
            axes = torch.meshgrid(*(self._offsets(part) for part in parts), indexing="ij")
            return torch.stack([axis.flatten() for axis in axes], -1), axes[0].shape
        rank = len(self.names)
        positions = self.positions()[0]
        columns = [positions.reshape(*self.grid.shape, *(1,) * rank, *positions.shape[-2:])]
        for part in parts:
            pairs = self._offsets(part)[getattr(self, f"index{part}")]
            columns.append(pairs.reshape(*self._pair_shape(part), 1, 1))
        if element is not None:
            # An axis on which a column is constant has length 1.
            columns = [c[tuple(min(e, n - 1) for e, n in zip(element, c.shape, strict=False))] for c in columns]
        shape = torch.broadcast_shapes(*(column.shape[:-1] for column in columns))
        rows = torch.cat([column.expand(*shape, -1) for column in columns], dim=-1)
        return rows.flatten(0, -2), shape

    def _pair_shape(self, part: int) -> tuple[int, ...]:
        """Shape that puts a table `(o, h)` of one part on its axes of `(o…, h…)`."""
        rank = len(self.names)
        shape = [1] * (2 * rank)
        shape[part], shape[rank + part] = getattr(self, f"index{part}").shape
        return tuple(shape)

    def _evaluate(self, factor: Factor, term: Term, network: nn.Module) -> Values:
        """One factor's values on the current grids."""
        rows, shape = self.coordinates(factor)
        widths, rank = self._widths(factor.channels), len(self.names)
        values = network(rows).reshape(*shape, *widths)
        if term.spatial:
            return values
        full = [1] * (2 * rank + 1)
        for axis, part in enumerate(term.parts):  # distinct offsets → pairs (o, h)
            index = getattr(self, f"index{part}")
            values = values.index_select(2 * axis, index.flatten()).unflatten(2 * axis, index.shape)
            full[part], full[rank + part] = index.shape
        axes = range(0, 2 * len(term.parts), 2)
        values = values.permute(*axes, *(axis + 1 for axis in axes), values.ndim - 2, values.ndim - 1)
        return values.reshape(*full, *widths)

    def forward(self) -> list[Values]:
        """The values of all `terms` on the current grids: factors, then the window, then the volumes of the parts."""
        if self._built != self.resolution:
            self._build()
        rank = len(self.names)
        with torch.autocast(self.taps.device.type, enabled=False):
            factors = zip(self.factors, self.terms, self.networks, strict=False)
            values = [self._evaluate(factor, term, network) for factor, term, network in factors]
            window = self.positions()[1] * self.gain
        values.append(window.reshape(*self.grid.shape, *(1,) * rank, -1, 1, 1))
        for part in range(rank if self.source else 0):
            values.append(getattr(self, f"weight{part}").reshape(*self._pair_shape(part), 1, 1, 1))
        return values
