"""What all operators of the compiled kernels share: their library of names, and how they are registered."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    """Registers how an operator runs on the CPU, what its results look like to a compiler, and its gradient.

    What is to be kept for that says `keep`; otherwise all inputs are, which must be tensors.
    """
    OPERATORS.impl(name, run, "CPU")
    torch.library.register_fake(f"sepgconv::{name}", fake, lib=OPERATORS)
    if backward is not None:
        keep = keep or (lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
        torch.library.register_autograd(f"sepgconv::{name}", backward, setup_context=keep, lib=OPERATORS)


def product_gradients(
    grad: Tensor, flat: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of a product of rows and weights; nothing for one that is not needed."""
    return flat.new_empty(flat.shape if needs_x else (0,)), weight.new_empty(weight.shape if needs_weight else (0,))
