"""Kernels on G = R^d ⋊ H: how they factorise, where they are supported, and their values on a grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sepgconv.grids import Axis, Grid
from sepgconv.siren import KernelConfig, KernelNetwork


@dataclass(frozen=True)
class Factor:
    """One factor of a kernel k^{ij}(x, h): the coordinates it sees and the channel indices it carries.

    Args:
        coordinates: names separated by blanks: `x` (space), `h` (the whole subgroup), or one part of it (`rotation`,
            `scale`); empty for a factor that is constant on the group.
        channels: `ij`, `i`, `j` or empty, where i counts input channels and j output channels.
    """

    coordinates: str
    channels: str


FACTORISATIONS: dict[str, tuple[Factor, ...]] = {
    "nonseparable": (Factor("x h", "ij"),),
    "separable": (Factor("h", "ij"), Factor("x", "j")),
    "h_separable": (Factor("scale", "ij"), Factor("rotation", "j"), Factor("x", "j")),
    "gseparable": (Factor("h", "ij"), Factor("x", "ij")),
    "dseparable": (Factor("", "ij"), Factor("x h", "j")),
    "dgseparable": (Factor("", "ij"), Factor("h", "j"), Factor("x", "j")),
}
LIFTING = (Factor("x", "ij"),)
"""The lifting kernel k^{ij}(x): its input has no h."""


def resolve(factorisation: str | Sequence[Factor], grid: Grid) -> tuple[Factor, ...]:
    """A factorisation by name or as a table, with `h` spelled out as the parts of the grid's group."""
    parts = [axis.group.name for axis in grid.axes]
    if isinstance(factorisation, str):
        if factorisation not in FACTORISATIONS:
            allowed = ", ".join(FACTORISATIONS)
            raise ValueError(f"factorisation must be one of {allowed}, or a table of Factor; got {factorisation!r}")
        if factorisation == "h_separable" and len(parts) < 2:
            raise ValueError(
                "factorisation 'h_separable' needs a product of rotations and scales such as sim2(), "
                f"got a grid with {' and '.join(parts) if parts else 'a trivial group'}"
            )
        table = FACTORISATIONS[factorisation]
    else:
        table = tuple(factorisation)
    allowed = ["x", "h", *parts]
    factors = []
    for factor in table:
        if not isinstance(factor, Factor):
            raise ValueError(f"a factorisation is a table of Factor, got {factor!r}")
        names = factor.coordinates.split()
        if unknown := [name for name in names if name not in allowed]:
            raise ValueError(f"{factor} sees {unknown}, but this grid has {allowed}")
        if factor.channels not in ("ij", "i", "j", ""):
            raise ValueError(f"channels must be 'ij', 'i', 'j' or '', got {factor.channels!r}")
        seen = [name for name in ["x", *parts] if name in names or (name != "x" and "h" in names)]
        factors.append(Factor(" ".join(seen), factor.channels))
    if missing := [index for index in "ij" if not any(index in factor.channels for factor in factors)]:
        raise ValueError(f"no factor carries the channel index {' or '.join(missing)}: {table}")
    return tuple(factors)


class Term(NamedTuple):
    """What one of the tensors that are multiplied to a kernel depends on: parts of H, space, channel indices."""

    parts: tuple[int, ...]
    spatial: bool
    channels: str


Values = Float[Tensor, "*o_h_k i j"]
"""A term's values `(o…, h…, k, i, j)`: output and input elements (one axis each per part of H), spatial taps, channels;
axes on which the term is constant have length 1."""


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


def ball(radius: Float[Tensor, "*s"], kernel_size: int) -> Float[Tensor, "*s"]:
    """The kernel's window as a function of |h⁻¹x|, in units in which it ends at 1: a ball with a smooth edge.

    It falls from 1 at the outermost tap of a k-wide kernel to 0 at the first tap beyond it, so that the window turns
    into itself and lies within the k×k taps in every direction.
    """
    inner = (kernel_size - 1) / (kernel_size + 1)
    edge = ((radius - inner) / (1 - inner)).clamp(0, 1)
    return 0.5 + 0.5 * torch.cos(math.pi * edge)


def taps(kernel_size: int, space: int) -> Float[Tensor, "k d"]:
    """Positions of a kernel's taps in pixels, (x, y, z) with y up, in the order of a convolution weight's elements."""
    line = torch.arange(kernel_size, dtype=torch.float64) - (kernel_size - 1) / 2
    axes = torch.meshgrid(*[line] * space, indexing="ij")
    flipped = [-axis if name == space - 2 else axis for name, axis in enumerate(axes)]
    return torch.stack([axis.flatten() for axis in reversed(flipped)], dim=-1)


def power_spectrum(functions: Float[Tensor, "*axes c"]) -> Float[Tensor, "frequencies c"]:
    """|F[a](ω)|² of functions on a grid, zero-padded to twice its length."""
    axes = list(range(functions.ndim - 1))
    sizes = [2 * n if n > 1 else 1 for n in functions.shape[:-1]]
    transform = torch.fft.fftn(functions.double(), s=sizes, dim=axes) if axes else functions.double()
    return transform.abs().square().reshape(-1, functions.shape[-1])


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
        self.gain = 1 / math.sqrt(channels[0] * self._reference_taps())
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
        window = ball(distance / scales[:, None], self.kernel_size) / scales[:, None] ** self.grid.space
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

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Unit variance through the layer, at init and for every factorisation.

        With independent last-layer weights a kernel's expected power spectrum over G is S(ω) = Σ_u |F[a_u]|², a_u being
        its hidden units; the spectra of factors multiply. White noise gains ∫S: so a lifting kernel is scaled.
        But smooth kernels make smooth features, whose spectrum after p layers is S^p, and those gain ∫S·S^p / ∫S^p.
        Group kernels are scaled for the p that keeps stacks of several layers steady; it grows with the dimension of G,
        since the more axes a spectrum has, the faster its peak takes over.
        """
        depth = (1 + self.grid.space + len(self.names)) / 2 if self.source else 0
        pending = {"x", *(range(len(self.names)) if self.source else ())}
        for factor, term, network in zip(self.factors, self.terms, self.networks, strict=False):
            assert isinstance(network, KernelNetwork)
            network.reset_hidden()
            network.reset_out(1.0)
            weighted = {*term.parts, *(["x"] if term.spatial else [])} & pending
            pending -= weighted
            units = self._around_one_element(factor, term, network, weighted)
            expected = power_spectrum(units).sum(-1, keepdim=True)
            features = expected**depth / (expected**depth).mean()
            gain = (expected * features).mean()
            if factor.channels == "j" and units[..., 0].numel() > 1:
                # One function per channel: scaled by its own gain, unless that happens to be close to zero.
                own = (power_spectrum(units @ network.out.weight.t()) * features).mean(0)
                network.out.weight.mul_(own.clamp_min(0.1 * gain.item()).rsqrt().to(units)[:, None])
            else:
                network.scale_out(gain.rsqrt().item())
        # What no factor sees is constant there; it is made good in the first factor.
        rest = power_spectrum(self._around_one_element(Factor("", ""), Term((), False, ""), None, pending))
        gain = (rest ** (depth + 1)).mean() / (rest**depth).mean() * self.channels[0] * self.gain**2
        first = self.networks[0]
        assert isinstance(first, KernelNetwork)
        first.scale_out(gain.rsqrt().item())

    def _around_one_element(
        self, factor: Factor, term: Term, network: KernelNetwork | None, weighted: set
    ) -> Float[Tensor, "*axes u"]:
        """A factor's hidden units `(h…, y…, u)` as the middle output element sees them.

        The window and the cells' volumes are multiplied in for the coordinates in `weighted`, scaled to their mean
        square over all output elements.
        """
        middle = tuple(count // 2 for count in self.grid.shape)
        rows, shape = self._coordinates(factor, middle)
        units = network.hidden(rows) if network and network.in_features else rows.new_ones(len(rows), 1)
        units = units.reshape(*shape, -1)
        # Axes are (h of every part, k) for a spatial factor and (h of the parts it sees) for another.
        axes = {part: part if term.spatial else n for n, part in enumerate(term.parts)}
        if not term.spatial:
            for part, axis in axes.items():
                units = units.index_select(axis, getattr(self, f"index{part}")[middle[part]])
        for part in sorted(weighted - {"x"}):
            weight = getattr(self, f"weight{part}")
            row = weight[middle[part]] * (weight.square().sum(-1).mean() / weight[middle[part]].square().sum()).sqrt()
            if part in axes:
                units = units * row.reshape([-1 if n == axes[part] else 1 for n in range(units.ndim)])
            else:
                units = row.reshape(-1, *(1,) * units.ndim) * units
        if "x" in weighted:
            window = self._positions()[1]
            row = window[middle]
            if not self.source:  # white noise gains less at larger scales; smooth features gain the same at all
                row = row * (window.square().sum(-1).mean() / row.square().sum()).sqrt()
            units = units * row[:, None] if term.spatial else units.unsqueeze(-2) * row[:, None]
        if term.spatial or "x" in weighted:
            units = units.unflatten(-2, (self.kernel_size,) * self.grid.space)
        return units

    def _positions(self) -> tuple[Float[Tensor, "*o k d"], Float[Tensor, "*o k"]]:
        """h⁻¹x for all output elements and taps, and the window at each divided by |det h|."""
        group, shift = self.grid.group, self.grid.group.exp(self.grid.offset.to(self.taps))
        # Multiplied and added one by one: a fused product would round differently for each quarter turn.
        turned = (group.matrix(group.inverse(shift)) * self.taps[:, None, :]).sum(-1)
        positions = (self.inverses[:, None] * turned[:, None, :]).sum(-1)
        window = ball(positions.square().sum(-1).sqrt(), self.kernel_size)
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

    def _coordinates(
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
        positions = self._positions()[0]
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
        rows, shape = self._coordinates(factor)
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
            window = self._positions()[1] * self.gain
        values.append(window.reshape(*self.grid.shape, *(1,) * rank, -1, 1, 1))
        for part in range(rank if self.source else 0):
            values.append(getattr(self, f"weight{part}").reshape(*self._pair_shape(part), 1, 1, 1))
        return values
