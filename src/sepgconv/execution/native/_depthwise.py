"""Depthwise convolution with compiled kernels, as the operators `sepgconv::depthwise` and `…_backward`."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies, in_transform
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, register

WIDE, TAPS, WORK = 14, 14, 1 << 21
"""Torch's own gradient for the weights is taken for kernels up to 14 wide, if they have up to 14 taps or an image has
up to two million multiply-adds. Others are many times faster image by image (docs/speed.md)."""


class _Convolution(ctypes.Structure):
    """`sepgconv_convolution` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "addend", "y")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "relu", "in_y", "in_x", "out_y", "out_x")),
        *((name, ctypes.c_int64) for name in ("taps_y", "taps_x", "stride", "pad_y", "pad_x")),
        *((name, ctypes.c_int64) for name in ("weight_c", "weight_y", "weight_x", "y_image", "y_row", "y_pixel")),
    ]


def depthwise(
    x: Tensor,
    weight: Tensor,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    addend: Tensor | None = None,
    native: bool | None = None,
    unread: bool = False,
) -> Tensor:
    """A convolution of each channel with its own kernel, and what follows it: bias, ReLU, an addend and another ReLU.

    `native` is what `applies` says, if it was asked. An `unread` result may hold anything: only its gradients count.

    Shapes:
        x `(b, c, y, x)`, channels-last; weight `(c, 1, k, l)`; bias `(c)`; addend like the result
    """
    if not (applies(x, weight, bias, addend) if native is None else native):
        shift = None if bias is None else bias[:, None, None]
        return followed(_plain(x, weight, stride, padding), shift, relu=relu, addend=addend)
    if torch.is_grad_enabled() and not (bias is addend is None and not relu):
        result = torch.ops.sepgconv.depthwise.default(x, weight, None, None, stride, *padding, False, unread)
        return followed(result, None if bias is None else bias[:, None, None], relu=relu, addend=addend)
    return torch.ops.sepgconv.depthwise.default(x, weight, bias, addend, stride, *padding, relu, unread)


def followed(result: Tensor, bias: Tensor | None, *, relu: bool, addend: Tensor | None) -> Tensor:
    """What may follow a convolution, with stock operations: a bias that fits it, a ReLU, an addend and its ReLU."""
    # A result that nobody differentiates may be written over: nobody else has seen it.
    over = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or in_transform())
    result = result if bias is None else result + bias
    result = F.relu(result, inplace=over) if relu else result
    return result if addend is None else F.relu(result + addend, inplace=over)


def _plain(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """With stock operations."""
    watched = torch.compiler.is_compiling() or in_transform() or torch.is_autocast_enabled("cpu")
    if weight.requires_grad and torch.is_grad_enabled() and x.device.type == "cpu" and not watched:
        taps = weight.shape[2:].numel()
        if weight.shape[3] > WIDE or (taps > TAPS and taps * x.shape[1:].numel() > WORK):
            return _ByImage.apply(x, weight.contiguous(), stride, padding)
    return F.conv2d(x, weight.contiguous(), None, stride, padding, 1, len(weight))


class _ByImage(torch.autograd.Function):
    """The weights' gradient as a convolution of every image with its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad, dx = ctx.saved_tensors, grads[0], None
        if ctx.needs_input_grad[0]:
            dx = conv2d_input(list(x.shape), weight, grad, ctx.stride, ctx.padding, 1, len(weight))
        size, dw = weight.shape[2:], torch.zeros_like(weight)
        for n, slope in enumerate(grad):
            image = x[n : n + 1]  # not x[n][None], whose strides torch does not take for channels-last
            found = F.conv2d(image, slope.unsqueeze(1), None, 1, ctx.padding, ctx.stride, len(weight))
            dw = dw + found.transpose(0, 1)[..., : size[0], : size[1]]
        return dx, dw, None, None


def _result(
    x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None, stride: int, pad_y: int, pad_x: int, *_
) -> Tensor:
    """Memory for the result; also what it looks like to a compiler."""
    sizes = zip(x.shape[2:], weight.shape[2:], (pad_y, pad_x), strict=True)
    height, width = ((length + 2 * p - taps) // stride + 1 for length, taps, p in sizes)
    return x.new_empty((x.shape[0], height, width, x.shape[1])).permute(0, 3, 1, 2)


def _rows(images: Tensor) -> Tensor:
    """Images `(b, c, y, x)` that lie in memory as `(b, y, x, c)`, without gaps."""
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _convolution(x: Tensor, weight: Tensor, y: Tensor, stride: int, pad_y: int, pad_x: int) -> _Convolution:
    """The arguments of the C functions; what does not fit together is refused here."""
    batch, channels, height, width = x.shape
    (taps_y, taps_x), (out_y, out_x) = weight.shape[2:], y.shape[2:]
    fits = min(stride, taps_y, taps_x) > 0 and min(pad_y, pad_x, out_y - 1, out_x - 1) >= 0
    if tuple(weight.shape[:2]) != (channels, 1) or tuple(y.shape[:2]) != (batch, channels) or not fits:
        shapes = f"images {tuple(x.shape)}, kernels {tuple(weight.shape)}, results {tuple(y.shape)}"
        raise ValueError(f"sepgconv::depthwise: {shapes}, stride {stride}, padding {pad_y, pad_x} do not fit together")
    sizes = (batch, channels, 0, height, width, out_y, out_x, taps_y, taps_x, stride, pad_y, pad_x)
    strides = (weight.stride(0), weight.stride(2), weight.stride(3), out_y * out_x * channels, out_x * channels)
    return _Convolution(x.data_ptr(), weight.data_ptr(), None, None, y.data_ptr(), *sizes, *strides, channels)


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    stride: int,
    pad_y: int,
    pad_x: int,
    relu: bool,
    unread: bool = False,
) -> Tensor:
    kernels = _library.FOUND or _library.needed()
    x = x if x.is_contiguous(memory_format=torch.channels_last) else _rows(x)
    result = _result(x, weight, bias, addend, stride, pad_y, pad_x)
    call = _convolution(x, weight, result, stride, pad_y, pad_x)
    call.relu = relu
    if bias is not None:
        bias = bias.contiguous()
        call.bias = bias.data_ptr()
        if bias.numel() != x.shape[1]:
            raise ValueError(f"sepgconv::depthwise: a bias of {bias.numel()} for {x.shape[1]} channels")
    if addend is not None:
        if addend.shape != result.shape:
            raise ValueError(f"sepgconv::depthwise: an addend {tuple(addend.shape)} for {tuple(result.shape)}")
        addend = addend if addend.is_contiguous(memory_format=torch.channels_last) else _rows(addend)
        call.addend = addend.data_ptr()
    if not unread and kernels.sepgconv_depthwise(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    kernels, threads = _library.FOUND or _library.needed(), torch.get_num_threads()
    grad, x = (t if t.is_contiguous(memory_format=torch.channels_last) else _rows(t) for t in (grad, x))
    call = ctypes.byref(_convolution(x, weight, grad, stride, pad_y, pad_x))
    dx, dw = _gradients(grad, x, weight, stride, pad_y, pad_x, needs_x, needs_weight)
    failed = needs_x and kernels.sepgconv_depthwise_input(call, dx.data_ptr(), threads)
    if failed or (needs_weight and kernels.sepgconv_depthwise_weight(call, dw.data_ptr(), threads)):
        raise MemoryError(NO_MEMORY)
    return dx, dw


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, pad_y: int, pad_x: int, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Memory for the gradients; nothing for those that are not needed."""
    batch, channels, height, width = x.shape
    dx = x.new_empty((batch, height, width, channels) if needs_x else (0, 0, 0, 0)).permute(0, 3, 1, 2)
    return dx, weight.new_empty(weight.shape if needs_weight else (0,))


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, addend, *ctx.sizes, relu, _ = inputs
    if relu or bias is not None or addend is not None:
        raise RuntimeError("sepgconv::depthwise has gradients for the convolution alone, without what follows it")
    ctx.save_for_backward(x, weight)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (stride, *padding) = ctx.saved_tensors, ctx.sizes
    needed = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled() or in_transform():  # a second derivative, or a transform
        rest = (None, [stride] * 2, padding, [1, 1], False, [0, 0], len(weight), [*needed, False])
        dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, weight, *rest)
    else:
        dx, dw = torch.ops.sepgconv.depthwise_backward.default(grad, x, weight, stride, *padding, *needed)
    return dx if needed[0] else None, dw if needed[1] else None, *[None] * 7


OPERATORS.define(
    "depthwise(Tensor x, Tensor weight, Tensor? bias, Tensor? addend, int stride, int pad_y, int pad_x, bool relu, "
    "bool unread=False) -> Tensor"
)
OPERATORS.define(
    "depthwise_backward(Tensor grad, Tensor x, Tensor weight, int stride, int pad_y, int pad_x, bool needs_x, "
    "bool needs_weight) -> (Tensor, Tensor)"
)
register("depthwise", _forward, _result, _differentiate, _keep)
register("depthwise_backward", _backward, _gradients)
