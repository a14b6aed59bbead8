"""Whose shift? A random grid is drawn by one layer and read by others, and features are plain tensors.

The layer that draws marks the autograd node of what it returns. A layer that reads compares counts, and only if these
leave a doubt it looks for the marks in the history of its features.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from sepgconv.grids._grid import Grid

KEY = "sepgconv.draws"
REMEDY = (
    "Give every network a grid of its own (copy.deepcopy(grid)), lift all images in one call, or make the grid with "
    "sampling='fixed'"
)


def mark(result: Tensor, grid: "Grid") -> None:
    """Notes in the history of a result which draw it was made with."""
    if result.grad_fn is not None:
        notes = cast(dict, result.grad_fn.metadata)
        notes.setdefault(KEY, {})[grid.key] = grid.draws


def history(features: Tensor) -> dict[int, set[int]]:
    """By grid, the draws with which features were made, as far as their history tells."""
    found: dict[int, set[int]] = {}
    todo, seen = [features.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for key, number in cast(dict, node.metadata).get(KEY, {}).items():
            found.setdefault(key, set()).add(number)
        todo.extend(before for before, _ in node.next_functions)
    return found


def check_draw(features: Tensor, grid: "Grid", last: int, layer: nn.Module) -> int:
    """Raises a ValueError unless features were made with the grid's current shift, or there is no doubt about it.

    Args:
        features: what a layer is given.
        grid: where they live.
        last: the last draw that the layer has read.
        layer: who reads them.

    Returns:
        The draw that the layer has read now.
    """
    number, origin, training = grid.draws, grid.origin, layer.training
    again = torch._C._current_graph_task_id() != -1  # computed again in a backward pass
    if origin is None and training:
        if history(features):
            raise ValueError(
                f"{type(layer).__name__} of {grid} is in training, but no layer has drawn its random grid, and its "
                "features come from another: a layer that was copied, or given a grid of its own, does not follow the "
                "layer that makes its features. Let both share one Grid object, or make the grid with sampling='fixed'"
            )
        grid.origin = "rest"
    elif origin == "layer" and (again or not training or last not in (number, number - 1)):
        made = history(features).get(grid.key, set())
        if made != {number}:
            stale = ", ".join(map(str, sorted(made))) or "unknown"
            raise ValueError(
                f"{type(layer).__name__} of {grid} reads features of a random grid that has been drawn anew since "
                f"(their draw: {stale}, the grid's: {number}): another forward pass has come in between. {REMEDY}; to "
                "compute activations again use the models' own option"
            )
    return number
