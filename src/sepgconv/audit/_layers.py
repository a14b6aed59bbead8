"""Where in a network a quarter turn is lost: layer by layer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepgconv.actions import act
from sepgconv.audit._subject import Subject
from sepgconv.deploy._layers import Waves
from sepgconv.grids import Grid
from sepgconv.nn._sampled import _Conv

LOST = 1e-4
"""An error of a layer's output, relative to its largest value, above which more than rounding is to blame."""
IMAGES = 4  # all of their activations are kept


@dataclass(frozen=True)
class Layer:
    """How far a layer's output is from turning with the image.

    Args:
        name: in the network.
        kind: its class.
        shape: of its output, without the batch.
        error: largest difference relative to the largest value; None if the output has no known way to turn.
        lost: whether it is here that the turn is lost: what came before was right.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    error: float | None
    lost: bool


@contextmanager
def _watching(module: nn.Module, seen: list[tuple[str, str, Tensor]]) -> Iterator[None]:
    """Writes down what every layer returns; what lies inside of a convolution of ours is not a layer."""
    whole = [part for part in module.modules() if isinstance(part, _Conv | Waves)]
    inside = {part for conv in whole for part in conv.modules() if part is not conv}
    handles = []

    def watch(name: str, kind: str) -> Any:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim >= 2 and output.is_floating_point():
                seen.append((name, kind, output.detach().double()))

        return hook

    try:
        for name, part in module.named_modules():
            if part not in inside and not isinstance(part, nn.Sequential | nn.ModuleList | nn.Identity | Grid):
                handles.append(part.register_forward_hook(watch(name or "the whole", type(part).__name__)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def by_layer(subject: Subject, images: Tensor) -> list[Layer]:
    """Every layer's error under a quarter turn; an empty list where there is no module, or no square image."""
    module = subject.module
    if module is None or images.shape[-1] != images.shape[-2]:
        return []
    runs: list[list[tuple[str, str, Tensor]]] = []
    for turns in (0, 1):
        seen: list[tuple[str, str, Tensor]] = []
        with _watching(module, seen):
            subject.run(images[:IMAGES].rot90(turns, (-2, -1)))
        runs.append(seen)
    if [entry[0] for entry in runs[0]] != [entry[0] for entry in runs[1]]:
        return []
    pairs = list(zip(*runs, strict=True))
    errors = [_error(before, after, subject.grids) for (_, _, before), (_, _, after) in pairs]
    broken = [error is not None and not error <= LOST for error in errors]
    # What comes out right in the end was not lost on the way, however its channels turn.
    first = broken.index(True) if broken and broken[-1] else None
    return [
        Layer(name, kind, tuple(before.shape[1:]), error, number == first)
        for number, (((name, kind, before), _), error) in enumerate(zip(pairs, errors, strict=True))
    ]


def _error(before: Tensor, after: Tensor, grids: tuple[Grid, ...]) -> float | None:
    """The smallest error among the ways in which an output of this shape may turn."""
    candidates = []
    if before.ndim == 2:
        candidates = [before]
    elif before.ndim == 4:
        candidates = [before.rot90(1, (-2, -1))]
    elif before.ndim == 5:
        found = (_turned(before, grid) for grid in grids if grid.size == before.shape[2])
        candidates = [turned for turned in found if turned is not None]
        if not candidates:  # a turn exchanges elements in a way that is not known here, or none
            candidates = [before.rot90(1, (-2, -1))]
            after, candidates = after.sort(2)[0], [turned.sort(2)[0] for turned in candidates]
    # A turn may exchange channels, as in the images (b, h·c, y, x) of a folded network: values are then the same ones.
    sorts = [(after, turned) for turned in candidates]
    sorts += [(after.sort(1)[0], turned.sort(1)[0]) for turned in candidates if before.ndim == 4]
    errors = [
        ((found - turned).abs().max() / turned.abs().max().clamp(min=1e-30)).item()
        for found, turned in sorts
        if turned.shape == found.shape
    ]
    return min((error if math.isfinite(error) else math.inf for error in errors), default=None)


def _quarter(grid: Grid) -> Tensor | None:
    """The element of a grid that turns by 90°, or None if it has none."""
    for part, axis in enumerate(grid.axes):
        if axis.group.name == "rotation" and axis.count % 4 == 0:
            vector = torch.zeros(len(grid.axes), dtype=torch.float64)
            vector[part] = math.pi / 2
            return grid.group.exp(vector)
    return None


def _turned(features: Tensor, grid: Grid) -> Tensor | None:
    element = _quarter(grid)
    return None if element is None else act(features, element, grid)[0]
