"""Operations of which torch has only slow versions on a CPU.

All are ordinary differentiable functions. Where a fast way does not apply (another device, autocast, a compiler, a
second derivative) they are made of stock operations and give the same numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

Running = tuple[Tensor | None, Tensor | None]
"""Running mean and variance."""


def _stock(x: Tensor) -> bool:
    """Whether to leave everything to torch."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")


LARGE = 1 << 18
"""Numbers in an image that does not fit into a core's cache."""
LINE = 16
"""Numbers in a cache line."""
_UNREAD = ContextVar("unread", default=False)


@contextmanager
def unread() -> Iterator[None]:
    """Within it a depthwise convolution leaves its result undefined: for when only its gradients are wanted."""
    token = _UNREAD.set(True)
    try:
        yield
    finally:
        _UNREAD.reset(token)


def depthwise(x: Tensor, weight: Tensor, stride: int = 1, padding: tuple[int, int] = (0, 0)) -> Tensor:
    """A convolution of each channel with its own kernel.

    oneDNN's gradient for the weights of a depthwise convolution takes five times as long as the convolution. It is
    itself one, of every image with its gradient as the kernel; done so, image by image, it is three times as fast.
    The gradient for x is one as well, with the kernel turned round, and that is how it is taken for a stride of 1.

    Shapes:
        x `(b, c, y, x)`, channels-last; weight `(c, 1, k, l)`
    """
    if _stock(x) or x.dtype != torch.float32 or not (weight.requires_grad and torch.is_grad_enabled()):
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))
    return _Depthwise.apply(x, weight, stride, padding)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        if _UNREAD.get():
            sizes = zip(x.shape[2:], weight.shape[2:], padding, strict=True)
            shape = (*x.shape[:2], *((length + 2 * p - k) // stride + 1 for length, k, p in sizes))
            return torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, stride, padding = grads[0].contiguous(memory_format=torch.channels_last), ctx.stride, ctx.padding
        dx = dw = None
        height, width = weight.shape[2:]
        if ctx.needs_input_grad[0]:
            around = (height - 1 - padding[0], width - 1 - padding[1])
            if stride == 1 and min(around) >= 0:
                dx = F.conv2d(grad, weight.flip(2, 3), None, 1, around, 1, len(weight))
            else:
                sizes = (None, [stride] * 2, padding, [1, 1], False, [0, 0], len(weight))
                dx = torch.ops.aten.convolution_backward(grad, x, weight, *sizes, [True, False, False])[0]
        if ctx.needs_input_grad[1]:
            dw = torch.zeros_like(weight)
            for image, part in zip(x.split(1), grad.unbind(), strict=True):
                found = F.conv2d(image, _as_kernel(part), None, 1, padding, stride, len(weight))
                dw += found.transpose(0, 1)[..., :height, :width]
        return dx, dw, None, None


def _as_kernel(image: Tensor) -> Tensor:
    """A channels-last image `(c, y, x)` as the kernel `(c, 1, y, x)` of a depthwise convolution.

    A kernel has its channels outermost in memory. From an image that does not fit into a core's cache, torch would
    fetch every line anew for each channel in it; so a cache line's worth of channels is taken together first.
    """
    if image.numel() < LARGE or len(image) % LINE:
        return image.unsqueeze(1)
    tiles = rearrange(image, "(t c) y x -> t y x c", c=LINE).contiguous()
    return rearrange(tiles, "t y x c -> (t c) 1 y x").contiguous()


def grouped_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ M` for a block-diagonal matrix M with blocks of one size.

    oneDNN's grouped 1×1 convolution is the fastest way forward and for x's gradient, a matrix product per block for
    the weight's.

    Shapes:
        x `(b, y, x, groups·in)`, weight `(groups, in, out)` → `(b, y, x, groups·out)`
    """
    if _stock(x) or not torch.is_grad_enabled():
        return _grouped(x, weight)
    return _Grouped.apply(x, weight)


def _grouped(x: Tensor, weight: Tensor) -> Tensor:
    kernel = weight.mT.flatten(0, 1)[:, :, None, None]
    return F.conv2d(x.movedim(-1, 1), kernel, groups=len(weight)).movedim(1, -1)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _grouped(x, weight)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grads[0]
        dx = _grouped(grad, weight.mT) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = torch.zeros_like(weight)
            for g, f in zip(grad, x, strict=True):  # image by image: a whole batch has more pages than are at hand
                left, right = (t.reshape(-1, len(weight), t.shape[-1] // len(weight)) for t in (f, g))
                dw.baddbmm_(left.permute(1, 2, 0), right.transpose(0, 1))
        return dx, dw


def piecewise(run: Callable[..., Tensor], pieces: int, x: Tensor, *weights: Tensor) -> Tensor:
    """`run(x, *weights)` for some images at a time, keeping nothing but x: the backward pass runs each piece again.

    What lies between x and the result is then only ever there for one piece. The second run is told by
    `wanted=False` that nobody reads its result, so that it may leave out its last step.
    """
    if pieces == 1 or _stock(x) or not torch.is_grad_enabled():
        return run(x, *weights)
    ends = [len(x) * piece // pieces for piece in range(pieces + 1)]
    return _Piecewise.apply(run, [slice(*pair) for pair in pairwise(ends)], x, *weights)


class _Piecewise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run: Callable[..., Tensor], spans: list[slice], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.spans = run, spans
        ctx.save_for_backward(x, *weights)
        result: Tensor | None = None
        for span in spans:
            piece = run(x[span], *weights)
            result = piece.new_empty(len(x), *piece.shape[1:]) if result is None else result
            result[span] = piece
        assert result is not None
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # a second derivative
            inputs = [t for t, need in zip((x, *weights), needed, strict=True) if need]
            found = iter(torch.autograd.grad(ctx.run(x, *weights), inputs, grads[0], create_graph=True))
            return None, None, *(next(found) if need else None for need in needed)
        dx = torch.empty_like(x) if needed[0] else None
        sums: list[Tensor] = []
        for span in ctx.spans:
            leaves = [t.detach().requires_grad_(n) for t, n in zip((x[span], *weights), needed, strict=True)]
            with torch.enable_grad():
                piece = ctx.run(*leaves, wanted=False)
            found = list(torch.autograd.grad(piece, [leaf for leaf in leaves if leaf.requires_grad], grads[0][span]))
            if dx is not None:
                dx[span] = found.pop(0)
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else found
        rest = iter(sums)
        return None, None, dx, *(next(rest) if need else None for need in needed[1:])


CHUNK = 1 << 19
"""Numbers that are worked on at a time, so that what is written is still in the cache when it is read."""
SMALL = 1 << 21
"""Fewer numbers than this are normalised by torch: they stay in the cache anyway."""


def _spans(wide: Tensor) -> list[slice]:
    """Chunks of wide rows."""
    size = max(CHUNK // wide.shape[1], 1)
    return [slice(start, start + size) for start in range(0, len(wide), size)]


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


def norm_relu(
    features: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, momentum: float, eps: float
) -> Tensor:
    """`relu(batch_norm(features))` with the statistics of the batch, keeping nothing but the features.

    Stock operations keep the result as well. Here the backward pass finds out again what was negative, chunk by chunk,
    on the way to the sums that it needs anyway.

    Shapes:
        features `(b, c, h, …)`, in rows; all others `(c)`
    """
    small = features.numel() < SMALL or features.dtype not in (torch.float32, torch.float64)
    if small or _stock(features):
        return F.relu(_flat_norm(features, running, weight, bias, momentum, eps))
    return _NormRelu.apply(features, weight, bias, running, momentum, eps)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        features: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: Running,
        momentum: float,
        eps: float,
    ) -> Tensor:
        result = torch.empty_like(features)
        wide, out = _wide(features), _wide(result)
        mean, variance = torch.batch_norm_update_stats(wide.view(-1, features.shape[1]), *running, momentum)
        ctx.save_for_backward(features, weight, bias, mean, variance)
        ctx.eps = eps
        scale, shift = _affine(wide, weight, bias, mean, variance, eps)
        for span in _spans(wide):
            torch.addcmul(shift, wide[span], scale, out=out[span]).relu_()
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, mean, variance = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # a second derivative
            inputs = [t for t, need in zip((features, weight, bias), needed, strict=True) if need]
            again = F.relu(_flat_norm(features, (None, None), weight, bias, 0.0, ctx.eps))
            found = iter(torch.autograd.grad(again, inputs, grads[0], create_graph=True))
            return *(next(found) if need else None for need in needed), None, None, None
        result = torch.empty_like(features)
        wide, grad, out = _wide(features), _wide(grads[0]), _wide(result)
        scale, shift = _affine(wide, weight, bias, mean, variance, ctx.eps)
        copies = wide.shape[1] // len(mean)
        centre = mean.repeat(copies)
        sums = torch.zeros(2, wide.shape[1], dtype=torch.float64)
        scratch = torch.empty_like(wide[_spans(wide)[0]])
        for span in _spans(wide):
            x, passed = wide[span], out[span]
            buffer = torch.addcmul(shift, x, scale, out=scratch[: len(x)])
            torch.ops.aten.threshold_backward.grad_input(grad[span], buffer, 0, grad_input=passed)
            sums[0] += passed.sum(0)
            sums[1] += torch.sub(x, centre, out=buffer).mul_(passed).sum(0)
        total, dot = sums.view(2, copies, -1).sum(1)
        inverse = (variance.double() + ctx.eps).rsqrt()
        if needed[0]:
            count = features.numel() // len(mean)
            slope = inverse if weight is None else inverse * weight
            along = -slope * inverse.square() * dot / count
            offset = -slope * total / count - along * mean
            slope, along, offset = (t.to(features.dtype).repeat(copies) for t in (slope, along, offset))
            for span in _spans(wide):
                x, passed = wide[span], out[span]
                buffer = torch.addcmul(offset, x, along, out=scratch[: len(x)])
                torch.addcmul(buffer, passed, slope, out=passed)
        dx = result if needed[0] else None
        dw = (dot * inverse).to(features.dtype) if needed[1] else None
        return dx, dw, total.to(features.dtype) if needed[2] else None, None, None, None


def _affine(
    wide: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """What a norm multiplies wide rows by, and what it adds."""
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    copies = wide.shape[1] // len(mean)
    return scale.repeat(copies), shift.repeat(copies)


def add_relu(hidden: Tensor, shortcut: Tensor) -> Tensor:
    """`relu(hidden + shortcut)`, written over hidden if that comes from `norm_relu`, which does not need it again."""
    if _stock(hidden) or getattr(hidden.grad_fn, "_forward_cls", None) is not _NormRelu:
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
    if _stock(images) or large or not (images.requires_grad and torch.is_grad_enabled()):
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
