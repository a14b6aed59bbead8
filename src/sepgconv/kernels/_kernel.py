"""Kernels on G = R^d ⋊ H: their values on a grid."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.grids import Grid, Relative, relative_elements
from sepgconv.kernels._factors import Factor, Term
from sepgconv.kernels._initialisation import initialise
from sepgconv.kernels._networks import PARAMETRISATIONS, KernelConfig
from sepgconv.kernels._parametrisation import Domain, Parametrisation
from sepgconv.kernels._prefilter import Prefilter, filtered
from sepgconv.kernels._values import Values, run
from sepgconv.kernels._window import ball, taps

UNIT = 4.0
"""What a factor's network counts in. Its weights are then about 0.2 at init, for which Adam's usual steps are right."""


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

    points: Tensor
    """h⁻¹x for all unshifted output elements and taps, where the window ends at 1: `(o, k, d)`."""
    dets: Tensor
    """|det h| of the unshifted output elements."""
    lattice: Tensor
    """Where factors of x are evaluated if there is a prefilter, `(m, d)`."""
    lattice_window: Tensor
    """The window there."""

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
        """Of the parts of H."""
        self.widths = [
            (channels[0] if "i" in f.channels else 1, channels[1] if "j" in f.channels else 1) for f in factors
        ]
        seen = [factor.coordinates.split() for factor in factors]
        found = [
            [coordinate for axis in grid.axes for coordinate in axis.group.seen if coordinate.name in names]
            for names in seen
        ]
        # |h⁻¹x| in these units ends at 1; the largest scale fills the window.
        self.radius = (kernel_size + 1) / 2 / grid.widening
        self.edge = min(1 / self.radius, 1.0)
        domains = [
            Domain(grid.space * ("x" in n), tuple(f), self.radius if kernel_size > 1 else 0.0, self.edge)
            for n, f in zip(seen, found, strict=True)
        ]
        make, sizes = PARAMETRISATIONS[config.parametrisation], zip(domains, self.widths, strict=True)
        self.networks = nn.ModuleList(make(domain, math.prod(widths), config) for domain, widths in sizes)
        self.prefilter = None
        if config.parametrisation == "network" and config.cutoff is not None and kernel_size > 1:
            self.prefilter = Prefilter(config.cutoff, self.radius, grid.space)
        self.gain = UNIT ** len(factors) / math.sqrt(channels[0] * self._reference_taps())
        rank = range(len(self.names))
        columns = [{part: own for part in rank if (own := self.columns(part, names))} for names in seen]
        parts = [tuple(own) for own in columns]
        self.chosen = {
            factor: {part: run(c) for part, c in own.items()} for factor, own in zip(factors, columns, strict=True)
        }
        """By factor, which columns of which part's coordinates it sees."""
        terms = [Term(p, "x" in n, f.channels) for p, n, f in zip(parts, seen, factors, strict=True)]
        volumes = [Term((part,), False, "") for part in rank if source]
        self.terms = (*terms, Term((), True, ""), *volumes)
        self.register_buffer("points", torch.empty(0), persistent=False)
        self.built: tuple[tuple[int, ...], ...] | None = None
        """The grids' shapes that the constants were built for."""
        self._build(self.like)
        self.reset_parameters()

    def _reference_taps(self) -> float:
        """Mean of Σ_x (window/|det|)² over H: the spatial fan-in, the same at every resolution of the grid."""
        if self.kernel_size == 1:
            return 1.0
        group, elements = self.grid.group, self.grid.several(16)
        matrices, places = group.matrix(group.inverse(elements)), taps(self.kernel_size, self.grid.space)
        radii = torch.einsum("hij,kj->hki", matrices, places).norm(dim=-1) / self.radius
        return (self.window(radii) / group.det(elements).abs()[:, None]).square().sum(-1).mean().item()

    def columns(self, part: int, names: Sequence[str]) -> list[int]:
        """Which columns of a part's coordinates belong to these names."""
        owners = [coordinate.name for coordinate in self.grid.axes[part].group.seen for _ in range(coordinate.columns)]
        return [column for column, owner in enumerate(owners) if owner in names]

    @property
    def like(self) -> Tensor:
        """A weight, for the precision and the device of constants."""
        network = self.networks[0]
        assert isinstance(network, Parametrisation)
        return network.last

    @property
    def resolution(self) -> tuple[tuple[int, ...], ...]:
        """The grids' shapes, for which the tables are built."""
        return (self.grid.shape, self.source.shape if self.source else ())

    def _build(self, like: Tensor) -> None:
        """Constants that depend on the grids' resolution, computed in float64 and kept as buffers."""

        def constant(name: str, value: Tensor) -> None:
            value = value.to(like.device) if value.dtype == torch.long else value.to(like)
            self.register_buffer(name, value.detach(), persistent=False)

        group, nominal = self.grid.group, self.grid.nominal
        inverses = group.matrix(group.inverse(nominal))
        constant(
            "points", (inverses[:, None] * taps(self.kernel_size, self.grid.space)[:, None, :]).sum(-1) / self.radius
        )
        constant("dets", group.det(nominal).abs())
        if self.prefilter:
            lattice = self.prefilter.lattice
            constant("lattice", lattice)
            constant("lattice_window", self.prefilter.window(lattice.norm(dim=-1)))
        self.relatives: tuple[Relative, ...] = ()
        if self.source:
            pairs = zip(self.source.axes, self.grid.axes, strict=True)
            self.relatives = tuple(relative_elements(source, target) for source, target in pairs)
        rank, axes = len(self.names), (self.source or self.grid).axes
        self.pair_shapes = [[1] * (2 * rank) for _ in self.relatives]
        """Where the tables `(o, h)` of each part stand among the axes `(o…, h…)`."""
        for part, table in enumerate(self.relatives):
            self.pair_shapes[part][part], self.pair_shapes[part][rank + part] = table.index.shape
            constant(f"relative{part}", table.elements)
            constant(f"coordinates{part}", axes[part].coordinates(table.elements))
            constant(f"index{part}", table.index)
            constant(f"volume{part}", table.weight)
        for grid in {self.grid, self.source} - {None}:
            if grid.offset.device != like.device:  # made on the meta device, and loaded since
                grid.settle(like)
        self.built = self.resolution

    def refresh(self) -> None:
        """Builds the constants anew if the grids have another resolution, or the weights were loaded."""
        if self.built != (self.grid.shape, self.source.shape if self.source else ()):
            self._build(self.like)

    def _apply(self, fn, recurse: bool = True) -> "GroupKernel":
        super()._apply(fn, recurse)
        self._build(self.points)  # in the new precision, not merely cast to it
        return self

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.built = None  # the weights may come with another device

    def reset_parameters(self) -> None:
        """Draws all kernel networks anew."""
        if not self.points.is_meta:
            initialise(self)

    def window(self, radius: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """The kernel's window as a function of |h⁻¹x|: a ball, which turns into itself and fits the k×k taps.

        At the largest scale it reaches 0 at the first tap outside of the k×k. Its edge is a pixel wide at the smallest:
        a narrower one would fall between pixels, and dilations would not find it again. A prefilter takes its reach
        from the ball.
        """
        if self.prefilter:
            return self.prefilter.window(radius)
        return ball(radius, self.edge)

    def positions(self) -> tuple[Float[Tensor, "*o k d"], Float[Tensor, "*o k"]]:
        """(hε)⁻¹x = ε⁻¹(h⁻¹x) for all output elements and taps, and the window at each divided by |det hε|."""
        positions, dets = self.points, self.dets
        if self.grid.random:
            group = self.grid.group
            back = group.inverse(group.exp(self.grid.offset.to(self.points)))  # ε⁻¹
            # Multiplied and added one by one: a fused product would round differently for each quarter turn.
            positions = (group.matrix(back) * positions.unsqueeze(-2)).sum(-1)
            dets = dets / group.det(back).abs()
        if self.prefilter:
            window = self._filtered_window(positions)
        else:
            window = ball(positions.square().sum(-1).sqrt(), self.edge)
        if self.kernel_size > 1:  # a kernel of one tap is a point mass, δ(h⁻¹x)/|det h| = δ(x)
            window = window / dets[:, None]
        shape = (*self.grid.shape, positions.shape[1])
        return positions.reshape(*shape, -1), window.reshape(shape)

    def _filtered_window(self, positions: Float[Tensor, "o k d"]) -> Float[Tensor, "o k"]:
        """What a filtered kernel is still to be multiplied by: its factors hold the window, if one of them sees x."""
        if any("x" in factor.coordinates.split() for factor in self.factors):
            return torch.ones_like(positions[..., 0])
        assert self.prefilter is not None
        return filtered(self.prefilter.spread(positions, self.lattice), self.lattice_window[:, None])[..., 0]

    def filtered_rows(
        self, factor: Factor, element: tuple[int, ...] | None = None
    ) -> tuple[Float[Tensor, "rows n"], tuple[int, ...]]:
        """As `coordinates`, at the prefilter's lattice instead of the taps: `(m,)` for a factor of x alone."""
        places = self.lattice.expand(*self.grid.shape, *self.lattice.shape)
        if factor.coordinates == "x":
            return self.lattice, (len(self.lattice),)
        return self.coordinates(factor, places, element)

    def relative(self, part: int) -> Float[Tensor, "n c"]:
        """Coordinates of one part's distinct relative elements ε⁻¹(h⁻¹h̃)ε̃, scaled to [−1, 1]."""
        assert self.source is not None
        axis, values = self.source.axes[part], getattr(self, f"relative{part}")
        cancels = self.source is self.grid and axis.group.commutes
        if cancels or not (self.source.random or self.grid.random):
            return getattr(self, f"coordinates{part}")
        before, after = (self._shift(grid, part, values) for grid in (self.grid, self.source))
        return axis.coordinates(axis.group.product(axis.group.product(axis.group.inverse(before), values), after))

    def _shift(self, grid: Grid, part: int, like: Tensor) -> Float[Tensor, "dim"]:
        """One part of a grid's shift ε."""
        groups = [axis.group for axis in grid.axes]
        return groups[part].exp(grid.offset.to(like).split([group.dimension for group in groups])[part])

    def coordinates(
        self, factor: Factor, positions: Float[Tensor, "*o k d"], element: tuple[int, ...] | None = None
    ) -> tuple[Float[Tensor, "rows n"], tuple[int, ...]]:
        """The rows on which a factor's network is evaluated, and how they are laid out.

        A factor that does not see x is evaluated once per distinct relative element, `(elements…)`; one that does, at
        every output element (or one of them), input element that it sees and tap, `(o…, h…, k)`.
        """
        seen = factor.coordinates.split()
        chosen = self.chosen.get(factor, {})
        if "x" not in seen and not chosen:
            return self.points.new_zeros(1, 0), ()
        found = {part: self.relative(part)[:, columns] for part, columns in chosen.items()}
        if "x" in seen:
            columns = [positions.reshape(*self.grid.shape, *(1,) * len(self.names), *positions.shape[-2:])]
            for part, values in found.items():
                pairs = values[getattr(self, f"index{part}")]
                columns.append(pairs.reshape(*self.pair_shapes[part], 1, pairs.shape[-1]))
        else:
            columns = [
                values.reshape(*(len(values) if n == place else 1 for n in range(len(found))), -1)
                for place, values in enumerate(found.values())
            ]
        if element is not None and "x" in seen:
            # An axis on which a column is constant has length 1.
            columns = [c[tuple(min(e, n - 1) for e, n in zip(element, c.shape, strict=False))] for c in columns]
        shape = torch.broadcast_shapes(*(column.shape[:-1] for column in columns))
        rows = torch.cat([column.expand(*shape, -1) for column in columns], dim=-1)
        return rows.flatten(0, -2), shape

    def _evaluate(self, number: int, positions: Float[Tensor, "*o k d"]) -> Values:
        """One factor's values on the current grids."""
        term, rank = self.terms[number], len(self.names)
        if term.spatial and self.prefilter:
            rows, shape = self.filtered_rows(self.factors[number])
            sampled = self.networks[number](rows).reshape(*shape, -1) * self.lattice_window[:, None]
            values = filtered(self.prefilter.spread(positions, self.lattice), sampled)
            around = (*self.grid.shape, *(1,) * rank) if len(shape) == 1 else values.shape[: 2 * rank]
            return values.reshape(*around, -1, *self.widths[number])
        rows, shape = self.coordinates(self.factors[number], positions)
        values = self.networks[number](rows).reshape(*shape, *self.widths[number])
        if term.spatial:
            return values
        full = [1] * (2 * rank + 1)
        for axis, part in enumerate(term.parts):  # distinct offsets → pairs (o, h)
            index = getattr(self, f"index{part}")
            values = values.index_select(2 * axis, index.flatten()).unflatten(2 * axis, index.shape)
            full[part], full[rank + part] = index.shape
        axes = range(0, 2 * len(term.parts), 2)
        values = values.permute(*axes, *(axis + 1 for axis in axes), values.ndim - 2, values.ndim - 1)
        return values.reshape(*full, *self.widths[number])

    def forward(self) -> list[Values]:
        """The values of all `terms` on the current grids: factors, then the window, then the volumes of the parts."""
        if self.built != (self.grid.shape, self.source.shape if self.source else ()):
            self.refresh()
        with torch.autocast(self.points.device.type, enabled=False):
            positions, window = self.positions()
            values = [self._evaluate(number, positions) for number in range(len(self.factors))]
            values.append((window * self.gain).reshape(*self.grid.shape, *(1,) * len(self.names), -1, 1, 1))
        for part, shape in enumerate(self.pair_shapes):
            values.append(getattr(self, f"volume{part}").reshape(*shape, 1, 1, 1))
        return values
