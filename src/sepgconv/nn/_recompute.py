"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sepgconv.grids import Grid


class Rewind:
    """Lets modules run on copies of the buffers they have now, whenever it is entered and as often as it is.

    Running statistics, counters and the shifts of grids are then read as they were, and what the modules write to them
    is dropped. The buffers themselves are neither read nor written, so their version counters stay.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        owners = {owner: None for module in modules for owner in module.modules()}
        self._places: list[tuple[dict[str, Any], str]] = [
            (owner._buffers, name) for owner in owners for name, buffer in owner._buffers.items() if buffer is not None
        ]
        grids = [owner for owner in owners if isinstance(owner, Grid)]
        self._places += [(vars(grid), name) for grid in grids for name in ("draws", "moves", "origin")]
        self._then = [_copied(holder[name]) for holder, name in self._places]
        self._now: list[Any] = []

    def __enter__(self) -> None:
        self._now = [holder[name] for holder, name in self._places]
        for (holder, name), then in zip(self._places, self._then, strict=True):
            holder[name] = _copied(then)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (holder, name), now in zip(self._places, self._now, strict=True):
            holder[name] = now


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


def recompute(function: Callable[..., Result], modules: Iterable[nn.Module], *inputs: Tensor) -> Result:
    """`function(*inputs)`, keeping only the inputs for the backward pass, which runs the function again.

    The second run draws the same random numbers and sees the modules' buffers as they were: dropout masks and randomly
    sampled grids are those of the first, and running statistics count a batch once.

    Args:
        function: what to run.
        modules: the modules that it runs, whose buffers it may change.
        inputs: its arguments.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    if torch.compiler.is_compiling():  # the compiler turns writes to buffers into outputs: they happen once
        return checkpoint(function, *inputs, use_reentrant=False)
    rewind = Rewind(modules)
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), rewind))
