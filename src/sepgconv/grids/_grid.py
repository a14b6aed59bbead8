"""Grids: samplings of the subgroup H on which features live, and who moves them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.grids._axis import Axis
from sepgconv.groups import Trivial, direct_product

KEYS = itertools.count()


class Grid(nn.Module):
    """A sampling of H, shared by the layers whose features live on it.

    The elements are h·ε for h in an unshifted grid. An axis sampled at random gets a new shift ε, uniform over one
    cell, whenever a layer that produces features on the grid runs in training mode; in `eval()` ε is the identity, or
    what `stand` has made it.
    The shift stands on the right, so that the grid's own elements map a shifted grid to itself, and h⁻¹h̃ becomes
    ε⁻¹(h⁻¹h̃)ε̃. Element number (…, p, q) of several axes stands at position p·size_q + q of a feature's h axis.

    Args:
        space: dimension d of the space that H acts on.
        axes: the sampled parts of H; none for the plain translation group.
    """

    offset: Tensor
    """What `group.exp` makes the shift ε of."""
    shape: tuple[int, ...]
    """Number of elements along each axis."""
    size: int
    """|H|: the length of a feature's h axis."""
    draws: int
    """How many shifts were drawn."""
    moves: int
    """How often the shift has changed."""
    origin: str | None
    """Where the shift comes from: `layer` if a layer has drawn it in training; `rest` if features are known to be at
    rest, or it was drawn by hand; None if nobody has said anything."""
    home: tuple[float, ...]
    """The `offset` in `eval()`: zeros, unless `stand` has moved it."""

    def __init__(self, space: int, axes: tuple[Axis, ...] = ()) -> None:
        super().__init__()
        if space not in (1, 2, 3):
            raise ValueError(f"space must be 1, 2 or 3 dimensions, got {space!r}")
        self.space = space
        self.group = direct_product(*(axis.group for axis in axes)) if axes else Trivial(space)
        if self.group.space != space:
            raise ValueError(f"{self.group.name} acts on R^{self.group.space}, but the grid's space is R^{space}")
        self.random = any(axis.sampling == "random" for axis in axes)
        self.key, self.draws, self.moves = next(KEYS), 0, 0
        self.origin: str | None = None
        self.register_buffer("offset", torch.zeros(self.group.dimension), persistent=False)
        self._sample(tuple(axes))
        self.widening = self._widening()

    def _sample(self, axes: tuple[Axis, ...]) -> None:
        """Takes these axes, at rest."""
        self.axes, self.shape = axes, tuple(axis.size for axis in axes)
        self.size, self.home = math.prod(self.shape), (0.0,) * self.group.dimension
        self.settle(self.offset)

    def settle(self, like: Tensor) -> None:
        """Puts the grid at rest, in the precision and on the device of a tensor."""
        self.offset = torch.tensor(self.home, dtype=like.dtype, device=like.device)
        self.origin, self.moves = None, self.moves + 1

    def _widening(self) -> float:
        """How much the grid's elements widen a kernel at most: max_scale, and 1 for rotations."""
        matrices = self.group.matrix(self.several(5))
        return round(torch.linalg.matrix_norm(matrices, ord=2).max().item(), 12)

    def several(self, count: int) -> Float[Tensor, "h dim"]:
        """Elements from end to end of every axis, however finely the grid is sampled, in float64 and on the CPU."""
        return _combine([axis.several(count) for axis in self.axes])

    @property
    def nominal(self) -> Float[Tensor, "h dim"]:
        """The elements without the shift, in float64 and on the CPU."""
        return _combine([axis.elements for axis in self.axes])

    @property
    def elements(self) -> Float[Tensor, "h dim"]:
        """The current elements, shift included."""
        return self.group.product(self.nominal.to(self.offset), self.group.exp(self.offset))

    def resample(self) -> None:
        """Draws a new shift for every axis that is sampled at random. In `eval()` it stays until the mode is set."""
        self._shift("rest")

    def redraw(self) -> None:
        """As `resample`, by a layer that is going to produce features on the grid: in training."""
        self._shift("layer")

    def rest(self) -> None:
        """Undoes what a layer has drawn in training, for a layer that produces features in `eval()`."""
        if self.random and self.origin != "rest":
            if self.origin == "layer":
                self._go_home()
                self.moves += 1
            self.origin = "rest"

    def stand(self, *uniform: float) -> None:
        """Shifts the grid in `eval()`, too: a random grid has no better place in its cell than any other.

        Args:
            uniform: numbers in [0, 1), one for each dimension of the axes that are sampled at random; for rotations of
                the plane and dilations 1/2 is no shift.
        """
        wanted = sum(axis.group.dimension for axis in self.axes if axis.sampling == "random")
        if len(uniform) != wanted or not all(0 <= number < 1 for number in uniform):
            raise ValueError(f"{self} takes {wanted} numbers in [0, 1), got {uniform!r}")
        numbers = iter(uniform)
        filled = [
            next(numbers) if axis.sampling == "random" else 0.0
            for axis in self.axes
            for _ in range(axis.group.dimension)
        ]
        self.home = tuple(self._in_cell(torch.tensor(filled, dtype=torch.float64)).tolist())
        self.settle(self.offset)

    def _in_cell(self, uniform: Float[Tensor, "dim"]) -> Float[Tensor, "dim"]:
        """The shift that numbers in [0, 1) stand for."""
        parts = uniform.split([axis.group.dimension for axis in self.axes])
        shifts = [
            axis.group.draw(part, axis.cell) if axis.sampling == "random" else torch.zeros_like(part)
            for axis, part in zip(self.axes, parts, strict=True)
        ]
        return torch.cat(shifts)

    def _shift(self, origin: str) -> None:
        if self.random:
            self.offset.copy_(self._in_cell(torch.rand_like(self.offset)))
            self.origin = origin
            if not torch.compiler.is_compiling():  # which would compile anew for every count
                self.draws, self.moves = self.draws + 1, self.moves + 1

    def _go_home(self) -> None:
        self.offset.zero_()
        if any(self.home):
            self.offset.copy_(torch.tensor(self.home, dtype=torch.float64))

    def train(self, mode: bool = True) -> "Grid":
        """As in `nn.Module`; entering `eval()` moves the grid back to where it was before training."""
        if not mode:
            self._go_home()
            self.origin, self.moves = None, self.moves + (self.origin is not None)
        return super().train(mode)

    def _apply(self, fn, recurse: bool = True) -> "Grid":
        super()._apply(fn, recurse)
        self.settle(self.offset)  # `to_empty` leaves whatever was in memory
        return self

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "key": next(KEYS), "draws": 0, "origin": None}  # nobody has drawn a copy

    def set_resolution(self, **counts: int) -> None:
        """Changes how many elements are sampled, e.g. `set_resolution(rotations=16)`; extents and supports stay."""
        known = {axis.keyword for axis in self.axes}
        if unknown := set(counts) - known:
            raise ValueError(f"this grid has {sorted(known) or 'no axes'}, got {sorted(unknown)}")
        self._sample(tuple(replace(axis, count=counts.get(axis.keyword, axis.count)) for axis in self.axes))

    def extra_repr(self) -> str:
        """Counts and sampling of every axis, and its elements where they are more."""
        more = [f", {axis.size} elements" if axis.size != axis.count else "" for axis in self.axes]
        pairs = zip(self.axes, more, strict=True)
        axes = [f"{axis.keyword}={axis.count} ({axis.sampling}{extra})" for axis, extra in pairs]
        return ", ".join([f"space={self.space}", *axes])


def _combine(parts: Sequence[Float[Tensor, "_ _"]]) -> Float[Tensor, "h dim"]:
    """All combinations of the parts' elements, the last part running fastest."""
    result = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    for part in parts:
        pairs = result.repeat_interleave(len(part), 0), part.repeat(len(result), 1)
        result = torch.cat(pairs, -1)
    return result


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
    for module in model.modules():
        if callable(refresh := getattr(module, "refresh", None)):
            refresh()
