"""Products with banded tables of matrices: `sepgconv::banded_product` and `…_backward`."""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, product_gradients, register


class _Band(ctypes.Structure):
    """`sepgconv_band` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "y", "grad_weight")),
        *((name, ctypes.c_int64) for name in ("rows", "elements", "neighbours", "channels_in", "channels_out")),
        *((name, ctypes.c_int64) for name in ("weight_tap", "weight_in", "weight_out")),
    ]


def banded_product(x: Tensor, weight: Tensor, *, native: bool | None = None) -> Tensor:
    """y(s) = Σ_d x(s + d)·w(d) over the neighbours d = −m, …, m of each of n elements.

    `native` is what `applies` says, if it was asked.

    Shapes:
        x `(…, n, i)`, weight `(2m + 1, i, j)` → `(…, n, j)`
    """
    native = applies(x, weight) if native is None else native
    if native:
        result = torch.ops.sepgconv.banded_product.default(x.reshape(-1, *x.shape[-2:]), weight)
    else:
        result = _plain(x.reshape(len(x), -1, *x.shape[-2:]), weight)
    return result.reshape(*x.shape[:-1], weight.shape[2])


def _plain(rows: Tensor, weight: Tensor) -> Tensor:
    """With stock operations: a convolution along the elements of rows `(b, r, n, i)`, which are channels-last images.

    As images they take two thirds of the time of the same convolution in one dimension, and no copy.
    """
    kernel, images = weight.permute(2, 1, 0).unsqueeze(2), rows.movedim(-1, 1)
    if rows.dtype == torch.float64:  # where torch has no gradient of channels-last images with one channel
        kernel, images = kernel.contiguous(), images.contiguous()
    return F.conv2d(images, kernel, padding=(0, len(weight) // 2)).movedim(1, -1)


def _result(flat: Tensor, weight: Tensor) -> Tensor:
    """Memory for the result."""
    return flat.new_empty((*flat.shape[:2], weight.shape[2]))


def _call(flat: Tensor, weight: Tensor, grad: Tensor | None, places: tuple[int | None, int | None]) -> _Band:
    """The arguments of the C functions; what does not fit together is refused here."""
    (rows, elements, channels), (taps, inner, outer) = flat.shape, weight.shape
    fits = inner == channels and taps % 2 == 1 and elements > 0 and inner > 0 and outer > 0
    if not fits or (grad is not None and tuple(grad.shape) != (rows, elements, outer)):
        shapes = f"rows {tuple(flat.shape)} and matrices {tuple(weight.shape)}"
        raise ValueError(f"sepgconv::banded_product: {shapes} do not fit together")
    pointers = (flat.data_ptr(), None if grad is None else grad.data_ptr(), weight.data_ptr(), *places)
    return _Band(*pointers, rows, elements, taps // 2, inner, outer, *weight.stride())


def _forward(flat: Tensor, weight: Tensor) -> Tensor:
    kernels, flat, result = _library.FOUND or _library.needed(), flat.contiguous(), _result(flat, weight)
    call = _call(flat, weight, None, (result.data_ptr(), None))
    if result.numel() and kernels.sepgconv_banded_product(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _backward(grad: Tensor, flat: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool) -> tuple[Tensor, Tensor]:
    kernels, grad, flat = _library.FOUND or _library.needed(), grad.contiguous(), flat.contiguous()
    dx, dw = product_gradients(grad, flat, weight, needs_x, needs_weight)
    places = (dx.data_ptr() if needs_x else None, dw.data_ptr() if needs_weight else None)
    if kernels.sepgconv_banded_gradients(ctypes.byref(_call(flat, weight, grad, places)), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return dx, dw


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (flat, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
    if torch.is_grad_enabled():  # a second derivative
        inputs = [t for t, need in zip((flat, weight), needed, strict=True) if need]
        found = iter(torch.autograd.grad(_plain(flat[None], weight)[0], inputs, grad, create_graph=True))
        dx, dw = (next(found) if need else None for need in needed)
        return dx, dw
    dx, dw = torch.ops.sepgconv.banded_backward.default(grad, flat, weight, *needed)
    return dx if needed[0] else None, dw if needed[1] else None


OPERATORS.define("banded_product(Tensor flat, Tensor weight) -> Tensor")
OPERATORS.define(
    "banded_backward(Tensor grad, Tensor flat, Tensor weight, bool needs_x, bool needs_weight) -> (Tensor, Tensor)"
)
register("banded_product", _forward, _result, _differentiate)
register("banded_backward", _backward, product_gradients)
