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
"""Numbers that are pooled at a time, so that what is written is still in the cache when it is read."""
SHORT = 1 << 8
"""Rows up to which torch's norm is used. It sums them one after the other in float32: 256 of them to 1e-7 or better,
400,000 of them (64 maps of 28×28 pixels at 8 rotations) to 1e-3."""
LONG, SIDE = 1 << 10, 1 << 9
"""Rows that are summed at a time, and numbers that lie side by side in them: together they stay in the cache."""


def _rows(features: Tensor) -> Tensor:
    """Features as rows `(n, c)`, without a copy if they lie so."""
    return rearrange(features, "b c h ... -> b ... h c").reshape(-1, features.shape[1])


def _blocks(features: Tensor) -> list[Tensor]:
    """Rows of features in blocks, several of them side by side: a loop over c alone would be too short.

    Those that do not fill the last row of this kind come last, one by one.
    """
    rows = _rows(features)
    side = max(SIDE // rows.shape[1], 1)
    even = len(rows) - len(rows) % side
    wide = rows[:even].view(-1, side * rows.shape[1])
    return [wide[span] for span in spans(len(wide), LONG)] + ([rows[even:]] if even < len(rows) else [])


def _side_by_side(vector: Tensor) -> Tensor:
    """One number per channel, for all rows that lie side by side."""
    return vector.repeat(max(SIDE // len(vector), 1))


def _like(scratch: Tensor, block: Tensor) -> Tensor:
    """As much of some memory as a block needs, in its shape."""
    return scratch.view(-1)[: block.numel()].view_as(block)


def in_rows(features: Tensor) -> bool:
    """Whether features `(b, c, h, …)` lie in memory as `(b, …, h, c)`."""
    return rearrange(features, "b c h ... -> b ... h c").is_contiguous()


def _flat_norm(
    features: Tensor, running: Running, weight: Tensor | None, bias: Tensor | None, batch: bool, *rest: float
) -> Tensor:
    """Stock batch norm, without a copy."""
    rows = rearrange(features, "b c h ... -> b ... h c")
    flat = F.batch_norm(_rows(features), *running, weight, bias, batch, *rest)
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
    batch: bool = True,
) -> Tensor:
    """`relu(batch_norm(features))` with the statistics of the batch, or the running ones, keeping only the features.

    Stock operations keep the result as well. Here the backward pass finds out again what was negative, chunk by chunk,
    on the way to the sums that it needs anyway. What is kept is kept before the result is written: a checkpoint that
    runs this again as its last operation stops in between. A result that is `private` goes to one operation that hands
    back a gradient of its own: the features' gradient is written over it. On a CPU torch sums all rows of a channel
    one after the other in float32, which is right for short maps only; here sums are exact to 1e-6.

    Shapes:
        features `(b, c, h, …)`, in rows; all others `(c)`
    """
    if features.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # nothing here is for autocast to change
        with torch.autocast("cpu", enabled=False):
            return batch_norm(features, weight, bias, running, momentum, eps, relu=relu, private=private, batch=batch)
    sums = batch or torch.is_grad_enabled()
    if stock(features) or not sums or features.numel() <= SHORT * features.shape[1]:
        normal = _flat_norm(features, running, weight, bias, batch, momentum, eps)
        return F.relu(normal) if relu else normal
    mean, variance = _statistics(features) if batch else running
    assert mean is not None
    assert variance is not None
    if batch:
        _follow(running, mean, variance, features.numel() // len(mean), momentum)
    kept = _Kept.apply(features, weight, bias, mean, variance, eps, relu, private, batch)
    return _Normalised.apply(kept, *_affine(features, weight, bias, mean, variance, eps), relu)


@torch.no_grad()
def _statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, in float64.

    The mean of a few rows from everywhere is taken off first: what is left is summed to 1e-7, however large the mean.
    """
    rows, blocks = _rows(features), _blocks(features)
    rough = rows[:: len(rows) // (SHORT + 1) + 1].to(_work(features)).mean(0)
    around, scratch = _side_by_side(rough), torch.empty_like(blocks[0], dtype=rough.dtype)
    sums = torch.zeros(2, len(rough), dtype=torch.float64)
    for block in blocks:
        centred = torch.sub(block, around[: block.shape[1]], out=_like(scratch, block))
        sums[0] += _per_channel(centred.sum(0), len(rough))
        sums[1] += _per_channel(centred.square_().sum(0), len(rough))
    mean, square = sums / len(rows)
    return rough + mean, square - mean.square()


def _work(features: Tensor) -> torch.dtype:
    """What features are summed in."""
    return torch.promote_types(features.dtype, torch.float32)


def _per_channel(sums: Tensor, channels: int) -> Tensor:
    """Sums of columns, several of which are of one channel."""
    return sums.view(-1, channels).sum(0, dtype=torch.float64)


@torch.no_grad()
def _follow(running: Running, mean: Tensor, variance: Tensor, count: int, momentum: float) -> None:
    """Moves the running statistics towards those of a batch."""
    for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
        if old is not None:
            old.lerp_(new.to(old), momentum)


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
        *parameters, ctx.eps, ctx.relu, ctx.private, ctx.batch = rest
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
        result = grads[0] if ctx.private and in_rows(grads[0]) else torch.empty_like(features)
        blocks, incoming, out = _blocks(features), _blocks(grads[0]), _blocks(result)
        passed = out if ctx.relu else incoming
        scale, shift = _affine(features, weight, bias, mean, variance, ctx.eps)
        work = _work(features)
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
    scale = (variance.double() + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    return _side_by_side(scale.to(_work(features))), _side_by_side(shift.to(_work(features)))


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
