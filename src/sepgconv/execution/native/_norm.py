"""Batch norm and ReLU with compiled kernels: `sepgconv::norm_statistics`, `…norm_result` and `…norm_backward`."""

import ctypes

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import OPERATORS, checked, register

Running = tuple[Tensor | None, Tensor | None]
"""Running mean and variance."""


class _Norm(ctypes.Structure):
    """`sepgconv_norm` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "bias", "y", "grad_weight", "grad_bias")),
        *((name, ctypes.c_void_p) for name in ("mean", "variance")),
        *((name, ctypes.c_int64) for name in ("rows", "channels", "relu")),
        ("eps", ctypes.c_double),
    ]


def batch_norm(
    features: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running,
    momentum: float,
    eps: float,
    *,
    relu: bool = True,
    private: bool = False,
) -> Tensor:
    """`relu(batch_norm(features))` with the statistics of the batch, keeping nothing but the features.

    A result that is `private` goes to one operation that hands back a gradient of its own: the features' gradient is
    written over it.

    Shapes:
        features `(b, c, h, …)`, in rows; all others `(c)`
    """
    rows = rearrange(features, "b c h ... -> b ... h c")
    flat = rows.reshape(-1, rows.shape[-1])
    if len(flat) < 2 or not applies(features, weight, bias):
        found = F.batch_norm(flat, *running, weight, bias, True, momentum, eps)
        found = F.relu(found) if relu else found
    else:
        mean, variance = torch.ops.sepgconv.norm_statistics.default(flat.detach())
        _follow(running, mean, variance * (len(flat) / (len(flat) - 1)), momentum)
        found = torch.ops.sepgconv.norm_result.default(flat, weight, bias, mean, variance, eps, relu, private)
    return rearrange(found.reshape(rows.shape), "b ... h c -> b c h ...")


@torch.no_grad()
def _follow(running: Running, mean: Tensor, variance: Tensor, momentum: float) -> None:
    for old, new in zip(running, (mean, variance), strict=True):
        if old is not None:
            old.lerp_(new.to(old), momentum)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _statistics(flat: Tensor) -> tuple[Tensor, Tensor]:
    flat, (mean, variance) = flat.contiguous(), _moments(flat)
    call = _Norm(x=flat.data_ptr(), mean=mean.data_ptr(), variance=variance.data_ptr(), rows=len(flat))
    call.channels = flat.shape[1]
    checked("norm_statistics", ctypes.byref(call))
    return mean, variance


def _moments(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for mean and variance."""
    return flat.new_empty(flat.shape[1], dtype=torch.float64), flat.new_empty(flat.shape[1], dtype=torch.float64)


def _call(
    flat: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float, relu: bool
) -> _Norm:
    call = _Norm(x=flat.data_ptr(), weight=_pointer(weight), bias=_pointer(bias), eps=eps, relu=relu)
    call.mean, call.variance = mean.data_ptr(), variance.data_ptr()
    call.rows, call.channels = flat.shape
    return call


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _result(
    flat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    relu: bool,
    private: bool,
) -> Tensor:
    flat, weight, bias, result = flat.contiguous(), _contiguous(weight), _contiguous(bias), _like(flat)
    call = _call(flat, weight, bias, mean.contiguous(), variance.contiguous(), eps, relu)
    call.y = result.data_ptr()
    checked("norm_result", ctypes.byref(call))
    return result


def _like(flat: Tensor, *_) -> Tensor:
    """Memory for the result."""
    return flat.new_empty(flat.shape)


def _backward(
    grad: Tensor,
    flat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    relu: bool,
    needs_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    results = _gradients(grad, flat, weight, bias, mean, variance, eps, relu, needs_x)
    _differentiate_into(
        results[0] if needs_x else None, grad, flat, weight, bias, mean, variance, eps, relu, results[1:]
    )
    return results


def _gradients(grad: Tensor, flat: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the gradients; nothing for one that is not needed."""
    dx = flat.new_empty(flat.shape if rest[-1] else (0,))
    return dx, *_slopes(flat)


def _slopes(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of weight and bias."""
    return flat.new_empty(flat.shape[1]), flat.new_empty(flat.shape[1])


def _over(
    grad: Tensor,
    flat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """As `_backward`, with the gradient for x written over grad."""
    slopes = _slopes(flat)
    _differentiate_into(grad, grad, flat, weight, bias, mean, variance, eps, relu, slopes)
    return slopes


def _differentiate_into(into: Tensor | None, grad, flat, weight, bias, mean, variance, eps, relu, slopes) -> None:
    grad, flat, weight, bias = grad.contiguous(), flat.contiguous(), _contiguous(weight), _contiguous(bias)
    call = _call(flat, weight, bias, mean.contiguous(), variance.contiguous(), eps, relu)
    call.grad, call.y = grad.data_ptr(), _pointer(into)
    call.grad_weight, call.grad_bias = (slope.data_ptr() for slope in slopes)
    checked("norm_backward", ctypes.byref(call))


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    flat, weight, bias, mean, variance, ctx.eps, ctx.relu, ctx.private = inputs
    ctx.save_for_backward(flat, weight, bias, mean, variance)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    flat, weight, bias, mean, variance = ctx.saved_tensors
    needed = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled() or not applies(grad):  # a second derivative
        inputs = [t for t, need in zip((flat, weight, bias), needed, strict=True) if need]
        with torch.enable_grad():
            again = F.batch_norm(flat, None, None, weight, bias, True, 0.0, ctx.eps)
            again = F.relu(again) if ctx.relu else again
            found = iter(torch.autograd.grad(again, inputs, grad, create_graph=torch.is_grad_enabled()))
        return *(next(found) if need else None for need in needed), *[None] * 5
    rest = (flat, weight, bias, mean, variance, ctx.eps, ctx.relu)
    if ctx.private and needed[0] and grad.is_contiguous():
        dx, (dw, db) = grad, torch.ops.sepgconv.norm_backward_.default(grad, *rest)
    else:
        dx, dw, db = torch.ops.sepgconv.norm_backward.default(grad, *rest, needed[0])
    return *(t if need else None for t, need in zip((dx, dw, db), needed, strict=True)), *[None] * 5


_GIVEN = "Tensor flat, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float eps, bool relu"
OPERATORS.define("norm_statistics(Tensor flat) -> (Tensor, Tensor)")
OPERATORS.define(f"norm_result({_GIVEN}, bool private) -> Tensor")
OPERATORS.define(f"norm_backward(Tensor grad, {_GIVEN}, bool needs_x) -> (Tensor, Tensor, Tensor)")
OPERATORS.define(f"norm_backward_(Tensor(a!) grad, {_GIVEN}) -> (Tensor, Tensor)")
register("norm_statistics", _statistics, _moments)
register("norm_result", _result, _like, _differentiate, _keep)
register("norm_backward", _backward, _gradients)
register("norm_backward_", _over, lambda grad, flat, *rest: _slopes(flat))
