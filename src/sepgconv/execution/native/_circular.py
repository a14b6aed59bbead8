"""Products with circulant tables in a Fourier basis: `sepgconv::circular_product` and `…_backward`."""

import ctypes

import torch
from torch import Tensor

from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import OPERATORS, checked, register

POINTS = (4, 8, 12, 16, 24, 32)
"""On a circle, for which there is a kernel."""


class _Circular(ctypes.Structure):
    """`sepgconv_circular` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "y", "grad_weight")),
        *((name, ctypes.c_int64) for name in ("rows", "points", "channels_in", "channels_out")),
        *((name, ctypes.c_int64) for name in ("weight_pair", "weight_in", "weight_out")),
    ]


def circular_product(x: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    """Transforms over the circle, multiplies by one block per pair of waves, transforms back.

    The basis is the orthonormal real Fourier basis, one function a row, the rows in pairs: first 1/√n and (−1)^θ/√n,
    then √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, …

    Shapes:
        x `(…, n, i)`, weight `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(…, n, j)`
    """
    flat = x.reshape(-1, *x.shape[-2:])
    fits = x.shape[-2] in POINTS and weight.shape[0] * 2 == x.shape[-2] and weight.shape[1] == 2 * x.shape[-1]
    if fits and weight.numel() > 0 and applies(x, weight):
        result = torch.ops.sepgconv.circular_product.default(flat, weight)
    else:
        result = _plain(flat, weight, basis.to(x))
    return result.reshape(*x.shape[:-1], weight.shape[2] // 2)


def _plain(flat: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    """With stock operations: two small products around one per pair of waves."""
    waves = torch.einsum("mt,rti->mri", basis, flat).unflatten(0, (-1, 2))
    product = torch.bmm(waves.transpose(1, 2).flatten(2), weight).unflatten(2, (2, weight.shape[2] // 2))
    return torch.einsum("mt,mrj->rtj", basis, product.transpose(1, 2).flatten(0, 1))


def _result(flat: Tensor, weight: Tensor) -> Tensor:
    """Memory for the result."""
    return flat.new_empty((*flat.shape[:2], weight.shape[2] // 2))


def _forward(flat: Tensor, weight: Tensor) -> Tensor:
    flat, result = flat.contiguous(), _result(flat, weight)
    shape = (*flat.shape, result.shape[2])
    pointers = (flat.data_ptr(), None, weight.data_ptr(), result.data_ptr(), None)
    checked("circular_product", ctypes.byref(_Circular(*pointers, *shape, *weight.stride())))
    return result


def _backward(grad: Tensor, flat: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool) -> tuple[Tensor, Tensor]:
    grad, flat = grad.contiguous(), flat.contiguous()
    dx, dw = _gradients(grad, flat, weight, needs_x, needs_weight)
    places = (dx.data_ptr() if needs_x else None, dw.data_ptr() if needs_weight else None)
    pointers = (flat.data_ptr(), grad.data_ptr(), weight.data_ptr(), *places)
    shape = (*flat.shape, grad.shape[2])
    checked("circular_gradients", ctypes.byref(_Circular(*pointers, *shape, *weight.stride())))
    return dx, dw


def _gradients(grad: Tensor, flat: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool) -> tuple[Tensor, Tensor]:
    """Memory for the gradients; nothing for one that is not needed."""
    return flat.new_empty(flat.shape if needs_x else (0,)), weight.new_empty(weight.shape if needs_weight else (0,))


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (flat, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
    if torch.is_grad_enabled():  # a second derivative: the product's gradients are made of products
        dx = torch.ops.sepgconv.circular_product.default(grad, weight.mT) if needed[0] else None
        basis = _basis(flat)
        left, right = (torch.einsum("mt,rti->mri", basis, t).unflatten(0, (-1, 2)) for t in (flat, grad))
        dw = torch.bmm(left.transpose(1, 2).flatten(2).mT, right.transpose(1, 2).flatten(2)) if needed[1] else None
        return dx, dw
    dx, dw = torch.ops.sepgconv.circular_backward.default(grad, flat, weight, *needed)
    return dx if needed[0] else None, dw if needed[1] else None


def _basis(flat: Tensor) -> Tensor:
    """The basis over as many points as there are."""
    count = flat.shape[1]
    angle = 2 * torch.pi * torch.outer(torch.arange(count // 2), torch.arange(count)).double() / count
    waves = torch.stack([angle.cos(), angle.sin()], dim=1) * (2 / count) ** 0.5
    waves[0, 0] = count**-0.5
    waves[0, 1] = count**-0.5 * (1 - 2 * (torch.arange(count) % 2))
    return waves.flatten(0, 1).to(flat)


OPERATORS.define("circular_product(Tensor flat, Tensor weight) -> Tensor")
OPERATORS.define(
    "circular_backward(Tensor grad, Tensor flat, Tensor weight, bool needs_x, bool needs_weight) -> (Tensor, Tensor)"
)
register("circular_product", _forward, _result, _differentiate, _keep)
register("circular_backward", _backward, _gradients)
