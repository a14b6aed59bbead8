"""Is it equivariant? `equivariance_error` gives numbers for a layer or model, `assert_equivariant` throws with them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sepgconv.actions import act, quarter_turns, shift_of, transform_space
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
            exact = quarter_turns(matrix) is not None
            if valid is not None:
                keep = valid & _interior(target, trim, shift=shift_of(target, element) or [])
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
