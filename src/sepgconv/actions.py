"""How a group element moves images, features and invariants: the left side and the right side of equivariance."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.grids import Grid
from sepgconv.grids._between import move_between


def transform_space(x: Float[Tensor, "*s"], matrix: Float[Tensor, "d d"]) -> Float[Tensor, "*s"]:
    """(L_g f)(p) = f(g⁻¹p) over the last d axes, about their centre, zero outside.

    Quarter turns are exact; everything else is interpolated.
    """
    space = len(matrix)
    turns = quarter_turns(matrix)
    if turns is not None:
        return torch.rot90(x, turns, (-2, -1)) if turns else x
    sizes = x.shape[-space:]
    lines = [torch.arange(n, dtype=torch.float64, device=x.device) - (n - 1) / 2 for n in sizes]
    axes = torch.meshgrid(*lines, indexing="ij")
    points = torch.stack([-a if n == space - 2 else a for n, a in enumerate(axes)][::-1], -1)  # (x, y, z), y up
    source = (points @ torch.linalg.inv(matrix).double().T).flip(-1)
    places = [-c if n == space - 2 else c for n, c in enumerate(source.unbind(-1))]
    places = [c + (size - 1) / 2 for c, size in zip(places, sizes, strict=True)]
    return _interpolate(x.reshape(-1, *sizes), places).reshape(x.shape)


def shift_space(x: Float[Tensor, "*s"], shift: Sequence[float]) -> Float[Tensor, "*s"]:
    """(L_t f)(p) = f(p − t) over the last axes, in pixels and in the order of the axes; zero outside.

    Whole pixels are exact; everything else is interpolated.
    """
    sizes = x.shape[-len(shift) :]
    lines = [torch.arange(n, dtype=torch.float64, device=x.device) - t for n, t in zip(sizes, shift, strict=True)]
    return _interpolate(x.reshape(-1, *sizes), list(torch.meshgrid(*lines, indexing="ij"))).reshape(x.shape)


def _interpolate(x: Float[Tensor, "m *sizes"], places: list[Float[Tensor, "*sizes"]]) -> Float[Tensor, "m *sizes"]:
    """Values between pixels: the polynomial through the six nearest ones along each axis, zero outside the picture."""
    reach = 6
    padded = F.pad(x, (reach,) * (2 * len(places)))
    sizes = padded.shape[1:]
    base = [p.floor().clamp(-4, n - 2 * reach + 2) for p, n in zip(places, sizes, strict=True)]
    weights = [_lagrange(p - b) for p, b in zip(places, base, strict=True)]
    result = torch.zeros_like(x)
    for offsets in itertools.product(range(6), repeat=len(places)):
        index, weight = torch.zeros_like(base[0], dtype=torch.long), torch.ones_like(base[0])
        for offset, b, w, n in zip(offsets, base, weights, sizes, strict=True):
            index = index * n + (b.long() + offset - 2 + reach)
            weight = weight * w[offset]
        result = result + padded.flatten(1)[:, index] * weight.to(x)
    return result


def _lagrange(t: Tensor) -> list[Tensor]:
    """Weights of the pixels at −2, …, 3 for a place at t in [0, 1); none for a place far outside."""
    nodes = range(-2, 4)
    inside = ((t >= 0) & (t <= 1)).to(t)
    return [math.prod([(t - m) / (n - m) for m in nodes if m != n], start=inside) for n in nodes]


def quarter_turns(matrix: Float[Tensor, "d d"]) -> int | None:
    """How many quarter turns of the (x, y) plane a matrix is, or None."""
    rounded = matrix.round()
    if not torch.allclose(matrix.double(), rounded.double(), atol=1e-6):
        return None
    if torch.equal(rounded, torch.eye(len(matrix), dtype=matrix.dtype)):
        return 0
    corner = rounded[:2, :2]
    turned = [[[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]]
    return next((n + 1 for n, m in enumerate(turned) if torch.equal(corner, matrix.new_tensor(m))), None)


def shift_of(grid: Grid, element: Tensor) -> list[int] | None:
    """By how many places an element moves every axis of the grid, or None if it falls between its elements."""
    steps = [
        v / axis.cell if axis.cell else 0.0 for v, axis in zip(grid.group.log(element).tolist(), grid.axes, strict=True)
    ]
    return [round(s) for s in steps] if all(abs(s - round(s)) < 1e-4 for s in steps) else None


def _move(features: Tensor, grid: Grid, shift: list[int]) -> tuple[Tensor, Tensor]:
    """f(·, g⁻¹h) along the h axis, and which elements of the result the grid's truncation leaves defined."""
    x = features.unflatten(2, grid.shape or (1,))
    valid = torch.ones(grid.shape or (1,), dtype=torch.bool)
    for part, (axis, places) in enumerate(zip(grid.axes, shift, strict=True)):
        x = torch.roll(x, places, 2 + part)
        if axis.group.period is None and places:
            lost = range(min(places, axis.count)) if places > 0 else range(max(axis.count + places, 0), axis.count)
            valid.index_fill_(part, torch.tensor(list(lost)), False)
    return x.flatten(2, 1 + max(len(grid.axes), 1)), valid.flatten()


def act(x: Tensor, element: Float[Tensor, "dim"], grid: Grid) -> tuple[Tensor, Tensor | None]:
    """A group element applied to images `(b, c, …)`, to features `(b, c, h, …)` or to invariants `(b, c)`.

    Returns the result and, for features, which h are defined: a truncated grid loses those that move out of it.
    Between the elements of the grid features are interpolated along h, as images are between their pixels.
    """
    if x.ndim == 2:
        return x, None
    matrix = grid.group.matrix(element.double())
    if x.ndim == grid.space + 2:
        return transform_space(x, matrix), None
    shift = shift_of(grid, element)
    if shift is None:
        moved, valid = move_between(x, element, grid)
    else:
        moved, valid = _move(x, grid, shift)
    return transform_space(moved, matrix), valid
