"""What all operators of the compiled kernels share: their library of names, and how they are registered."""

from collections.abc import Callable
from typing import Any

import torch

OPERATORS = torch.library.Library("sepgconv", "FRAGMENT")
"""Operators as torch knows them: `torch.ops.sepgconv.…`."""
NO_MEMORY = "sepgconv: no memory for a thread's working space"


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
