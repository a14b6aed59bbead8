"""Norm, ReLU and pooling that keep less for the backward pass than torch's do, and are faster for few channels.

As in `ops`, they are ordinary differentiable functions, made of stock operations where our own way does not apply.
"""

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from sepgconv.ops import spans, stock

Running = tuple[Tensor | None, Tensor | None]
"""Running mean and variance."""
CHUNK = 1 << 19
"""Numbers that are worked on at a time, so that what is written is still in the cache when it is read."""
SMALL, TINY = 1 << 21, 1 << 16
"""Fewer numbers than this are normalised by torch: they stay in the cache anyway; the second is for few channels."""
FEW = 16
"""With fewer channels than this torch's loops over them are too short to be fast."""


def _chunks(wide: Tensor) -> list[slice]:
    """Chunks of wide rows."""
    return spans(len(wide), max(CHUNK // wide.shape[1], 1))


def _wide(features: Tensor) -> Tensor:
    """Features in rows, several side by side as one: an inner loop over c alone would be too short."""
    rows, width = rearrange(features, "b c h ... -> b ... h c"), 1
    for size in reversed(rows.shape):
        if width > 1 and width * size > 1 << 12:
            break
        width *= size
    return rows.reshape(-1, width)


def in_rows(features: Tensor) -> bool:
    """Whether features `(b, c, h, …)` lie in memory as `(b, …, h, c)`."""
    return rearrange(features, "b c h ... -> b ... h c").is_contiguous()


def _flat_norm(features: Tensor, running: Running, weight: Tensor | None, bias: Tensor | None, *rest: float) -> Tensor:
    """Stock batch norm in training, without a copy."""
    rows = rearrange(features, "b c h ... -> b ... h c")
    flat = F.batch_norm(rows.reshape(-1, rows.shape[-1]), *running, weight, bias, True, *rest)
    return rearrange(flat.reshape(rows.shape), "b ... h c -> b c h ...")


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

    Stock operations keep the result as well. Here the backward pass finds out again what was negative, chunk by chunk,
    on the way to the sums that it needs anyway. What is kept is kept before the result is written: a checkpoint that
    runs this again as its last operation stops in between. A result that is `private` goes to one operation that hands
    back a gradient of its own: the features' gradient is written over it. Without `relu` only few channels gain by it.

    Shapes:
        features `(b, c, h, …)`, in rows; all others `(c)`
    """
    few = features.shape[1] < FEW
    small = features.numel() < (TINY if few else SMALL) or features.dtype not in (torch.float32, torch.float64)
    if small or stock(features) or not (few or relu):
        normal = _flat_norm(features, running, weight, bias, momentum, eps)
        return F.relu(normal) if relu else normal
    mean, variance = _statistics(features, running, momentum)
    kept = _Kept.apply(features, weight, bias, mean, variance, eps, relu, private)
    return _Normalised.apply(kept, *_affine(features, weight, bias, mean, variance, eps), relu)


@torch.no_grad()
def _statistics(features: Tensor, running: Running, momentum: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel; the running ones follow them."""
    wide, channels = _wide(features), features.shape[1]
    if channels >= FEW:
        return torch.batch_norm_update_stats(wide.view(-1, channels), *running, momentum)
    found = torch.batch_norm_update_stats(wide, None, None, 0.0)
    means, variances = (column.view(-1, channels) for column in found)
    mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
    count = features.numel() // channels
    for old, new in zip(running, (mean, variance * count / (count - 1)), strict=True):
        if old is not None:
            old.lerp_(new.to(old), momentum)
    return mean, variance


class _Normalised(torch.autograd.Function):
    """Writes the result, and leaves the gradient to `_Kept`."""

    @staticmethod
    def forward(ctx, features: Tensor, scale: Tensor, shift: Tensor, relu: bool) -> Tensor:
        result = torch.empty_like(features)
        wide, out = _wide(features), _wide(result)
        for span in _chunks(wide):
            normal = torch.addcmul(shift, wide[span], scale, out=out[span])
            if relu:
                normal.relu_()
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None, None, None


class _Kept(torch.autograd.Function):
    """The features as they are, with the gradient of the normalised ones."""

    @staticmethod
    def forward(ctx, features: Tensor, *rest: Tensor | float | None) -> Tensor:
        *parameters, ctx.eps, ctx.relu, ctx.private = rest
        ctx.save_for_backward(features, *parameters)
        return features

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, mean, variance = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # a second derivative
            inputs = [t for t, need in zip((features, weight, bias), needed, strict=True) if need]
            again = _flat_norm(features, (None, None), weight, bias, 0.0, ctx.eps)
            again = F.relu(again) if ctx.relu else again
            found = iter(torch.autograd.grad(again, inputs, grads[0], create_graph=True))
            return *(next(found) if need else None for need in needed), *[None] * 5
        result = grads[0] if ctx.private and in_rows(grads[0]) else torch.empty_like(features)
        wide, grad, out = _wide(features), _wide(grads[0]), _wide(result)
        passed = out if ctx.relu else grad
        scale, shift = _affine(features, weight, bias, mean, variance, ctx.eps)
        copies = wide.shape[1] // len(mean)
        centre = mean.repeat(copies)
        sums = torch.zeros(2, wide.shape[1], dtype=torch.float64)
        scratch = torch.empty_like(wide[_chunks(wide)[0]])
        for span in _chunks(wide):
            x, part = wide[span], passed[span]
            buffer = scratch[: len(x)]
            if ctx.relu:
                torch.addcmul(shift, x, scale, out=buffer)
                torch.ops.aten.threshold_backward.grad_input(grad[span], buffer, 0, grad_input=part)
            sums[0] += part.sum(0)
            sums[1] += torch.sub(x, centre, out=buffer).mul_(part).sum(0)
        total, dot = sums.view(2, copies, -1).sum(1)
        inverse = (variance.double() + ctx.eps).rsqrt()
        if needed[0]:
            count = features.numel() // len(mean)
            slope = inverse if weight is None else inverse * weight
            along = -slope * inverse.square() * dot / count
            offset = -slope * total / count - along * mean
            slope, along, offset = (t.to(features.dtype).repeat(copies) for t in (slope, along, offset))
            for span in _chunks(wide):
                buffer = torch.addcmul(offset, wide[span], along, out=scratch[: len(wide[span])])
                torch.addcmul(buffer, passed[span], slope, out=out[span])
        dx = result if needed[0] else None
        dw = (dot * inverse).to(features.dtype) if needed[1] else None
        return dx, dw, total.to(features.dtype) if needed[2] else None, *[None] * 5


@torch.no_grad()
def _affine(
    features: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """What a norm multiplies wide rows of features by, and what it adds."""
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    copies = _wide(features).shape[1] // len(mean)
    return scale.repeat(copies), shift.repeat(copies)


def add_relu(hidden: Tensor, shortcut: Tensor) -> Tensor:
    """`relu(hidden + shortcut)`, written over hidden if that comes from `batch_norm`, which does not need it again."""
    if stock(hidden) or getattr(hidden.grad_fn, "_forward_cls", None) is not _Normalised:
        return F.relu(hidden + shortcut, inplace=True)
    return _AddRelu.apply(hidden, shortcut)


class _AddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, shortcut: Tensor) -> Tensor:
        ctx.mark_dirty(hidden)
        hidden.add_(shortcut).relu_()
        ctx.save_for_backward(hidden)
        return hidden

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grads[0], result, 0)
        return grad, grad


def max_pool(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Stock max pooling that keeps two bytes per maximum, where it was found, instead of the input and eight bytes.

    Shapes:
        images `(b, c, y, x)`, channels-last
    """
    large = images.shape[2] * images.shape[3] > torch.iinfo(torch.int16).max
    if stock(images) or large or not (images.requires_grad and torch.is_grad_enabled()):
        return F.max_pool2d(images, size, stride, padding)
    return _MaxPool.apply(images, [size] * 2, [stride] * 2, [padding] * 2)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images: Tensor, *window: list[int]) -> Tensor:
        size = [
            (length + 2 * p - k) // stride + 1 for length, k, stride, p in zip(images.shape[2:], *window, strict=True)
        ]
        shape, layout = (*images.shape[:2], *size), torch.channels_last
        result = torch.empty(shape, dtype=images.dtype, memory_format=layout)
        places = torch.empty(shape, dtype=torch.int16, memory_format=layout)
        chunk = _images(images)
        for part, out, place in zip(images.split(chunk), result.split(chunk), places.split(chunk), strict=True):
            found = torch.empty(out.shape, dtype=torch.int64, memory_format=layout)
            torch.ops.aten.max_pool2d_with_indices.out(part, *window, out=out, indices=found)
            place.copy_(found)
        ctx.save_for_backward(places)
        ctx.window, ctx.shape = window, images.shape
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,), grad = ctx.saved_tensors, grads[0]
        if torch.is_grad_enabled():  # a second derivative
            flat = grad.new_zeros(*ctx.shape[:2], ctx.shape[2] * ctx.shape[3])
            flat = flat.scatter_add(2, places.flatten(2).long(), grad.flatten(2))
            return flat.reshape(ctx.shape), None, None, None
        result = torch.empty(ctx.shape, dtype=grad.dtype, memory_format=torch.channels_last)
        size = _images(result)
        for out, slope, place in zip(result.split(size), grad.split(size), places.split(size), strict=True):
            torch.ops.aten.max_pool2d_with_indices_backward.grad_input(
                slope, out, *ctx.window, [1, 1], False, place.long(), grad_input=out
            )
        return result, None, None, None


def _images(images: Tensor) -> int:
    """How many images are pooled at a time: few calls, and little that is eight bytes long."""
    return max(8 * CHUNK // images[0].numel(), 1)
