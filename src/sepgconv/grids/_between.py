"""Values between the samples of a grid: on its circles and on its truncated axes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.grids._axis import Axis
from sepgconv.grids._grid import Grid
from sepgconv.groups import O2, SO2, OneParameter


def circle_matrix(count: int, places: Float[Tensor, "n"]) -> Float[Tensor, "n count"]:
    """What samples the trigonometric polynomial through `count` points of a circle at places, in units of a cell."""
    cells = torch.arange(count, dtype=torch.float64, device="cpu")
    angles = 2 * math.pi * (places.double()[:, None] - cells) / count
    waves = 1 + sum(2 * torch.cos(m * angles) for m in range(1, (count + 1) // 2))
    if count % 2 == 0:  # the highest wave has one phase only
        waves = waves + torch.cos(count / 2 * angles)
    return torch.as_tensor(waves) / count


def line_matrix(count: int, places: Float[Tensor, "n"]) -> Float[Tensor, "n count"]:
    """What samples the cubic through the four points next to each place; rows of zeros outside."""
    result = torch.zeros(len(places), count, dtype=torch.float64)
    width = min(count, 4)
    for row, place in enumerate(places.tolist()):
        if not -1e-6 <= place <= count - 1 + 1e-6:
            continue
        first = min(max(math.floor(place) - 1, 0), count - width)
        nodes = range(first, first + width)
        for node in nodes:
            result[row, node] = math.prod((place - m) / (node - m) for m in nodes if m != node)
    return result


def circles(axis: Axis) -> int:
    """How many circles an axis consists of: one of rotations, another one of mirrored ones; 0 where it is none."""
    return {SO2: 1, O2: 2}.get(type(axis.group), 0)


def move_between(
    features: Float[Tensor, "b c h *s"], element: Float[Tensor, "dim"], grid: Grid, trim: int = 0
) -> tuple[Tensor, Tensor]:
    """f(·, g⁻¹h) for an element between the grid's, and which h of the result are defined.

    Rotations of the plane are interpolated by waves, which is exact for features that the grid can hold; scales by
    cubics. With `trim`, so many elements at both ends of a truncated axis count as undefined, before and after.
    """
    x = features.unflatten(2, grid.shape)
    valid = torch.ones(grid.shape, dtype=torch.bool)
    parts = element.double().split([axis.group.dim for axis in grid.axes])
    for part, (axis, own) in enumerate(zip(grid.axes, parts, strict=True)):
        places, step = _step(axis, own)
        if places is not None:
            x = x.index_select(2 + part, places.to(x.device))
        if axis.group.compact:
            blocks = [circle_matrix(axis.count, torch.arange(axis.count, dtype=torch.float64) - step)] * circles(axis)
            matrix = torch.block_diag(*blocks) if step else torch.eye(axis.size, dtype=torch.float64)
        else:
            before = torch.arange(axis.count, dtype=torch.float64) - step
            matrix, ends = line_matrix(axis.count, before), torch.stack([before, before + step])
            lost = (ends.amin(0) < trim - 1e-6) | (ends.amax(0) > axis.count - 1 - trim + 1e-6)
            valid.index_fill_(part, lost.nonzero().flatten(), False)
        x = torch.movedim(torch.movedim(x, 2 + part, -1) @ matrix.to(x).mT, -1, 2 + part)
    return x.flatten(2, 1 + len(grid.axes)), valid.flatten()


def _step(axis: Axis, element: Float[Tensor, "dim"]) -> tuple[Tensor | None, float]:
    """An element as a move from grid element to grid element, and by how many cells after that."""
    places = axis.places(element)
    if isinstance(axis.group, O2):
        mirror = torch.stack([torch.zeros_like(element[0]), element[1]])
        return axis.places(mirror), element[0].item() / axis.cell
    if isinstance(axis.group, OneParameter):
        return None, axis.group.log(element).item() / (axis.cell or 1.0)
    if places is None:
        raise ValueError(f"features cannot be moved by {axis.group.describe(element)}, between the elements of {axis}")
    return places, 0.0
