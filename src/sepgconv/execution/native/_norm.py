"""Batch norm and ReLU with compiled kernels: `sepgconv::norm_statistics`, `…norm_result` and `…norm_backward`."""

import ctypes

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native import _library
from sepgconv.execution.native._guard import applies, in_transform
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, register
from sepgconv.execution.native._plain_norm import plain_norm
from sepgconv.execution.pieces import Made

RECIPE = "_sepgconv_recipe"
"""The attribute of a result that says how it was made."""
Running = tuple[Tensor | None, Tensor | None]
"""Running mean and variance."""


class _Norm(ctypes.Structure):
    """`sepgconv_norm` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "grad", "weight", "bias", "addend", "result")),
        *((name, ctypes.c_void_p) for name in ("y", "grad_weight", "grad_bias", "grad_addend")),
        *((name, ctypes.c_void_p) for name in ("mean", "variance")),
        *((name, ctypes.c_int64) for name in ("rows", "channels", "relu", "fixed")),
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
    batch: bool = True,
    relu: bool = False,
    addend: Tensor | None = None,
    own: bool = False,
    remade: bool = False,
    native: bool | None = None,
) -> Tensor:
    """Batch norm with the statistics of the batch or the running ones; with `relu`, rectified; with an addend besides,
    `relu(relu(norm) + addend)`. Nothing but the features, and the sum if there is one, is kept for the backward pass.

    A result that is `own` goes to one operation that hands back a gradient of its own: the features' gradient is
    written over it. One that is `remade` may be made again by that operation, and holds on to the features for it.
    `native` is what `applies` says, if it was asked.

    Shapes:
        features `(b, c, h, …)`, in rows; addend likewise; all others `(c)`
    """
    if features.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # nothing here is for autocast to change
        options = {"batch": batch, "relu": relu, "addend": addend, "own": own, "remade": remade}
        with torch.autocast("cpu", enabled=False):
            return batch_norm(features, weight, bias, running, momentum, eps, **options)
    rows = rearrange(features, "b c h ... -> b ... h c")
    flat = rows.reshape(-1, rows.shape[-1])
    more = None if addend is None else rearrange(addend, "b c h ... -> (b ... h) c")
    native = applies(flat, weight, bias, more) if native is None else native
    again = None
    if not native or (not torch.compiler.is_compiling() and len(flat) < 2):
        found = _plain(flat, weight, bias, running, momentum, eps, batch)
        found = F.relu(found) if relu or more is not None else found
        found = found if more is None else F.relu(found + more)
    else:
        mean, variance = torch.ops.sepgconv.norm_statistics.default(flat.detach()) if batch else running
        assert mean is not None
        assert variance is not None
        if batch:
            _follow(running, mean, variance, len(flat), momentum)
        given = (flat, weight, bias, mean, variance, more, eps, relu, not batch, own)
        found = torch.ops.sepgconv.norm_result.default(*given)
        again = (flat, weight, bias, mean, variance, eps, relu, not batch)
    result = rearrange(found.reshape(rows.shape), "b ... h c -> b c h ...")
    if remade and more is None and again is not None and torch.is_grad_enabled():
        # Read by one operation, which may make it again; whatever else is done with it makes another tensor or version.
        setattr(result, RECIPE, (result._version, *again))
    return result


def recipe(features: Tensor, shape: torch.Size) -> Made | None:
    """How features `(b, c, h, …)` were made that are a norm's `remade` result, as rows of a shape; None for others."""
    found = getattr(features, RECIPE, None)
    if found is None or found[0] != features._version:
        return None
    _, flat, *tensors, eps, relu, fixed = found
    each = len(flat) // shape[0]  # rows of an image

    def some(flat: Tensor, *given) -> Tensor:
        *rest, part = given
        piece = flat.detach()[part.start * each : part.stop * each]
        again = torch.ops.sepgconv.norm_result.default(piece, *rest, None, eps, relu, fixed, False)
        return again.reshape(-1, *shape[1:])

    def whole(flat: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
        running = (mean.to(flat), variance.to(flat)) if fixed else (None, None)
        again = _plain(flat, weight, bias, running, 0.0, eps, not fixed)
        return (F.relu(again) if relu else again).reshape(shape)

    return Made((flat, *tensors), some, whole)


def _plain(
    flat: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, momentum: float, eps: float, batch: bool
) -> Tensor:
    """With stock operations: on a CPU those that are exact, else torch's own."""
    if flat.device.type != "cpu" or torch.compiler.is_compiling() or len(flat) < 2:
        return F.batch_norm(flat, *running, weight, bias, batch, momentum, eps)
    found, mean, variance = plain_norm(flat, weight, bias, None if batch else running, eps)
    if batch:
        _follow(running, mean, variance, len(flat), momentum)
    return found


@torch.no_grad()
def _follow(running: Running, mean: Tensor, variance: Tensor, count: int, momentum: float) -> None:
    for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
        if old is not None:
            old.lerp_(new.detach().to(old), momentum)


def _statistics(flat: Tensor) -> tuple[Tensor, Tensor]:
    kernels, flat, (rows, channels) = _library.FOUND or _library.needed(), flat.contiguous(), flat.shape
    mean, variance = (flat.new_empty(channels, dtype=torch.float64) for _ in range(2))
    call = _Norm(x=flat.data_ptr(), mean=mean.data_ptr(), variance=variance.data_ptr(), rows=rows, channels=channels)
    if kernels.sepgconv_norm_statistics(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return mean, variance


class _Given:
    """The arguments of the C functions, in the layouts that they take, and the tensors they point to."""

    def __init__(self, flat: Tensor, eps: float, relu: bool, fixed: bool, **tensors: Tensor | None) -> None:
        self.call = _Norm(x=flat.data_ptr(), eps=eps, relu=relu, fixed=fixed)
        self.call.rows, self.call.channels = flat.shape
        self.tensors = [flat]
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            shape = (flat.shape[1],) if name in ("weight", "bias", "mean", "variance") else tuple(flat.shape)
            if tuple(tensor.shape) != shape:
                raise ValueError(f"sepgconv::norm: {name} {tuple(tensor.shape)} for features {tuple(flat.shape)}")
            tensor = tensor.double() if name in ("mean", "variance") else tensor
            self.tensors.append(tensor.contiguous())
            setattr(self.call, name, self.tensors[-1].data_ptr())


def _result(
    flat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    addend: Tensor | None,
    eps: float,
    relu: bool,
    fixed: bool,
    own: bool,
) -> Tensor:
    kernels, flat, result = _library.FOUND or _library.needed(), flat.contiguous(), flat.new_empty(flat.shape)
    tensors = {"weight": weight, "bias": bias, "mean": mean, "variance": variance, "addend": addend}
    given = _Given(flat, eps, relu, fixed, **tensors)
    given.call.y = result.data_ptr()
    if result.numel() and kernels.sepgconv_norm_result(ctypes.byref(given.call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
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
    result: Tensor | None,
    eps: float,
    relu: bool,
    fixed: bool,
    needs_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, *slopes, beside = _gradients(grad, flat, weight, bias, mean, variance, result, eps, relu, fixed, needs_x)
    tensors = {"weight": weight, "bias": bias, "mean": mean, "variance": variance, "result": result}
    given = _Given(flat.contiguous(), eps, relu, fixed, grad=grad, **tensors)
    _differentiate_into(given, dx if needs_x else None, slopes, None if result is None else beside)
    return dx, slopes[0], slopes[1], beside


def _gradients(grad: Tensor, flat: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gradients of x, weight, bias and addend; nothing for those that are not needed."""
    dx, beside = (flat.new_empty(flat.shape if need else (0,)) for need in (rest[-1], rest[4] is not None))
    return dx, *_slopes(flat), beside


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
    fixed: bool,
) -> tuple[Tensor, Tensor]:
    """As `_backward`, with the gradient for x written over grad, which is contiguous."""
    slopes = _slopes(flat)
    tensors = {"weight": weight, "bias": bias, "mean": mean, "variance": variance}
    _differentiate_into(_Given(flat.contiguous(), eps, relu, fixed, grad=grad, **tensors), grad, slopes, None)
    return slopes


def _differentiate_into(given: _Given, dx: Tensor | None, slopes, beside: Tensor | None) -> None:
    given.call.grad_weight, given.call.grad_bias = (slope.data_ptr() for slope in slopes)
    given.call.y = None if dx is None else dx.data_ptr()
    given.call.grad_addend = None if beside is None else beside.data_ptr()
    kernels = _library.FOUND or _library.needed()
    if kernels.sepgconv_norm_backward(ctypes.byref(given.call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    flat, weight, bias, mean, variance, addend, ctx.eps, ctx.relu, ctx.fixed, ctx.own = inputs
    ctx.save_for_backward(flat, weight, bias, mean, variance, None if addend is None else output)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    flat, weight, bias, mean, variance, result = ctx.saved_tensors
    needed = [*ctx.needs_input_grad[:3], result is not None and ctx.needs_input_grad[5]]
    relu = ctx.relu or result is not None
    if torch.is_grad_enabled() or in_transform():  # a second derivative
        slope = grad if result is None else grad * (result.detach() > 0)
        inputs = [t for t, need in zip((flat, weight, bias), needed[:3], strict=True) if need]
        running = (mean, variance) if ctx.fixed else (None, None)
        with torch.enable_grad():
            again = _plain(flat, weight, bias, running, 0.0, ctx.eps, not ctx.fixed)
            again = F.relu(again) if relu else again
            found = iter(torch.autograd.grad(again, inputs, slope, create_graph=True) if inputs else ())
        dx, dw, db = (next(found) if need else None for need in needed[:3])
        return dx, dw, db, None, None, slope if needed[3] else None, *[None] * 4
    given = (flat, weight, bias, mean, variance)
    rest = (ctx.eps, relu, ctx.fixed)
    if ctx.own and needed[0] and result is None and grad.is_contiguous():
        dx, beside, (dw, db) = grad, None, torch.ops.sepgconv.norm_backward_.default(grad, *given, *rest)
    else:
        found = torch.ops.sepgconv.norm_backward.default(grad, *given, result, *rest, needed[0])
        dx, dw, db, beside = found
    dx, dw, db, beside = (t if need else None for t, need in zip((dx, dw, db, beside), needed, strict=True))
    return dx, dw, db, None, None, beside, *[None] * 4


_GIVEN = "Tensor flat, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance"
_HOW = "float eps, bool relu, bool fixed"
OPERATORS.define("norm_statistics(Tensor flat) -> (Tensor, Tensor)")
OPERATORS.define(f"norm_result({_GIVEN}, Tensor? addend, {_HOW}, bool own) -> Tensor")
OPERATORS.define(
    f"norm_backward(Tensor grad, {_GIVEN}, Tensor? result, {_HOW}, bool needs_x) -> (Tensor, Tensor, Tensor, Tensor)"
)
OPERATORS.define(f"norm_backward_(Tensor(a!) grad, {_GIVEN}, {_HOW}) -> (Tensor, Tensor)")
register("norm_statistics", _statistics, lambda flat: tuple(t.double() for t in _slopes(flat)))
register("norm_result", _result, _like, _differentiate, _keep)
register("norm_backward", _backward, _gradients)
register("norm_backward_", _over, lambda grad, flat, *rest: _slopes(flat))
