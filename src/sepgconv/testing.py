"""Is it equivariant? `equivariance_error` gives numbers for a layer or model, `assert_equivariant` throws with them.

`assert_group` checks the facts that a group states.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sepgconv.actions import act, is_identity, pixel_map, places_of, transform_space
from sepgconv.grids import Grid
from sepgconv.groups._laws import assert_group

__all__ = ["ElementError", "EquivarianceReport", "assert_equivariant", "assert_group", "equivariance_error"]

ROUNDING = 10  # an exact turn changes an output by up to 9 times what the last bit of its input does (measured)


@dataclass(frozen=True)
class ElementError:
    """How far a network is from commuting with one group element g.

    `exact` elements map pixels to pixels and grid elements to grid elements: `error` is relative in the maximum norm
    over everything, and only rounding remains. For the others the picture must be interpolated: `error` is relative in
    the Euclidean norm over a central disc, and `interpolation` is what turning the input by g and back costs by itself.

    A constant that all outputs have in common makes `error` small without making a network any more equivariant.
    `variation_error` is the same difference, in the same norm, relative to how much the output varies: to the norm of
    the output minus its mean over the batch. It is None where nothing varies: with a single image, or equal outputs.
    `rounding`, for exact elements, is what the last bit of the input changes, in the same unit.
    """

    element: str
    exact: bool
    error: float
    interpolation: float = 0.0
    variation_error: float | None = None
    rounding: float = 0.0


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
        lines = [f"{'element':<28}{'error':>10}{'of the variation':>18}{'interpolation alone':>22}"]
        for entry in self:
            alone = "exact" if entry.exact else f"{entry.interpolation:.1e}"
            varied = "–" if entry.variation_error is None else f"{entry.variation_error:.1e}"
            lines.append(f"{entry.element:<28}{entry.error:>10.1e}{varied:>18}{alone:>22}")
        if any(entry.variation_error is None for entry in self):
            lines.append("–: the output does not vary; give at least two images that differ")
        return "\n".join(lines)


def _name(grid: Grid, element: Tensor) -> str:
    return grid.group.describe(element)


def _default_elements(grid: Grid) -> list[Tensor]:
    """All grid elements but the identity along a compact axis, one step along a truncated one."""
    group, elements = grid.group, []
    identities = [axis.group.identity(torch.zeros(1, dtype=torch.float64)) for axis in grid.axes]
    for part, axis in enumerate(grid.axes):
        if axis.group.compact:
            moves = axis.elements
        else:  # from one element to the next
            moves = axis.group.product(axis.elements[1:2], axis.group.inverse(axis.elements[:1]))
        for move in moves:
            element = torch.cat([*identities[:part], move, *identities[part + 1 :]])
            if not is_identity(group.matrix(element)):
                elements.append(element)
    return elements


def _disc(sizes: tuple[int, ...], fraction: float) -> Tensor:
    lines = [torch.arange(n, dtype=torch.float64) - (n - 1) / 2 for n in sizes]
    squares = sum(axis.square() for axis in torch.meshgrid(*lines, indexing="ij"))
    return torch.as_tensor(squares).sqrt() <= fraction * (min(sizes) - 1) / 2


def _norm(x: Tensor, *, exact: bool, disc: float, space: int) -> float:
    """The largest value of all, or the Euclidean norm over a disc."""
    if exact or x.ndim == 2:
        return x.abs().max().item()
    return (x * _disc(tuple(x.shape[-space:]), disc).to(x.device)).norm().item()


def relative(a: Tensor, b: Tensor, *, exact: bool = False, disc: float = 0.75, space: int = 2) -> float:
    """Maximum norm over everything, or Euclidean over a disc."""
    norm = partial(_norm, exact=exact, disc=disc, space=space)
    return norm(a - b) / max(norm(b), 1e-30)


@contextmanager
def _evaluating(module: object) -> Iterator[None]:
    """A module in `eval()`; afterwards every part is in the mode that it was in, whatever happened."""
    modes = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        if isinstance(module, nn.Module) and any(training for _, training in modes):
            module.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training  # `train()` would take its children along


@torch.no_grad()
def equivariance_error(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    grid: Grid,
    elements: Iterable[Tensor] | None = None,
    out_grid: Grid | None = None,
    trim: int = 0,
    disc: float = 0.75,
) -> EquivarianceReport:
    """Compares module(g·x) with g·module(x) for group elements g.

    A module that is in training mode, or has parts that are, is put into `eval()` for the comparison.

    Args:
        module: a layer or a model, from images or features to features, images or invariants; by their number of axes.
        x: an input for it; with several images, errors are also given relative to how much the output varies.
        grid: the grid that the input lives on; for images, the one that the output lives on.
        elements: group elements to try; by default all rotations and mirrors of the grid and one step of scale.
        out_grid: the grid that the output lives on, if it is another one.
        trim: leaves out so many elements at both ends of a truncated axis, where neighbours are missing.
        disc: radius of the disc on which interpolated elements are compared, relative to the inscribed one.

    Returns:
        One `ElementError` per element; printing it shows a table.
    """
    if not x.numel():
        raise ValueError(f"x must hold an image at least, got one of shape {tuple(x.shape)}")
    target = out_grid or grid
    report, space = EquivarianceReport(), grid.space
    with _evaluating(module):
        reference = _output(module, x)
        noise = _rounding(module, x, reference) if len(x) > 1 else 0.0
        for element in _default_elements(grid) if elements is None else elements:
            matrix = grid.group.matrix(element.double())
            exact = pixel_map(matrix) is not None
            norm = partial(_norm, exact=exact, disc=disc, space=space)
            moved, valid_in = act(x, element, grid)
            if valid_in is not None and not valid_in.all():
                moved = moved * valid_in.to(moved).reshape(-1, *(1,) * space)
            expected, valid = act(reference, element, target)
            found = _output(module, moved)
            if valid is not None:
                keep = valid & _interior(target, trim, places_of(target, element) or [])
                if not keep.any():
                    raise ValueError(f"{_name(grid, element)} moves all of the features out of {target}")
                found, expected = found[:, :, keep], expected[:, :, keep]
            difference, size = norm(found - expected), norm(expected)
            varied = not torch.equal(expected, expected[:1].expand_as(expected))
            variation = norm(expected - expected.mean(0))
            entry = ElementError(
                _name(grid, element),
                exact,
                difference / max(size, 1e-30),
                0.0 if exact else _interpolation_alone(x, matrix, norm),
                difference / variation if varied else None,
                noise / variation if varied and exact else 0.0,
            )
            report.append(entry)
    return report


def _output(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a module returns; whole numbers, such as labels, as floats."""
    y = module(x)
    if not isinstance(y, Tensor) or y.ndim < 2 or len(y) != len(x):
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"module must return a tensor (b, c, …) with b = {len(x)}, got {found}")
    return y if y.is_floating_point() or y.is_complex() else y.double()


def _rounding(module: Callable[[Tensor], Tensor], x: Tensor, reference: Tensor) -> float:
    """How much the output changes with the last bit of every input value; its own last bit at least."""
    if not x.is_floating_point():
        return 0.0
    change = (_output(module, x * (1 - torch.finfo(x.dtype).eps)) - reference).abs().max().item()
    return max(change, torch.finfo(reference.dtype).eps * reference.abs().max().item())


def _interpolation_alone(x: Tensor, matrix: Tensor, norm: Callable[[Tensor], float]) -> float:
    back = transform_space(transform_space(x, matrix), torch.linalg.inv(matrix))
    return norm(back - x) / max(norm(x), 1e-30)


def _interior(grid: Grid, trim: int, places: list[Tensor]) -> Tensor:
    """Elements whose neighbours, before and after a move, lie within a truncated grid."""
    keep = torch.ones(grid.shape or (1,), dtype=torch.bool)
    for part, (axis, place) in enumerate(zip(grid.axes, places, strict=True)):
        if not axis.group.compact and trim:
            inside = [all(trim <= m < axis.size - trim for m in pair) for pair in enumerate(place.tolist())]
            if not any(inside):
                raise ValueError(f"trim={trim} leaves none of {axis.size} {axis.keyword}")
            keep.index_fill_(part, (~torch.tensor(inside)).nonzero().flatten(), False)
    return keep.flatten()


def assert_equivariant(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    grid: Grid,
    tolerance: float | None = None,
    variation_tolerance: float | None = None,
    interpolated_tolerance: float | None = None,
    elements: Iterable[Tensor] | None = None,
    **settings,
) -> EquivarianceReport:
    """Raises an AssertionError with all numbers unless the module commutes with the grid's elements.

    Both numbers of an `ElementError` are judged: the error relative to the output, and relative to how much the output
    varies from image to image; the second one needs at least two images that differ, and is left out without.

    The second has a tolerance of its own, since rounding is in proportion to the output, however little it varies: the
    logits of a network as it is drawn vary by 1 to 10 % of their size, and a hundred times the first tolerance allows
    for that. Where an output varies still less, rounding is all there is to see: ten times what the last bit of the
    input changes is allowed besides (`ElementError.rounding`; turns of networks made here reach nine times). What this
    leaves undetected is asymmetry below a millionth of an output in float32; float64 sees 1e9 times more.

    Args:
        module, x, grid, elements: as in `equivariance_error`, which also takes the further settings.
        tolerance: for grid-exact elements; by default 1e-5 in float32 and 1e-11 in float64.
        variation_tolerance: for their second number; by default 100 · `tolerance`.
        interpolated_tolerance: for both numbers of the others; by default they are reported but not judged.
    """
    elements = _default_elements(grid) if elements is None else list(elements)
    if all(is_identity(grid.group.matrix(element.double())) for element in elements):
        raise AssertionError(f"nothing was tested: no element but the identity, of {len(elements)} on {grid}")
    report = equivariance_error(module, x, grid=grid, elements=elements, **settings)
    if tolerance is None:
        tolerance = 1e-11 if x.dtype == torch.float64 else 1e-5
    if variation_tolerance is None:
        variation_tolerance = 100 * tolerance
    if not report.exact and interpolated_tolerance is None:
        raise AssertionError(f"no element of {grid} is exact on pixels; give interpolated_tolerance.\n{report}")
    limit = math.inf if interpolated_tolerance is None else interpolated_tolerance
    if any(not e.error <= (tolerance if e.exact else limit) for e in report):
        raise AssertionError(f"not equivariant to {tolerance:g} (interpolated: {limit:g})\n{report}")
    for e in report:
        allowed = variation_tolerance + ROUNDING * e.rounding if e.exact else limit
        if e.variation_error is not None and not e.variation_error <= allowed:
            raise AssertionError(f"not equivariant to {allowed:.1e} of the variation from image to image\n{report}")
    return report
