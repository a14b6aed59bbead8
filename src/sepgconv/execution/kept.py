"""Weights that are kept in `eval()`, and when they are still good."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from sepgconv.execution.native import ORDINARY, _library

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


def same(tensors: Sequence[Tensor], copies: Sequence[Tensor]) -> bool:
    """Whether tensors equal their contiguous copies, shape, dtype and every number; one call for all of them."""
    if len(tensors) != len(copies):
        return False
    found, left, right, sizes = _library.FOUND or _library.library(), [], [], []
    for a, b in zip(tensors, copies, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if found is False or type(a) not in ORDINARY or not (a.is_cpu and b.is_cpu and a.is_contiguous()):
            if not torch.equal(a, b):
                return False
            continue
        left.append(a.data_ptr())
        right.append(b.data_ptr())
        sizes.append(b.nbytes)
    if found is False:
        return True
    places, count = ctypes.c_void_p * len(left), len(left)
    return bool(found.sepgconv_same(places(*left), places(*right), (ctypes.c_int64 * count)(*sizes), count))


class Kept:
    """Weights, and copies of all that they were made from: good as long as these are the same, number by number.

    A version counter does not see writes through `.data`, an address may be freed and used again, and buffers count,
    too; comparing takes about 0.1 ms a layer.
    """

    def __init__(self, made_from: Sources, weights: list) -> None:
        self.facts, self.weights = made_from.facts, weights
        self.copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in made_from.tensors]

    def holds(self, now: Sources) -> bool:
        """Whether nothing has changed."""
        return now.facts == self.facts and same(now.tensors, self.copies)
