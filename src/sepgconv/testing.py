"""Is it equivariant? `equivariance_error` gives numbers for a layer or model, `assert_equivariant` throws with them."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.grids import Grid


@dataclass(frozen=True)
class ElementError:
    """How far a network is from commuting with one group element g.

    `exact` elements map pixels to pixels and grid elements to grid elements: `error` is relative in the maximum norm
    over everything, and only rounding remains. For the others the picture must be interpolated: `error` is relative in
    the Euclidean norm over a central disc, and `interpolation` is what turning the input by g and back costs by itself.
    """

    element: str
    exact: bool
    error: float
    interpolation: float = 0.0


class EquivarianceReport(list[ElementError]):
    """Errors of all elements; prints as a table."""

    @property
    def exact(self) -> list[ElementError]:
        """Elements for which only rounding remains."""
        return [entry for entry in self if entry.exact]

    @property
    def interpolated(self) -> list[ElementError]:
        """Elements for which the input had to be interpolated."""
        return [entry for entry in self if not entry.exact]

    def __str__(self) -> str:
        lines = [f"{'element':<28}{'error':>10}{'interpolation alone':>22}"]
        for entry in self:
            alone = "exact" if entry.exact else f"{entry.interpolation:.1e}"
            lines.append(f"{entry.element:<28}{entry.error:>10.1e}{alone:>22}")
        return "\n".join(lines)


def transform_space(x: Float[Tensor, "*s"], matrix: Float[Tensor, "d d"]) -> Float[Tensor, "*s"]:
    """(L_g f)(p) = f(g⁻¹p) over the last d axes, about their centre, zero outside.

    Quarter turns are exact; everything else is interpolated.
    """
    space = len(matrix)
    turns = _quarter_turns(matrix)
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


def _quarter_turns(matrix: Float[Tensor, "d d"]) -> int | None:
    """How many quarter turns of the (x, y) plane a matrix is, or None."""
    rounded = matrix.round()
    if not torch.allclose(matrix.double(), rounded.double(), atol=1e-6):
        return None
    if torch.equal(rounded, torch.eye(len(matrix), dtype=matrix.dtype)):
        return 0
    corner = rounded[:2, :2]
    turned = [[[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]]
    return next((n + 1 for n, m in enumerate(turned) if torch.equal(corner, matrix.new_tensor(m))), None)


def _shift(grid: Grid, element: Tensor) -> list[int] | None:
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
            lost = range(places) if places > 0 else range(axis.count + places, axis.count)
            valid.index_fill_(part, torch.tensor(list(lost)), False)
    return x.flatten(2, 1 + max(len(grid.axes), 1)), valid.flatten()


def act(x: Tensor, element: Float[Tensor, "dim"], grid: Grid) -> tuple[Tensor, Tensor | None]:
    """A group element applied to images `(b, c, …)`, to features `(b, c, h, …)` or to invariants `(b, c)`.

    Returns the result and, for features, which h are defined: a truncated grid loses those that move out of it.
    """
    if x.ndim == 2:
        return x, None
    matrix = grid.group.matrix(element.double())
    if x.ndim == grid.space + 2:
        return transform_space(x, matrix), None
    shift = _shift(grid, element)
    if shift is None:
        raise ValueError(f"features on {grid} cannot be moved by an element between the grid's: {element.tolist()}")
    moved, valid = _move(x, grid, shift)
    return transform_space(moved, matrix), valid


def _name(grid: Grid, element: Tensor) -> str:
    texts = []
    for value, axis in zip(element.tolist(), grid.axes, strict=True):
        texts.append(f"rotation {math.degrees(value):g}°" if axis.group.period else f"scale ×{value:.4g}")
    return ", ".join(texts)


def _default_elements(grid: Grid) -> list[Tensor]:
    """All grid elements but the identity for a compact axis, one step for a truncated one."""
    elements = []
    for part, axis in enumerate(grid.axes):
        for place in range(1, axis.count if axis.group.period else min(axis.count, 2)):
            vector = torch.zeros(len(grid.axes), dtype=torch.float64)
            vector[part] = place * axis.cell
            elements.append(grid.group.exp(vector))
    return elements


def _disc(sizes: tuple[int, ...], fraction: float) -> Tensor:
    lines = [torch.arange(n, dtype=torch.float64) - (n - 1) / 2 for n in sizes]
    squares = sum(axis.square() for axis in torch.meshgrid(*lines, indexing="ij"))
    return torch.as_tensor(squares).sqrt() <= fraction * (min(sizes) - 1) / 2


def relative(a: Tensor, b: Tensor, *, exact: bool = False, disc: float = 0.75, space: int = 2) -> float:
    """Maximum norm over everything, or Euclidean over a disc."""
    if exact or a.ndim == 2:
        return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
    mask = _disc(tuple(a.shape[-space:]), disc).to(a.device)
    return (((a - b) * mask).norm() / (b * mask).norm().clamp_min(1e-30)).item()


@torch.no_grad()
def equivariance_error(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    grid: Grid,
    elements: list[Tensor] | None = None,
    out_grid: Grid | None = None,
    trim: int = 0,
    disc: float = 0.75,
) -> EquivarianceReport:
    """Compares module(g·x) with g·module(x) for group elements g.

    A module that is in training mode is put into `eval()` for the comparison.

    Args:
        module: a layer or a model, from images or features to features, images or invariants; by their number of axes.
        x: an input for it.
        grid: the grid that the input lives on; for images, the one that the output lives on.
        elements: group elements to try; by default all rotations of the grid and one step of scale.
        out_grid: the grid that the output lives on, if it is another one.
        trim: leaves out so many elements at both ends of a truncated axis, where neighbours are missing.
        disc: radius of the disc on which interpolated elements are compared, relative to the inscribed one.

    Returns:
        One `ElementError` per element; printing it shows a table.
    """
    target = out_grid or grid
    training = isinstance(module, nn.Module) and module.training
    if isinstance(module, nn.Module) and training:
        module.eval()
    report, space = EquivarianceReport(), grid.space
    try:
        reference = module(x)
        for element in _default_elements(grid) if elements is None else elements:
            matrix = grid.group.matrix(element.double())
            moved, valid_in = act(x, element, grid)
            if valid_in is not None and not valid_in.all():
                moved = moved * valid_in.to(moved).reshape(-1, *(1,) * space)
            expected, valid = act(reference, element, target)
            found = module(moved)
            exact = _quarter_turns(matrix) is not None
            if valid is not None:
                keep = valid & _interior(target, trim, shift=_shift(target, element) or [])
                found, expected = found[:, :, keep], expected[:, :, keep]
            error = relative(found, expected, exact=exact, disc=disc, space=space)
            alone = 0.0
            if not exact:
                there = transform_space(x, matrix)
                back = transform_space(there, torch.linalg.inv(matrix))
                alone = relative(back, x, exact=False, disc=disc, space=space)
            report.append(ElementError(_name(grid, element), exact, error, alone))
    finally:
        if isinstance(module, nn.Module) and training:
            module.train()
    return report


def _interior(grid: Grid, trim: int, shift: list[int]) -> Tensor:
    """Elements whose neighbours, before and after a shift, lie within a truncated grid."""
    keep = torch.ones(grid.shape or (1,), dtype=torch.bool)
    for part, (axis, places) in enumerate(zip(grid.axes, shift, strict=True)):
        if axis.group.period is None and trim:
            inside = [n for n in range(axis.count) if all(trim <= m < axis.count - trim for m in (n, n - places))]
            if not inside:
                raise ValueError(f"trim={trim} leaves none of {axis.count} {axis.keyword}")
            lost = [n for n in range(axis.count) if n not in inside]
            keep.index_fill_(part, torch.tensor(lost, dtype=torch.long), False)
    return keep.flatten()


def assert_equivariant(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    grid: Grid,
    tolerance: float | None = None,
    interpolated_tolerance: float | None = None,
    **settings,
) -> EquivarianceReport:
    """Raises an AssertionError with all numbers unless the module commutes with the grid's elements.

    Args:
        module, x, grid: as in `equivariance_error`, which also takes the further settings.
        tolerance: for grid-exact elements; by default 1e-5 in float32 and 1e-11 in float64.
        interpolated_tolerance: for the others; by default they are reported but not judged.
    """
    report = equivariance_error(module, x, grid=grid, **settings)
    if tolerance is None:
        tolerance = 1e-11 if x.dtype == torch.float64 else 1e-5
    if not report.exact and interpolated_tolerance is None:
        raise AssertionError(f"no element of {grid} is exact on pixels; give interpolated_tolerance.\n{report}")
    limit = math.inf if interpolated_tolerance is None else interpolated_tolerance
    if any(not e.error <= (tolerance if e.exact else limit) for e in report):
        raise AssertionError(f"not equivariant to {tolerance:g} (interpolated: {limit:g})\n{report}")
    return report
