"""Products with circulant tables, block-diagonal in a Fourier basis that compiled kernels transform to and from."""

import ctypes

import torch
from torch import Tensor

from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import OPERATORS, checked, register

POINTS = (4, 8, 12, 16, 24, 32)
"""On a circle, for which there is a kernel."""


class _Fourier(ctypes.Structure):
    """`sepgconv_fourier` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target")),
        *((name, ctypes.c_int64) for name in ("rows", "points", "channels", "back")),
    ]


def circular_product(x: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    """Transforms over the circle, multiplies one block per pair of waves, transforms back.

    The basis is the orthonormal real Fourier basis, one function a row, the rows in pairs: first 1/√n and (−1)^θ/√n, then
    √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, …

    Shapes:
        x `(…, n, i)`, weight `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(…, n, j)`
    """
    flat = x.reshape(-1, *x.shape[-2:])
    if x.shape[-2] in POINTS and applies(x, weight):
        waves = torch.ops.sepgconv.fourier.default(flat)
        result = torch.ops.sepgconv.fourier_back.default(torch.bmm(waves, weight))
    else:
        pairs, basis = len(weight), basis.to(x)
        waves = torch.einsum("mt,rti->mri", basis, flat).unflatten(0, (pairs, 2))
        product = torch.bmm(waves.transpose(1, 2).flatten(2), weight).unflatten(2, (2, weight.shape[2] // 2))
        result = torch.einsum("mt,mrj->rtj", basis, product.transpose(1, 2).flatten(0, 1))
    return result.reshape(*x.shape[:-1], weight.shape[2] // 2)


def _waves(flat: Tensor) -> Tensor:
    rows, points, channels = flat.shape
    return flat.new_empty((points // 2, rows, 2 * channels))


def _features(waves: Tensor) -> Tensor:
    pairs, rows, channels = waves.shape
    return waves.new_empty((rows, 2 * pairs, channels // 2))


def _forward(flat: Tensor) -> Tensor:
    flat, result = flat.contiguous(), _waves(flat)
    call = _Fourier(flat.data_ptr(), result.data_ptr(), *flat.shape, 0)
    checked("fourier_transform", ctypes.byref(call))
    return result


def _back(waves: Tensor) -> Tensor:
    waves, result = waves.contiguous(), _features(waves)
    call = _Fourier(waves.data_ptr(), result.data_ptr(), *result.shape, 1)
    checked("fourier_transform", ctypes.byref(call))
    return result


# The basis is orthonormal: each is the other's gradient, and so on for all derivatives.
OPERATORS.define("fourier(Tensor flat) -> Tensor")
OPERATORS.define("fourier_back(Tensor waves) -> Tensor")
register("fourier", _forward, _waves, lambda ctx, grad: torch.ops.sepgconv.fourier_back.default(grad))
register("fourier_back", _back, _features, lambda ctx, grad: torch.ops.sepgconv.fourier.default(grad))
