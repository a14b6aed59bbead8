"""Max pooling with compiled kernels: `sepgconv::max_pool` and `…_backward`."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies, in_transform
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, register

WIDEST = 15
"""A window's pixels are counted in a byte."""


class _Pool(ctypes.Structure):
    """`sepgconv_pool` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "y", "places")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "in_y", "in_x", "out_y", "out_x")),
        *((name, ctypes.c_int64) for name in ("size", "stride", "pad")),
    ]


def max_pool(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Max pooling that keeps one byte per maximum, where it was found, instead of the input and eight bytes.

    Shapes:
        images `(b, c, y, x)`, channels-last
    """
    fits = images.ndim == 4 and 0 <= 2 * padding <= size <= WIDEST and stride > 0 and images.numel() > 0
    if not fits or min(images.shape[2:]) + 2 * padding < size or not applies(images):
        return F.max_pool2d(images, size, stride, padding)
    wanted = images.requires_grad and torch.is_grad_enabled()
    return torch.ops.sepgconv.max_pool.default(images, size, stride, padding, wanted)[0]


def _results(images: Tensor, size: int, stride: int, padding: int, wanted: bool) -> tuple[Tensor, Tensor]:
    """Memory for maxima and, if wanted, their places."""
    batch, channels, *space = images.shape
    shape = (batch, *((length + 2 * padding - size) // stride + 1 for length in space), channels)
    places = images.new_empty(shape if wanted else (0, 0, 0, 0), dtype=torch.uint8)
    return images.new_empty(shape).permute(0, 3, 1, 2), places.permute(0, 3, 1, 2)


def _rows(images: Tensor) -> Tensor:
    """Images `(b, c, y, x)` that lie in memory as `(b, y, x, c)`, without gaps."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _forward(images: Tensor, size: int, stride: int, padding: int, wanted: bool) -> tuple[Tensor, Tensor]:
    kernels, images = _library.FOUND or _library.needed(), _rows(images)
    if not (0 <= 2 * padding <= size <= WIDEST and stride > 0 and min(images.shape[2:]) + 2 * padding >= size > 0):
        window = f"a window of {size}, stride {stride}, padding {padding}"
        raise ValueError(f"sepgconv::max_pool: {window} does not fit images {tuple(images.shape)}")
    result, places = _results(images, size, stride, padding, wanted)
    shape = (*images.shape, *result.shape[2:])
    pointers = (images.data_ptr(), None, result.data_ptr(), places.data_ptr() if wanted else None)
    call = _Pool(*pointers, *shape, size, stride, padding)
    if kernels.sepgconv_pool_result(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result, places


def _backward(grad: Tensor, places: Tensor, height: int, width: int, size: int, stride: int, padding: int) -> Tensor:
    kernels, grad, places = _library.FOUND or _library.needed(), _rows(grad), _rows(places)
    expected = [(length + 2 * padding - size) // stride + 1 for length in (height, width)]
    if grad.shape != places.shape or list(grad.shape[2:]) != expected:
        shapes = f"gradients {tuple(grad.shape)} and places {tuple(places.shape)}"
        raise ValueError(f"sepgconv::max_pool_backward: {shapes} do not fit images of {height}×{width}")
    result = _input(grad, places, height, width)
    shape = (*grad.shape[:2], height, width, *grad.shape[2:])
    pointers = (None, grad.data_ptr(), result.data_ptr(), places.data_ptr())
    call = _Pool(*pointers, *shape, size, stride, padding)
    if kernels.sepgconv_pool_backward(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _input(grad: Tensor, places: Tensor, height: int, width: int, *_) -> Tensor:
    """Memory for the gradient."""
    return grad.new_empty((grad.shape[0], height, width, grad.shape[1])).permute(0, 3, 1, 2)


def _keep(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    images, *ctx.window, _ = inputs
    ctx.save_for_backward(output[1])
    ctx.shape = images.shape[2:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    (places,), (size, stride, padding) = ctx.saved_tensors, ctx.window
    if grad is None:
        return None, None, None, None, None
    if torch.is_grad_enabled() or in_transform():  # a second derivative
        dx = _scattered(grad, places, ctx.shape, size, stride, padding)
    else:
        dx = torch.ops.sepgconv.max_pool_backward.default(grad, places, *ctx.shape, size, stride, padding)
    return dx, None, None, None, None


def _scattered(grad: Tensor, places: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """The same with operations that can be differentiated."""
    where = places.long()
    starts = [torch.arange(length, device=grad.device) * stride - padding for length in grad.shape[2:]]
    y, x = starts[0][:, None] + where // size, starts[1] + where % size
    flat = grad.new_zeros(*grad.shape[:2], shape[0] * shape[1])
    return flat.scatter_add(2, (y * shape[1] + x).flatten(2), grad.flatten(2)).unflatten(2, shape)


OPERATORS.define("max_pool(Tensor images, int size, int stride, int padding, bool wanted) -> (Tensor, Tensor)")
OPERATORS.define(
    "max_pool_backward(Tensor grad, Tensor places, int height, int width, int size, int stride, int padding) -> Tensor"
)
register("max_pool", _forward, _results, _differentiate, _keep)
register("max_pool_backward", _backward, _input)
