"""Weights that are kept in `eval()`, and when they are still good."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

PLAIN = frozenset({bool, int, float, str})


class Sources(NamedTuple):
    """All that a kernel's samples depend on: its tensors, and plain values such as a frequency."""

    tensors: list[Tensor]
    facts: list[object]


def sources(kernel: nn.Module, like: Tensor) -> Sources | None:
    """What a kernel's samples depend on, or None where nothing may be kept.

    That is: with gradients, under a compiler or a transform of torch.func, for tensors that are not ordinary ones, on
    other devices (a comparison would wait for them), and where hooks or patches take part in the sampling.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or _functorch.peek_interpreter_stack():
        return None
    if like.device.type != "cpu" or type(like) is not Tensor:
        return None
    found = Sources([], [])
    for module in kernel.modules():
        values = vars(module)
        if module._forward_hooks or module._forward_pre_hooks or "forward" in values:
            return None
        for value in (*module._parameters.values(), *module._buffers.values(), *values.values()):
            if isinstance(value, Tensor):
                found.tensors.append(value)
            elif type(value) in PLAIN:
                found.facts.append(value)
    return found


class Kept:
    """Weights, and copies of all that they were made from: good as long as these are the same, number by number.

    A version counter does not see writes through `.data`, an address may be freed and used again, and buffers count,
    too; comparing takes well under a millisecond.
    """

    def __init__(self, made_from: Sources, weights: list) -> None:
        self.facts, self.weights = made_from.facts, weights
        self.copies = [tensor.detach().clone() for tensor in made_from.tensors]

    def holds(self, now: Sources) -> bool:
        """Whether nothing has changed."""
        if now.facts != self.facts or len(now.tensors) != len(self.copies):
            return False
        pairs = zip(now.tensors, self.copies, strict=True)
        return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
