"""How a group element moves images, features and invariants: the left side and the right side of equivariance."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from sepgconv.grids import Grid
from sepgconv.grids._between import move_between


def transform_space(x: Float[Tensor, "*s"], matrix: Float[Tensor, "d d"]) -> Float[Tensor, "*s"]:
    """(L_g f)(p) = f(g⁻¹p) over the last d axes, about their centre, zero outside.

    What maps pixels to pixels is exact: quarter turns, mirrors, rotations of a cube. Everything else is interpolated.
    """
    space = len(matrix)
    moves = pixel_map(matrix)
    if moves is not None:
        order, flipped = moves
        rest = x.ndim - space
        return x.permute(*range(rest), *(rest + axis for axis in order)).flip([rest + axis for axis in flipped])
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


def pixel_map(matrix: Float[Tensor, "d d"]) -> tuple[list[int], list[int]] | None:
    """How a matrix that maps pixels to pixels moves the axes of an image: their new order, and which are flipped then.

    None for all other matrices. Axes are in the order (z, y, x) of an image, whose y points down.
    """
    rounded = matrix.double().round()
    signed = torch.equal(rounded.abs().sum(0), rounded.abs().sum(1)) and rounded.abs().sum(0).eq(1).all()
    if not signed or not torch.allclose(matrix.double(), rounded, atol=1e-6):
        return None
    image = rounded.flip(0, 1)  # in the order of the axes
    if len(matrix) > 1:
        image[-2] *= -1
        image[:, -2] *= -1
    order = image.abs().argmax(1)
    signs = image[range(len(image)), order]
    return order.tolist(), signs.lt(0).nonzero().flatten().tolist()


def is_identity(matrix: Float[Tensor, "d d"]) -> bool:
    """Whether a matrix moves nothing."""
    return pixel_map(matrix) == (list(range(len(matrix))), [])


def places_of(grid: Grid, element: Tensor) -> list[Int[Tensor, "h"]] | None:
    """Along every axis, where h finds g⁻¹h (−1: beyond a truncated grid); None if g falls between the elements."""
    if not grid.axes:
        return []
    parts = element.split([axis.group.dim for axis in grid.axes])
    found = [axis.places(part) for axis, part in zip(grid.axes, parts, strict=True)]
    places = [each for each in found if each is not None]
    return places if len(places) == len(found) else None


def _move(features: Tensor, grid: Grid, places: list[Int[Tensor, "h"]]) -> tuple[Tensor, Tensor]:
    """f(·, g⁻¹h) along the h axis, and which elements of the result the grid's truncation leaves defined."""
    x = features.unflatten(2, grid.shape or (1,))
    valid = torch.ones(grid.shape or (1,), dtype=torch.bool)
    for part, place in enumerate(places):
        x = x.index_select(2 + part, place.clamp_min(0).to(x.device))
        valid.index_fill_(part, place.lt(0).nonzero().flatten(), False)
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
    places = places_of(grid, element)
    moved, valid = move_between(x, element, grid) if places is None else _move(x, grid, places)
    return transform_space(moved, matrix), valid
