"""When the compiled kernels may be used: where they may not, the same numbers come from stock operations."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from sepgconv.execution.native import _library

_level = torch._C._functorch.maybe_current_level  # pyright: ignore[reportAttributeAccessIssue]
_tracing = torch._C._is_tracing
ORDINARY = (Tensor, nn.Parameter)


def in_transform() -> bool:
    """Whether a transform of `torch.func`, a forward derivative or a tracer looks at what is computed."""
    return _level() is not None or forward_ad._current_level >= 0 or _tracing()


def applies(*tensors: Tensor | None) -> bool:
    """Whether all tensors are ordinary float32 ones on the CPU, the kernels are there, and no transform is under way.

    A layer asks once and tells its operations. Under `torch.func`'s transforms a registered gradient raises, forward
    derivatives and autocast have no rule here, and exported files hold stock operations only.
    """
    if torch.compiler.is_compiling():
        ready = not torch.compiler.is_exporting() and _for_a_compiler()
    else:
        found = _library.library() if _library.FOUND is None else _library.FOUND
        ready = found is not False and _level() is None and forward_ad._current_level < 0 and not _tracing()
    if not ready or torch.is_autocast_enabled("cpu"):
        return False
    for tensor in tensors:
        if tensor is not None and not (
            tensor.dtype == torch.float32 and tensor.device.type == "cpu" and type(tensor) in ORDINARY
        ):
            return False
    return True


def _for_a_compiler() -> bool:
    """Whether the kernels are there and no transform is under way, as at the time a compiler looks."""
    return _library.library() is not False and _level() is None


# What torch.compiler.assume_constant_result does, without importing the compiler (two seconds).
_for_a_compiler._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
