"""Batch norm and ReLU that keep less for the backward pass than torch's do, and whose sums are exact.

An ordinary differentiable function, made of stock operations where `plain` says so.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import native
from sepgconv.execution.cpu.convolution import plain

Running = tuple[Tensor | None, Tensor | None]
"""Running mean and variance."""
SHORT = 1 << 8
"""Rows up to which torch's norm is used. It sums them one after the other in float32: 256 of them to 1e-7 or better,
400,000 of them (64 maps of 28×28 pixels at 8 rotations) to 1e-3."""
LONG, SIDE = 1 << 10, 1 << 9
"""Rows that are summed at a time, and numbers that lie side by side in them: together they stay in the cache."""


def _blocks(features: Tensor) -> list[Tensor]:
    """Rows of features in blocks, several of them side by side: a loop over c alone would be too short.

    Those that do not fill the last row of this kind come last, one by one.
    """
    rows = rearrange(features, "b c h ... -> (b ... h) c")
    side = max(SIDE // rows.shape[1], 1)
    even = len(rows) - len(rows) % side
    wide = rows[:even].view(-1, side * rows.shape[1])
    return [*wide.split(LONG), *([rows[even:]] if even < len(rows) else [])]


def _side_by_side(vector: Tensor) -> Tensor:
    """One number per channel `(…, c)`, for all rows that lie side by side."""
    return vector.repeat(*(1,) * (vector.ndim - 1), max(SIDE // vector.shape[-1], 1))


def _like(scratch: Tensor, block: Tensor) -> Tensor:
    """As much of some memory as a block needs, in its shape."""
    return scratch.view(-1)[: block.numel()].view_as(block)


def in_rows(features: Tensor) -> bool:
    """Whether features `(b, c, h, …)` lie in memory as `(b, …, h, c)`."""
    return rearrange(features, "b c h ... -> b ... h c").is_contiguous()


def _flat_norm(features: Tensor, running: Running, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Tensor:
    """Stock batch norm, without a copy."""
    rows = rearrange(features, "b c h ... -> b ... h c")
    flat = F.batch_norm(rearrange(features, "b c h ... -> (b ... h) c"), *running, weight, bias, *rest)
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
    own: bool = False,
    batch: bool = True,
) -> Tensor:
    """`relu(batch_norm(features))` with the statistics of the batch, or the running ones, keeping only the features.

    Stock operations keep the result as well. Here the backward pass finds out again what was negative, chunk by chunk,
    on the way to the sums that it needs anyway. What is kept is kept before the result is written: a checkpoint that
    runs this again as its last operation stops in between. A result that is `own` goes to one operation that hands
    back a gradient of its own: the features' gradient is written over it. On a CPU torch sums all rows of a channel
    one after the other in float32, which is right for short maps only; here sums are exact to 1e-6.

    Shapes:
        features `(b, c, h, …)`, in rows; all others `(c)`
    """
    if features.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # nothing here is for autocast to change
        with torch.autocast("cpu", enabled=False):
            return batch_norm(features, weight, bias, running, momentum, eps, relu=relu, own=own, batch=batch)
    if native.CHOSEN and batch and native.applies(features, weight, bias):
        return native.batch_norm(features, weight, bias, running, momentum, eps, relu=relu, private=own)
    if plain(features) or features.numel() <= SHORT * features.shape[1]:
        normal = _flat_norm(features, running, weight, bias, batch, momentum, eps)
        return F.relu(normal) if relu else normal
    mean, variance = _statistics(features, running, momentum) if batch else running
    assert mean is not None
    assert variance is not None
    kept = _Kept.apply(features, weight, bias, mean, variance, eps, relu, own, batch)
    return _Normalised.apply(kept, *_affine(features, weight, bias, mean, variance, eps), relu)


@torch.no_grad()
def _statistics(features: Tensor, running: Running, momentum: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, in float64; the running ones follow them.

    The mean of a few rows from everywhere is taken off first: what is left is summed to 1e-7, however large the mean.
    """
    rows, blocks = rearrange(features, "b c h ... -> (b ... h) c"), _blocks(features)
    work = torch.promote_types(features.dtype, torch.float32)
    rough = rows[:: len(rows) // (SHORT + 1) + 1].to(work).mean(0)
    around, scratch = _side_by_side(rough), torch.empty(blocks[0].numel(), dtype=rough.dtype)
    sums, squares = [], []
    for block in blocks:
        centred = scratch[: block.numel()].view_as(block)
        torch.sub(block, around[: block.shape[1]], out=centred)
        sums.append(centred.sum(0))
        squares.append(centred.square_().sum(0))
    found = torch.stack([torch.cat(sums), torch.cat(squares)]).view(2, -1, len(rough))
    mean, square = found.sum(1, dtype=torch.float64) / len(rows)
    mean, variance = rough + mean, square - mean.square()
    for old, new in zip(running, (mean, variance * (len(rows) / (len(rows) - 1))), strict=True):
        if old is not None:
            old.lerp_(new.to(old), momentum)
    return mean, variance


def _per_channel(sums: Tensor, channels: int) -> Tensor:
    """Sums of columns, several of which are of one channel."""
    return sums.view(-1, channels).sum(0, dtype=torch.float64)


class _Normalised(torch.autograd.Function):
    """Writes the result, and leaves the gradient to `_Kept`."""

    @staticmethod
    def forward(ctx, features: Tensor, scale: Tensor, shift: Tensor, relu: bool) -> Tensor:
        result = torch.empty_like(features)
        for block, out in zip(_blocks(features), _blocks(result), strict=True):
            width = block.shape[1]
            normal = torch.addcmul(shift[:width], block, scale[:width], out=out)
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
        *parameters, ctx.eps, ctx.relu, ctx.own, ctx.batch = rest
        ctx.save_for_backward(features, *parameters)
        return features

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, mean, variance = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # a second derivative
            inputs = [t for t, need in zip((features, weight, bias), needed, strict=True) if need]
            running = (None, None) if ctx.batch else (mean, variance)
            again = _flat_norm(features, running, weight, bias, ctx.batch, 0.0, ctx.eps)
            again = F.relu(again) if ctx.relu else again
            found = iter(torch.autograd.grad(again, inputs, grads[0], create_graph=True))
            return *(next(found) if need else None for need in needed), *[None] * 6
        result = grads[0] if ctx.own and in_rows(grads[0]) else torch.empty_like(features)
        blocks, incoming, out = (_blocks(each) for each in (features, grads[0], result))
        passed = out if ctx.relu else incoming
        scale, shift = _affine(features, weight, bias, mean, variance, ctx.eps)
        work = torch.promote_types(features.dtype, torch.float32)
        scratch, rough = torch.empty_like(blocks[0], dtype=work), mean.to(work)
        around, one = _side_by_side(rough), _side_by_side(torch.ones_like(rough))
        sums = torch.zeros(2, len(mean), dtype=torch.float64)
        for x, grad, part in zip(blocks, incoming, passed, strict=True):
            width = x.shape[1]
            if ctx.relu:
                normal = torch.addcmul(shift[:width], x, scale[:width], out=_like(scratch, x))
                torch.ops.aten.threshold_backward.grad_input(grad, normal, 0, grad_input=part)
            # The gradients of a norm's weight and bias with these statistics: Σ grad·(x − mean) and Σ grad.
            statistics = (None, None, around[:width], one[:width], True, 0.0)
            both = (part.to(work), x.to(work))
            found = torch.ops.aten.native_batch_norm_backward(*both, None, *statistics, [False, True, True])
            for each, more in zip(sums, found[1:], strict=True):
                each += _per_channel(more, len(mean))
        dot, total = sums
        dot -= (mean - rough.double()) * total
        inverse = (variance.double() + ctx.eps).rsqrt()
        if needed[0]:
            count = features.numel() // len(mean)
            slope = inverse if weight is None else inverse * weight
            along = -slope * inverse.square() * dot / count
            offset = -slope * total / count - along * mean
            slope, along, offset = (_side_by_side(t.to(work)) for t in (slope, along, offset))
            for x, part, dx in zip(blocks, passed, out, strict=True):
                width = x.shape[1]
                if ctx.batch:
                    rest = torch.addcmul(offset[:width], x, along[:width], out=_like(scratch, x))
                    torch.addcmul(rest, part, slope[:width], out=dx)
                else:  # running statistics do not depend on the features
                    torch.mul(part, slope[:width], out=dx)
        dx = result if needed[0] else None
        dw = (dot * inverse).to(weight) if needed[1] else None
        return dx, dw, total.to(bias) if needed[2] else None, *[None] * 6


@torch.no_grad()
def _affine(
    features: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """What a norm multiplies features that lie side by side by, and what it adds."""
    scale, work = (variance.double() + eps).rsqrt(), torch.promote_types(features.dtype, torch.float32)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    both = _side_by_side(torch.stack([scale, shift]).to(work))
    return both[0], both[1]
