"""Is it equivariant? `equivariance_error` gives numbers for a layer or model, `assert_equivariant` throws with them.

`assert_group` checks the facts that a group states.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sepgconv._report import ElementError, EquivarianceReport
from sepgconv.actions import act, is_identity, pixel_map, places_of, shift_space, transform_space
from sepgconv.grids import Grid
from sepgconv.grids._between import move_between
from sepgconv.groups._laws import assert_group

__all__ = ["ElementError", "EquivarianceReport", "assert_equivariant", "assert_group", "equivariance_error"]

ROUNDING = 10  # an exact turn changes an output by up to 9 times what the last bit of its input does (measured)


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
    angles: Iterable[float] = (),
    scales: Iterable[float] = (),
    shifts: Iterable[Sequence[float]] = (),
    out_grid: Grid | None = None,
    trim: int = 0,
    disc: float = 0.75,
) -> EquivarianceReport:
    """Compares module(g·x) with g·module(x) for group elements g, and for shifts.

    A module that is in training mode, or has parts that are, is put into `eval()` for the comparison.

    Args:
        module: a layer or a model, from images or features to features, images or invariants; by their number of axes.
        x: an input for it; with several images, errors are also given relative to how much the output varies.
        grid: the grid that the input lives on; for images, the one that the output lives on.
        elements: group elements to try; by default all rotations and mirrors of the grid and one step of scale, if
            nothing else is asked for. Elements between the grid's are interpolated along h, too.
        angles: rotations to try, in degrees.
        scales: dilations to try, as factors.
        shifts: translations to try, in pixels of the input along its axes (y, x); an output with fewer pixels is
            shifted by as many times fewer.
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
    shifts, asked = list(shifts), [*elements_at(grid, "rotation", angles), *elements_at(grid, "scale", scales)]
    if elements is None and not asked and not shifts:
        elements = _default_elements(grid)
    with _evaluating(module):
        reference = _output(module, x)
        noise = _rounding(module, x, reference) if len(x) > 1 else 0.0
        for element in [*(elements or ()), *asked]:
            matrix = grid.group.matrix(element.double())
            exact = pixel_map(matrix) is not None and not _between(x, element, grid)
            exact = exact and not _between(reference, element, target)
            norm = partial(_norm, exact=exact, disc=disc, space=space)
            moved, valid_in = act(x, element, grid)
            if valid_in is not None and not valid_in.all():
                moved = moved * valid_in.to(moved).reshape(-1, *(1,) * space)
            expected, valid = act(reference, element, target)
            found = _output(module, moved)
            if valid is not None:
                if _between(reference, element, target):
                    keep = move_between(reference, element, target, trim)[1]
                else:
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
                0.0 if exact or reference.ndim == 2 else _interpolation_alone(reference, matrix, norm),
            )
            report.append(entry)
        report.extend(_shift_error(module, x, reference, shift, disc, space) for shift in shifts)
    return report


def elements_at(grid: Grid, name: str, values: Iterable[float]) -> list[Tensor]:
    """Elements that rotate by angles in degrees, or dilate by factors, and do nothing else."""
    sizes = [axis.group.dimension for axis in grid.axes]
    names = [{coordinate.name for coordinate in axis.group.seen} for axis in grid.axes]
    parts = [part for part, size in enumerate(sizes) if size == 1 and name in names[part]]
    values = list(values)
    if values and not parts:
        raise ValueError(f"{name}s can be tried on a grid that has them, got {values} for {grid}")
    found = []
    for value in values:
        vector = torch.zeros(sum(sizes), dtype=torch.float64)
        if name == "scale" and not value > 0:
            raise ValueError(f"scales must be positive, got {value!r}")
        vector[sum(sizes[: parts[0]])] = math.log(value) if name == "scale" else math.radians(value)
        found.append(grid.group.exp(vector))
    return found


def _between(x: Tensor, element: Tensor, grid: Grid) -> bool:
    """Whether these are features that an element moves to between those of their grid."""
    return x.ndim == grid.space + 3 and places_of(grid, element) is None


def _shift_error(
    module: Callable[[Tensor], Tensor], x: Tensor, reference: Tensor, shift: Sequence[float], disc: float, space: int
) -> ElementError:
    """As for a group element: a shift of the input against one of the output. Zeros come in at the border, so whole
    pixels are compared on a disc, too."""
    if len(shift) != space or not all(math.isfinite(pixels) for pixels in shift):
        raise ValueError(f"shifts must have {space} finite numbers each, got {tuple(shift)}")
    norm = partial(_norm, exact=False, disc=disc, space=space)
    found, expected, alone = _output(module, shift_space(x, shift)), reference, 0.0
    if reference.ndim > 2:
        strides = [max(round(a / b), 1) for a, b in zip(x.shape[-space:], reference.shape[-space:], strict=True)]
        there = [pixels / stride for pixels, stride in zip(shift, strides, strict=True)]
        expected = shift_space(reference, there)
        back = shift_space(expected, [-pixels for pixels in there])
        alone = norm(back - reference) / max(norm(reference), 1e-30)
    difference, variation = norm(found - expected), norm(expected - expected.mean(0))
    varied = not torch.equal(expected, expected[:1].expand_as(expected))
    there_and_back = shift_space(shift_space(x, shift), [-pixels for pixels in shift])
    return ElementError(
        f"shift {', '.join(f'{pixels:g}' for pixels in shift)} px",
        False,
        difference / max(norm(expected), 1e-30),
        norm(there_and_back - x) / max(norm(x), 1e-30),
        difference / variation if varied else None,
        output_interpolation=alone,
    )


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
