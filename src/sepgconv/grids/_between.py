"""Values between the samples of a grid: on its circles and on its truncated axes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.grids._axis import Axis
from sepgconv.grids._grid import Grid
from sepgconv.groups import OneParameter


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
        if not -1e-9 <= place <= count - 1 + 1e-9:
            continue
        first = min(max(math.floor(place) - 1, 0), count - width)
        nodes = range(first, first + width)
        for node in nodes:
            result[row, node] = math.prod((place - m) / (node - m) for m in nodes if m != node)
    return result


def steps_of(axis: Axis, element: Float[Tensor, "dim"]) -> float:
    """By how many cells an element moves an axis that is a line, a circle, or a circle and its mirror image."""
    group, element = axis.group, element.double()
    if group.circles:
        turn = group.coordinates(element)
        if torch.linalg.det(group.matrix(element)) > 0:  # no mirror
            angle = group.log(element)[0] if isinstance(group, OneParameter) else torch.atan2(turn[1], turn[0])
            return angle.item() / axis.cell
    elif isinstance(group, OneParameter):
        return group.log(element)[0].item() / axis.cell if axis.cell else 0.0
    raise ValueError(
        f"features at {axis.count} {axis.keyword} of {group.name} cannot be moved by an element between the grid's: "
        f"{group.describe(element)}"
    )


def move_between(
    features: Float[Tensor, "b c h *s"], element: Float[Tensor, "dim"], grid: Grid, trim: int = 0
) -> tuple[Tensor, Tensor]:
    """f(·, g⁻¹h) for an element between the grid's, and which h of the result are defined.

    Rotations are interpolated by waves, which is exact for features that the grid can hold; scales by cubics. With
    `trim`, so many elements at both ends of a truncated axis count as undefined, before and after the move.
    """
    x = features.unflatten(2, grid.shape)
    valid = torch.ones(grid.shape, dtype=torch.bool)
    elements = element.split([axis.group.dim for axis in grid.axes])
    for part, (axis, own) in enumerate(zip(grid.axes, elements, strict=True)):
        step = steps_of(axis, own)
        places = torch.arange(axis.count, dtype=torch.float64) - step
        if axis.group.circles:
            matrix = torch.block_diag(*[circle_matrix(axis.count, places)] * axis.group.circles)
        else:
            matrix = line_matrix(axis.count, places)
            ends = torch.stack([places, places + step])  # before and after
            lost = (ends.amin(0) < trim - 1e-9) | (ends.amax(0) > axis.count - 1 - trim + 1e-9)
            valid.index_fill_(part, lost.nonzero().flatten(), False)
        x = torch.movedim(torch.movedim(x, 2 + part, -1) @ matrix.to(x).mT, -1, 2 + part)
    return x.flatten(2, 1 + len(grid.axes)), valid.flatten()
