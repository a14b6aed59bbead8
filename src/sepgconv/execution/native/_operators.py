"""What all operators of the compiled kernels share: their library of names, how they are registered and called."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sepgconv.execution.native._library import library

OPERATORS = torch.library.Library("sepgconv", "FRAGMENT")
"""Operators as torch knows them: `torch.ops.sepgconv.…`."""


def register(
    name: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    keep: Callable[..., Any] | None = None,
) -> None:
    """Registers how an operator runs on the CPU, what its results look like to a compiler, and its gradient."""
    OPERATORS.impl(name, run, "CPU")
    torch.library.register_fake(f"sepgconv::{name}", fake, lib=OPERATORS)
    if backward is not None:
        torch.library.register_autograd(f"sepgconv::{name}", backward, setup_context=keep, lib=OPERATORS)


def checked(name: str, *arguments: Any) -> None:
    """Calls a function of the library with torch's number of threads."""
    found = library()
    if found is None:
        raise RuntimeError(f"sepgconv::{name}: the compiled kernels are not there (sepgconv.execution.native.status())")
    if getattr(found, f"sepgconv_{name}")(*arguments, torch.get_num_threads()):
        raise MemoryError(f"sepgconv::{name}: no memory for a thread's working space")


def rows(images: Tensor) -> Tensor:
    """Images `(b, c, y, x)` that lie in memory as `(b, y, x, c)`, without gaps."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
