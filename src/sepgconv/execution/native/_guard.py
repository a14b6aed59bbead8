"""When the compiled kernels may be used: where they may not, the same numbers come from stock operations."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sepgconv.execution.native._library import library

_level = torch._C._functorch.maybe_current_level  # pyright: ignore[reportAttributeAccessIssue]


def applies(*tensors: Tensor | None) -> bool:
    """Whether all tensors are ordinary float32 ones on the CPU, the kernels are there, and no transform is under way.

    Under `torch.func`'s transforms a registered gradient raises, forward derivatives and autocast have no rule here,
    and exported files hold stock operations only.
    """
    for tensor in tensors:
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            return False
    if torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting() and _at_hand()
    return _at_hand() and forward_ad._current_level < 0 and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def _at_hand() -> bool:
    """Whether the kernels are there and no transform is under way: for a compiler, as at the time it looks."""
    return library() is not None and _level() is None


# What torch.compiler.assume_constant_result does, without importing the compiler (two seconds).
_at_hand._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
