"""Weights that are kept in `eval()`, and when they are still good."""

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.nn.modules import module as hooks

from sepgconv.execution.native import ORDINARY, _library

PLAIN = frozenset({bool, int, float, str})
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
KNOWN = ("sepgconv.", "torch.")
"""Modules of these packages hold nothing else that changes what they compute."""


class Sources(NamedTuple):
    """All that a kernel's samples depend on: its tensors, its modules' classes, plain values such as a frequency."""

    tensors: list[Tensor]
    facts: list[object]


def sources(kernel: nn.Module, like: Tensor) -> Sources | None:
    """What a kernel's samples depend on, or None where nothing may be kept.

    That is: with gradients, under a compiler, a transform of torch.func or a mode that sees every operation, for
    tensors that are not ordinary ones, on other devices (a comparison would wait for them), and where hooks, patches or
    modules of others that hold more than numbers take part in the sampling.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or _functorch.peek_interpreter_stack():
        return None
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return None
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return None
    if like.device.type != "cpu" or type(like) is not Tensor:
        return None
    found = Sources([], [])
    for module in kernel.modules():
        values = vars(module)
        if module._forward_hooks or module._forward_pre_hooks or "forward" in values:
            return None
        found.facts.append(type(module))
        given = (*module._parameters.values(), *module._buffers.values())
        found.tensors.extend([tensor for tensor in given if tensor is not None])
        others = not type(module).__module__.startswith(KNOWN)
        for name, value in values.items():
            if isinstance(value, Tensor):
                found.tensors.append(value)
            elif type(value) in PLAIN:
                found.facts.append(value)
            elif others and value is not None and name not in OF_EVERY_MODULE:
                return None
    return found


def same(tensors: Sequence[Tensor], copies: Sequence[Tensor]) -> bool:
    """Whether tensors equal their contiguous copies, shape, dtype and every number; one call for all of them."""
    if len(tensors) != len(copies):
        return False
    found, left, right, sizes = _library.FOUND or _library.library(), [], [], []
    for a, b in zip(tensors, copies, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if found is False or type(a) not in ORDINARY or a.is_neg() or not (a.is_cpu and b.is_cpu and a.is_contiguous()):
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
    too; comparing takes about 0.1 ms a layer. The copies come first: what another thread writes while the weights are
    made is then a change.
    """

    def __init__(self, made_from: Sources, make: Callable[[], list]) -> None:
        self.facts = made_from.facts
        self.copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in made_from.tensors]
        self.weights = make()

    def holds(self, now: Sources) -> bool:
        """Whether nothing has changed."""
        return now.facts == self.facts and same(now.tensors, self.copies)
