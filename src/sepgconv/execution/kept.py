"""Weights that are kept in `eval()`, and when they are still good."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.nn.modules import module as hooks

from sepgconv.execution.native import ORDINARY, _library
from sepgconv.execution.plan import Plan

PLAIN = frozenset({bool, int, float, str})
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
KNOWN = ("sepgconv.", "torch.")
"""Modules of these packages hold nothing else that changes what they compute."""
Value = TypeVar("Value")


def sources(roots: Iterable[nn.Module], like: Tensor) -> list[object] | None:
    """All that modules and their children are and hold, and weights depend on; None where nothing may be kept.

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
    found: list[object] = []
    modules = list(roots)
    for module in modules:  # which grows meanwhile
        values, kind = vars(module), type(module)
        if values["_forward_hooks"] or values["_forward_pre_hooks"] or "forward" in values:
            return None
        if not kind.__module__.startswith(KNOWN) and any(map(_unknown, values.items())):
            return None
        found.append(kind)
        found += values["_parameters"].values()
        found += values["_buffers"].values()
        found += values.values()
        modules += [child for child in values["_modules"].values() if child is not None]
    return found


def _unknown(item: tuple[str, object]) -> bool:
    """Whether a module's attribute is something that cannot be compared."""
    name, value = item
    if value is None or isinstance(value, Tensor) or type(value) in PLAIN:
        return False
    return name not in OF_EVERY_MODULE


class Kept(Generic[Value]):
    """Weights, and copies of all that they were made from: good as long as these are the same, number by number.

    A version counter does not see writes through `.data`, an address may be freed and used again, and buffers count,
    too. Where all objects are those of before, plain values are, too, and only the tensors' numbers are compared: about
    0.05 ms a layer. The copies come first: what another thread writes while the weights are made is then a change.

    Args:
        held: what `sources` has found, and tensors and plain things besides.
        make: makes what is to be kept.
    """

    def __init__(self, held: list[object], make: Callable[[], Value]) -> None:
        self.held = held  # objects that are held have ids of their own
        self.ids = list(map(id, held))
        self.tensors, self.facts = _sorted(held)
        self.looks = [(t.dtype, t.shape) for t in self.tensors]
        self.copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in self.tensors]
        count = len(self.tensors)
        self.places = (ctypes.c_void_p * count)(*[copy.data_ptr() for copy in self.copies])
        self.sizes = (ctypes.c_int64 * count)(*[copy.nbytes for copy in self.copies])
        self.made = make()

    def holds(self, held: list[object]) -> bool:
        """Whether nothing has changed."""
        tensors = self.tensors
        if list(map(id, held)) != self.ids:
            tensors, facts = _sorted(held)
            if facts != self.facts:
                return False
        if [(t.dtype, t.shape) for t in tensors] != self.looks:
            return False
        found = _library.FOUND or _library.library()
        if found is False or not all(map(_readable, tensors)):
            return all(torch.equal(a, b) for a, b in zip(tensors, self.copies, strict=True))
        places = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        return bool(found.sepgconv_same(places, self.places, self.sizes, len(tensors)))


def _readable(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are those in memory, one after the other."""
    return tensor.is_cpu and tensor.is_contiguous() and type(tensor) in ORDINARY and not tensor.is_neg()


def _sorted(held: list[object]) -> tuple[list[Tensor], list[object]]:
    """Tensors, and what is compared as it is: classes, a plan, plain values such as a frequency."""
    facts = [x for x in held if type(x) in PLAIN or isinstance(x, type | Plan)]
    return [x for x in held if isinstance(x, Tensor)], facts
