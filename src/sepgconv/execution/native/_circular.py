"""Products with circulant tables in a Fourier basis: `sepgconv::circular_product` and `…_backward`."""

import ctypes

import torch
from torch import Tensor

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, register

POINTS = (4, 8, 12, 16, 24, 32)
"""On a circle, for which there is a kernel."""
MIRRORED = (8, 16, 24, 32)
"""On a circle and its mirror image."""


class _Circular(ctypes.Structure):
    """`sepgconv_circular` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "y", "grad_weight")),
        *((name, ctypes.c_int64) for name in ("rows", "points", "mirrored", "channels_in", "channels_out")),
        *((name, ctypes.c_int64) for name in ("weight_pair", "weight_in", "weight_out")),
    ]


def circular_product(x: Tensor, weight: Tensor, basis: Tensor, *, mirrored: bool = False) -> Tensor:
    """Transforms over a circle, multiplies by one block per pair of waves, transforms back.

    The basis is the orthonormal real Fourier basis, one function a row, the rows in pairs: first 1/√n and (−1)^θ/√n,
    then √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, … The first two do not mix: of the first block the two
    diagonal quarters count. If `mirrored`, points are n/2 rotations and then their mirror images, and the basis is that
    of the dihedral group, in which the functions of the first two pairs (of the first one, for odd n/2) do not mix.

    Shapes:
        x `(…, n, i)`, weight `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(…, n, j)`
    """
    flat = x.reshape(-1, *x.shape[-2:])
    if x.shape[-2] in (MIRRORED if mirrored else POINTS) and applies(x, weight):
        result = torch.ops.sepgconv.circular_product.default(flat, weight, basis, mirrored)
    else:
        result = _plain(flat, weight, basis.to(x), 2 if mirrored and x.shape[-2] % 4 == 0 else 1)
    return result.reshape(*x.shape[:-1], weight.shape[2] // 2)


def _plain(flat: Tensor, weight: Tensor, basis: Tensor, unmixed: int) -> Tensor:
    """With stock operations: two small products around one per pair of waves."""
    weight = _unmixed(weight, unmixed)
    waves = torch.einsum("mt,rti->mri", basis, flat).unflatten(0, (-1, 2))
    product = torch.bmm(waves.transpose(1, 2).flatten(2), weight).unflatten(2, (2, weight.shape[2] // 2))
    return torch.einsum("mt,mrj->rtj", basis, product.transpose(1, 2).flatten(0, 1))


def _unmixed(weight: Tensor, count: int) -> Tensor:
    """The blocks, of the first ones of which only the diagonal quarters count."""
    i, j = (n // 2 for n in weight.shape[1:])
    first = [torch.block_diag(block[:i, :j], block[i:, j:]) for block in weight[:count].unbind()]
    return torch.cat([torch.stack(first), weight[count:]])


def _result(flat: Tensor, weight: Tensor, *_) -> Tensor:
    """Memory for the result."""
    return flat.new_empty((*flat.shape[:2], weight.shape[2] // 2))


def _call(
    flat: Tensor, weight: Tensor, mirrored: bool, grad: Tensor | None, places: tuple[int | None, int | None]
) -> _Circular:
    """The arguments of the C functions; what does not fit together is refused here."""
    rows, points, channels = flat.shape
    pairs, twice_in, twice_out = weight.shape
    allowed = MIRRORED if mirrored else POINTS
    fits = points in allowed and 2 * pairs == points and twice_in == 2 * channels and twice_out % 2 == 0
    if not fits or (grad is not None and tuple(grad.shape) != (rows, points, twice_out // 2)):
        shapes = f"rows {tuple(flat.shape)} and blocks {tuple(weight.shape)}"
        raise ValueError(f"sepgconv::circular_product: {shapes} do not fit together, on {allowed} points")
    pointers = (flat.data_ptr(), None if grad is None else grad.data_ptr(), weight.data_ptr(), *places)
    return _Circular(*pointers, rows, points, mirrored, channels, twice_out // 2, *weight.stride())


def _forward(flat: Tensor, weight: Tensor, basis: Tensor, mirrored: bool) -> Tensor:
    kernels, flat, result = _library.FOUND or _library.needed(), flat.contiguous(), _result(flat, weight)
    call = _call(flat, weight, mirrored, None, (result.data_ptr(), None))
    if result.numel() and kernels.sepgconv_circular_product(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _backward(
    grad: Tensor, flat: Tensor, weight: Tensor, mirrored: bool, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    kernels, grad, flat = _library.FOUND or _library.needed(), grad.contiguous(), flat.contiguous()
    dx, dw = _gradients(grad, flat, weight, mirrored, needs_x, needs_weight)
    places = (dx.data_ptr() if needs_x else None, dw.data_ptr() if needs_weight else None)
    call = _call(flat, weight, mirrored, grad, places)
    if kernels.sepgconv_circular_gradients(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return dx, dw


def _gradients(
    grad: Tensor, flat: Tensor, weight: Tensor, mirrored: bool, needs_x: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Memory for the gradients; nothing for one that is not needed."""
    return flat.new_empty(flat.shape if needs_x else (0,)), weight.new_empty(weight.shape if needs_weight else (0,))


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.mirrored = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (flat, weight, basis), needed = ctx.saved_tensors, ctx.needs_input_grad
    if torch.is_grad_enabled():  # a second derivative: the product's gradients are made of products
        dx = None
        if needed[0]:
            dx = torch.ops.sepgconv.circular_product.default(grad, weight.mT, basis, ctx.mirrored)
        left, right = (torch.einsum("mt,rti->mri", basis.to(t), t).unflatten(0, (-1, 2)) for t in (flat, grad))
        dw = torch.bmm(left.transpose(1, 2).flatten(2).mT, right.transpose(1, 2).flatten(2)) if needed[1] else None
        return dx, None if dw is None else _unmixed(dw, 1 + ctx.mirrored), None, None
    dx, dw = torch.ops.sepgconv.circular_backward.default(grad, flat, weight, ctx.mirrored, *needed[:2])
    return dx if needed[0] else None, dw if needed[1] else None, None, None


OPERATORS.define("circular_product(Tensor flat, Tensor weight, Tensor basis, bool mirrored) -> Tensor")
OPERATORS.define(
    "circular_backward(Tensor grad, Tensor flat, Tensor weight, bool mirrored, bool needs_x, bool needs_weight) "
    "-> (Tensor, Tensor)"
)
register("circular_product", _forward, _result, _differentiate, _keep)
register("circular_backward", _backward, _gradients)
