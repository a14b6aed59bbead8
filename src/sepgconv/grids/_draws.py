"""Whose shift? A random grid is drawn by one layer and read by others, and features are plain tensors.

Every layer marks the autograd node of what it returns with the number of its grid's move, and a layer that reads looks
for the marks nearest to it in the history of its features. Where there is no history, it counts draws.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sepgconv.grids._grid import Grid

KEY = "sepgconv.moves"
"""Where a node's marks are: by grid, the move of its shift with which a result was made."""
NEVER = -1
"""The last move that a layer has read which has not read any."""
REMEDY = (
    "Give every network a grid of its own (copy.deepcopy(grid)), lift all images in one call, or make the grid with "
    "sampling='fixed'"
)


def computed_again() -> bool:
    """Whether this is a part of a backward pass, as with stock checkpointing."""
    return torch._C._current_graph_task_id() != -1


def check_draw(features: Tensor, grid: "Grid", last: tuple[int, int], layer: nn.Module) -> tuple[int, int]:
    """Raises a ValueError unless features were made with the grid's current shift, or there is no doubt about it.

    Args:
        features: what a layer is given.
        grid: where they live.
        last: the last draw and the last move that the layer has read.
        layer: who reads them.

    Returns:
        The draw and the move that the layer has read now.
    """
    found: dict[int, set[int]] = {}  # by grid, the moves in the nearest marks
    todo, seen, name = [features.grad_fn], set(), type(layer).__name__
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        marks = cast(dict, node.metadata).get(KEY)
        if marks is None:
            todo.extend(before for before, _ in node.next_functions)
        else:
            for key, move in marks.items():
                found.setdefault(key, set()).add(move)
    made = found.get(grid.key)
    moved = last[1] not in (NEVER, grid.moves)  # since the layer has read it
    if made is None and moved and computed_again():
        made = {-1}
    elif made is None and grid.origin is None and layer.training:
        if found:
            raise ValueError(
                f"{name} of {grid} is in training, but no layer has drawn its random grid, and its features come from "
                "another: a layer that was copied, or given a grid of its own, does not follow the layer that makes "
                "its features. Let both share one Grid object, or make the grid with sampling='fixed'"
            )
        grid.origin = "rest"
    elif made is None and grid.origin == "layer":  # no history: the layer must have read the draw before this one
        follows = last[0] in (grid.draws, grid.draws - 1)
        made = None if follows and layer.training and not computed_again() else {-1}
    if made is not None and made != {grid.moves}:
        raise ValueError(
            f"{name} of {grid} reads features of a random grid whose shift has changed since they were made, or may "
            f"have: another forward pass has come in between. {REMEDY}; to compute activations again use the models' "
            "own option"
        )
    return grid.draws, grid.moves
