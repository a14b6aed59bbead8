"""Convolution, norm and ReLU: fused where that is the same and nobody looks in between, module by module where not."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from sepgconv.execution.native import ORDINARY, applies
from sepgconv.nn._conv import GroupConv, LiftingConv
from sepgconv.nn._norm import BatchNorm

FORWARDS: dict[type[nn.Module], object] = {kind: kind.forward for kind in (GroupConv, LiftingConv, BatchNorm, nn.ReLU)}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fusable(*modules: nn.Module) -> bool:
    """Whether calling these modules one by one would do nothing but what they do together.

    They must be ours, as we made them: no subclass, no patched or compiled `forward`. Nobody may look at what goes in
    or comes out: no hook on a module, and none on all modules. And nobody may take the computation apart: no compiler
    and no transform of torch.func.
    """
    if torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None:
        return False
    if any(getattr(torch_module, f"_global{name}") for name in HOOKS):
        return False
    for module in modules:
        ours = FORWARDS.get(type(module))
        if ours is None or type(module).forward is not ours or "forward" in vars(module):
            return False
        if module._compiled_call_impl is not None or any(vars(module)[name] for name in HOOKS):
            return False
    return True


def conv_norm_relu(
    conv: nn.Module,
    norm: nn.Module,
    features: Tensor,
    *,
    shortcut: tuple[nn.Module, Tensor] | None = None,
    reader: nn.Module | None = None,
) -> Tensor:
    """`relu(norm(conv(features)))`, and with a shortcut `relu(relu(norm(conv(features))) + shortcut(…))`.

    In training norm, ReLU and sum are one operation that keeps only its input and the sum; in eval without gradients
    they become part of the convolution.

    Args:
        conv: any convolution; ours can be fused.
        norm: any norm; a `BatchNorm` can be fused.
        features: what to convolve.
        shortcut: a module that makes what is added, and what it takes; called after a convolution that moves the grid.
        reader: the module that alone reads the result, if there is one: what it hands back may be written over.
    """
    if not fusable(*(module for module in (conv, norm, reader) if module is not None)):
        result = F.relu(_normalised(norm, _convolved(conv, features)))
        return result if shortcut is None else F.relu(result + _added(*shortcut, result.shape, conv), inplace=True)
    assert isinstance(conv, LiftingConv | GroupConv)
    assert isinstance(norm, BatchNorm)
    native = applies(features, conv.bias, norm.weight, norm.bias, norm.running_mean)
    conv.check(features)
    if norm.training or conv.training or norm.running_mean is None or torch.is_grad_enabled():
        result = conv.convolve(features, own=True, native=native)
        addend = None if shortcut is None else _added(*shortcut, result.shape, conv)
        native = native and (addend is None or _alike(addend, features))
        given = {"own": reader is not None, "remade": isinstance(reader, GroupConv) and not reader.saves_memory}
        return norm.normalise(result, relu=True, addend=addend, native=native, **given)
    addend = None if shortcut is None else _added(*shortcut, conv.output_shape(features), conv)
    native = native and (addend is None or _alike(addend, features))
    return conv.convolve(features, norm, addend=addend, native=native)


def run_layers(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Layers one after the other; a convolution, a norm and a ReLU that follow each other as one."""
    at = 0
    while at < len(layers):
        three = layers[at : at + 3]
        if [type(layer) for layer in three[1:]] == [BatchNorm, nn.ReLU] and fusable(*three):
            x, at = conv_norm_relu(three[0], three[1], x), at + 3
        else:
            x, at = layers[at](x), at + 1
    return x


def _added(shortcut: nn.Module, given: Tensor, shape: torch.Size, conv: nn.Module) -> Tensor:
    result = shortcut(given)
    if result.shape != shape:
        names = type(shortcut).__name__, type(conv).__name__
        raise ValueError(
            f"a residual block cannot add {names[0]}'s {tuple(result.shape)} to {names[1]}'s {tuple(shape)}"
        )
    return result


def _alike(addend: Tensor, features: Tensor) -> bool:
    """Whether what a shortcut has made is as ordinary as what it was made from."""
    return type(addend) in ORDINARY and addend.dtype == features.dtype and addend.device == features.device


def _convolved(conv: nn.Module, features: Tensor) -> Tensor:
    result = conv(features)
    if not isinstance(result, Tensor) or result.ndim != features.ndim or result.shape[0] != features.shape[0]:
        found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"{type(conv).__name__} stands for a group convolution and must return (b, c, h, ...): it made {found} of "
            f"{tuple(features.shape)}"
        )
    return result


def _normalised(norm: nn.Module, features: Tensor) -> Tensor:
    result = norm(features)
    if not isinstance(result, Tensor) or result.shape != features.shape:
        found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(f"{type(norm).__name__} stands for a norm and must keep {tuple(features.shape)}, got {found}")
    return result
