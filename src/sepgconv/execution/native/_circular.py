"""Products with circulant tables in a Fourier basis: `sepgconv::circular_product` and `…_backward`."""

import ctypes

import torch
from torch import Tensor

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, product_gradients, register

POINTS = (4, 8, 12, 16, 24, 32)
"""On a circle, for which there is a kernel."""
MIRRORED = (8, 16, 24, 32)
"""On a circle and its mirror image."""


class _Circular(ctypes.Structure):
    """`sepgconv_circular` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "y", "grad_weight")),
        *((name, ctypes.c_int64) for name in ("rows", "points", "mirrored", "channels_in", "channels_out")),
        *((name, ctypes.c_int64) for name in ("weight_pair", "weight_second", "weight_in", "weight_out")),
    ]


def circular_product(x: Tensor, weight: Tensor, basis: Tensor, *, native: bool | None = None) -> Tensor:
    """Transforms over a circle, multiplies by one block per pair of waves, transforms back.

    The basis is the orthonormal real Fourier basis, one function a row, the rows in pairs: first 1/√n and (−1)^θ/√n,
    then √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, … A block is two matrices: a₀ and a_{n/2} for the first
    pair, whose waves do not mix, then a and b of [a −b; b a]. On a circle and its mirror image points are n/2 rotations
    and then their mirror images, the basis is that of the dihedral group, and blocks are whole; the functions of the
    first two pairs (of the first one, for odd n/2) do not mix, and of these blocks the diagonal quarters count.
    `native` is what `applies` says, if it was asked.

    Shapes:
        x `(…, n, i)`, weight `(pairs, 2, i, j)` or mirrored `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(…, n, j)`
    """
    flat, mirrored = x.reshape(-1, *x.shape[-2:]), weight.ndim == 3
    native = applies(x, weight) if native is None else native
    if native and x.shape[-2] in (MIRRORED if mirrored else POINTS):
        result = torch.ops.sepgconv.circular_product.default(flat, weight, basis)
    else:
        result = _plain(flat, weight, basis.to(x))
    return result.reshape(*x.shape[:-1], result.shape[2])


def _plain(flat: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    """With stock operations: two small products around one per pair of waves."""
    blocks = _blocks(weight, flat.shape[1])
    waves = torch.einsum("mt,rti->mri", basis, flat).unflatten(0, (-1, 2))
    product = torch.bmm(waves.transpose(1, 2).flatten(2), blocks).unflatten(2, (2, blocks.shape[2] // 2))
    return torch.einsum("mt,mrj->rtj", basis, product.transpose(1, 2).flatten(0, 1))


def _blocks(weight: Tensor, points: int) -> Tensor:
    """The blocks `(pairs, 2i, 2j)` that all pairs are multiplied by."""
    if weight.ndim == 4:
        (a, b), first = weight[1:].unbind(1), torch.block_diag(*weight[0])
        rest = torch.cat([torch.cat([a, -b], dim=-1), torch.cat([b, a], dim=-1)], dim=-2)
        return torch.cat([first.unsqueeze(0), rest])
    count, (i, j) = 2 if points % 4 == 0 else 1, (n // 2 for n in weight.shape[1:])
    apart = [torch.block_diag(block[:i, :j], block[i:, j:]) for block in weight[:count].unbind()]
    return torch.cat([torch.stack(apart), weight[count:]])


def _result(flat: Tensor, weight: Tensor, *_) -> Tensor:
    """Memory for the result."""
    return flat.new_empty((*flat.shape[:2], weight.shape[-1] // (2 if weight.ndim == 3 else 1)))


def _call(flat: Tensor, weight: Tensor, grad: Tensor | None, places: tuple[int | None, int | None]) -> _Circular:
    """The arguments of the C functions; what does not fit together is refused here."""
    (rows, points, channels), mirrored = flat.shape, weight.ndim == 3
    outer, allowed = weight.shape[-1] // (1 + mirrored), MIRRORED if mirrored else POINTS
    block = (2 * channels, 2 * outer) if mirrored else (2, channels, outer)
    fits = points in allowed and tuple(weight.shape) == (points // 2, *block)
    if not fits or (grad is not None and tuple(grad.shape) != (rows, points, outer)):
        shapes = f"rows {tuple(flat.shape)} and blocks {tuple(weight.shape)}"
        raise ValueError(f"sepgconv::circular_product: {shapes} do not fit together, on {allowed} points")
    pointers = (flat.data_ptr(), None if grad is None else grad.data_ptr(), weight.data_ptr(), *places)
    pair, *second, inside, outside = weight.stride()
    strides = (pair, second[0] if second else 0, inside, outside)
    return _Circular(*pointers, rows, points, mirrored, channels, outer, *strides)


def _forward(flat: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    kernels, flat, result = _library.FOUND or _library.needed(), flat.contiguous(), _result(flat, weight)
    call = _call(flat, weight, None, (result.data_ptr(), None))
    if result.numel() and kernels.sepgconv_circular_product(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _backward(grad: Tensor, flat: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool) -> tuple[Tensor, Tensor]:
    kernels, grad, flat = _library.FOUND or _library.needed(), grad.contiguous(), flat.contiguous()
    dx, dw = product_gradients(grad, flat, weight, needs_x, needs_weight)
    places = (dx.data_ptr() if needs_x else None, dw.data_ptr() if needs_weight else None)
    if kernels.sepgconv_circular_gradients(ctypes.byref(_call(flat, weight, grad, places)), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return dx, dw


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    (flat, weight, basis), needed = ctx.saved_tensors, ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():  # a second derivative
        inputs = [t for t, need in zip((flat, weight), needed, strict=True) if need]
        again = _plain(flat, weight, basis.to(flat))
        found = iter(torch.autograd.grad(again, inputs, grad, create_graph=True))
        dx, dw = (next(found) if need else None for need in needed)
        return dx, dw, None
    dx, dw = torch.ops.sepgconv.circular_backward.default(grad, flat, weight, *needed)
    return dx if needed[0] else None, dw if needed[1] else None, None


OPERATORS.define("circular_product(Tensor flat, Tensor weight, Tensor basis) -> Tensor")
OPERATORS.define(
    "circular_backward(Tensor grad, Tensor flat, Tensor weight, bool needs_x, bool needs_weight) -> (Tensor, Tensor)"
)
register("circular_product", _forward, _result, _differentiate)
register("circular_backward", _backward, product_gradients)
