"""Depthwise convolution with compiled kernels, as the operators `sepgconv::depthwise` and `…_backward`."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import OPERATORS, checked, register, rows


class _Convolution(ctypes.Structure):
    """`sepgconv_convolution` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "in_y", "in_x", "out_y", "out_x")),
        *((name, ctypes.c_int64) for name in ("taps_y", "taps_x", "stride", "pad_y", "pad_x")),
        *((name, ctypes.c_int64) for name in ("weight_c", "weight_y", "weight_x", "y_image", "y_row", "y_pixel")),
    ]


def depthwise(x: Tensor, weight: Tensor, stride: int = 1, padding: tuple[int, int] = (0, 0)) -> Tensor:
    """A convolution of each channel with its own kernel.

    Shapes:
        x `(b, c, y, x)`, channels-last; weight `(c, 1, k, l)`
    """
    if not applies(x, weight) or not _fits(x, weight, stride, padding):
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))
    return torch.ops.sepgconv.depthwise.default(x, weight, stride, *padding)


def _fits(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> bool:
    """Whether it is one at all; what is wrong is left to torch to say."""
    if x.ndim != 4 or weight.ndim != 4 or weight.shape[1] != 1 or len(weight) != x.shape[1] or stride < 1:
        return False
    sizes = zip(x.shape[2:], weight.shape[2:], padding, strict=True)
    return min(padding) >= 0 and all(0 < taps <= length + 2 * p for length, taps, p in sizes)


def _result(x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int) -> Tensor:
    """Memory for the result; also what it looks like to a compiler."""
    sizes = zip(x.shape[2:], weight.shape[2:], (pad_y, pad_x), strict=True)
    height, width = ((length + 2 * p - taps) // stride + 1 for length, taps, p in sizes)
    return x.new_empty((x.shape[0], height, width, x.shape[1])).permute(0, 3, 1, 2)


def _convolution(x: Tensor, weight: Tensor, y: Tensor, stride: int, pad_y: int, pad_x: int) -> _Convolution:
    batch, channels, height, width = x.shape
    (taps_y, taps_x), (out_y, out_x) = weight.shape[2:], y.shape[2:]
    sizes = (batch, channels, height, width, out_y, out_x, taps_y, taps_x, stride, pad_y, pad_x)
    strides = (weight.stride(0), weight.stride(2), weight.stride(3), out_y * out_x * channels, out_x * channels)
    return _Convolution(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *sizes, *strides, channels)


def _forward(x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int) -> Tensor:
    x = rows(x)
    result = _result(x, weight, stride, pad_y, pad_x)
    checked("depthwise", ctypes.byref(_convolution(x, weight, result, stride, pad_y, pad_x)))
    return result


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    grad, x = rows(grad), rows(x)
    call = ctypes.byref(_convolution(x, weight, grad, stride, pad_y, pad_x))
    dx, dw = _gradients(grad, x, weight, stride, pad_y, pad_x, needs_x, needs_weight)
    if needs_x:
        checked("depthwise_input", call, dx.data_ptr())
    if needs_weight:
        checked("depthwise_weight", call, dw.data_ptr())
    return dx, dw


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Memory for the gradients; nothing for those that are not needed."""
    batch, channels, height, width = x.shape
    dx = x.new_empty((batch, height, width, channels) if needs_x else (0, 0, 0, 0)).permute(0, 3, 1, 2)
    return dx, weight.new_empty(weight.shape if needs_weight else (0,))


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, *ctx.sizes = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (stride, *padding) = ctx.saved_tensors, ctx.sizes
    needed = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled() or not applies(grad):  # a second derivative, or a transform
        rest = (None, [stride] * 2, padding, [1, 1], False, [0, 0], len(weight), [*needed, False])
        dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, weight, *rest)
    else:
        dx, dw = torch.ops.sepgconv.depthwise_backward.default(grad, x, weight, stride, *padding, *needed)
    return dx if needed[0] else None, dw if needed[1] else None, None, None, None


OPERATORS.define("depthwise(Tensor x, Tensor weight, int stride, int pad_y, int pad_x) -> Tensor")
OPERATORS.define(
    "depthwise_backward(Tensor grad, Tensor x, Tensor weight, int stride, int pad_y, int pad_x, bool needs_x, "
    "bool needs_weight) -> (Tensor, Tensor)"
)
register("depthwise", _forward, _result, _differentiate, _keep)
register("depthwise_backward", _backward, _gradients)
