"""Convolutions of which torch has only slow versions on a CPU.

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


def stock(x: Tensor) -> bool:
    """Whether to leave everything to torch."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")


LARGE = 1 << 18
"""Numbers in an image that does not fit into a core's cache."""
LINE = 16
"""Numbers in a cache line."""
WIDE = 1 << 10
"""Channels of a large image with which neighbouring pixels push each other out of the cache."""
NARROW, BLOCK = 1 << 6, 1 << 20
"""So many channels of it are then convolved at a time, of images with so many numbers in them altogether."""
MANY, SLICE = 1 << 9, 1 << 9
"""For the weights' gradient that pays in images of `MANY` pixels, and with `SLICE` channels."""
SHORT, WORK = 14, 1 << 21
"""Taps for which oneDNN has a fast gradient of the weights, and multiply-adds per image up to which its own will do."""
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

    oneDNN's gradient for the weights of a depthwise convolution takes up to five times as long as the convolution, and
    far longer for a kernel that is more than 14 wide. It is itself one, of every image with its gradient as the kernel;
    done so, image by image, that of large images is up to four times as fast. The gradient for x is one as well, with
    the kernel turned round, and that is how it is taken for a stride of 1.

    Shapes:
        x `(b, c, y, x)`, channels-last; weight `(c, 1, k, l)`
    """
    if stock(x) or x.dtype != torch.float32:
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))
    if not torch.is_grad_enabled():
        return _depthwise(x, weight, stride, padding)
    return _Depthwise.apply(x, weight, stride, padding)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return (_empty if _UNREAD.get() else _depthwise)(x, weight, stride, padding)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, stride, padding = grads[0].contiguous(memory_format=torch.channels_last), ctx.stride, ctx.padding
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        around = [length - 1 - p for length, p in zip(weight.shape[2:], padding, strict=True)]
        turns, by_image = needs_x and stride == 1 and min(around) >= 0, needs_weight and _heavy(x, weight)
        sizes = (None, [stride] * 2, padding, [1, 1], False, [0, 0], len(weight))
        rest = [needs_x and not turns, needs_weight and not by_image, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, weight, *sizes, rest) if any(rest) else [None] * 3
        if turns:
            dx = _depthwise(grad, weight.flip(2, 3), 1, (around[0], around[1]))
        if by_image:
            dw = _weight_gradient(x, weight, grad, stride, padding)
        return dx, dw, None, None


def _heavy(x: Tensor, weight: Tensor) -> bool:
    """Whether the weights' gradient is better taken image by image."""
    taps = weight.shape[2:].numel()
    return weight.shape[3] > SHORT or (taps > SHORT and taps * x.shape[1:].numel() > WORK)


def _weight_gradient(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """The sum over the images' convolutions with their gradients."""
    result, (height, width) = torch.zeros_like(weight), weight.shape[2:]
    size = SLICE if _crowded(x) and x.shape[2:].numel() >= MANY else len(weight)
    for n, slope in enumerate(grad):
        image = x[n : n + 1]  # not x[n][None], whose strides torch does not take for channels-last
        for part in spans(len(weight), size):
            kernel = _as_kernel(slope[part])
            found = F.conv2d(_side_by_side(image[:, part]), kernel, None, 1, padding, stride, len(kernel))
            result[part] += found.transpose(0, 1)[..., :height, :width]
    return result


def _crowded(x: Tensor) -> bool:
    """Whether all channels at a time are too many."""
    return x.shape[1] >= WIDE and x.shape[1:].numel() >= LARGE


def spans(length: int, size: int) -> list[slice]:
    """A length in pieces of a size, the last of which may be shorter."""
    return [slice(start, start + size) for start in range(0, length, size)]


def _side_by_side(x: Tensor) -> Tensor:
    """Some channels of images without the others in between."""
    return x.contiguous(memory_format=torch.channels_last)


def _depthwise(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """The convolution itself."""
    if not _crowded(x):
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))
    result = _empty(x, weight, stride, padding)
    together = max(BLOCK // (NARROW * x.shape[2:].numel()), 1)
    for images in spans(len(x), together):
        for part in spans(len(weight), NARROW):
            kernel = weight[part]
            block = _side_by_side(x[images, part])
            result[images, part] = F.conv2d(block, kernel, None, stride, padding, 1, len(kernel))
    return result


def _empty(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    """Memory for the result of a depthwise convolution."""
    sizes = zip(x.shape[2:], weight.shape[2:], padding, strict=True)
    shape = (*x.shape[:2], *((length + 2 * p - k) // stride + 1 for length, k, p in sizes))
    return torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)


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
    if stock(x) or not torch.is_grad_enabled():
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


def piecewise(run: Callable[..., Tensor], pieces: int, x: Tensor, *weights: Tensor, private: bool = False) -> Tensor:
    """`run(x, *weights)` for some images at a time, keeping nothing but x: the backward pass runs each piece again.

    What lies between x and the result is then only ever there for one piece. The second run is told by
    `wanted=False` that nobody reads its result, so that it may leave out its last step. A result that is `private`
    goes to one operation that hands back a gradient of its own: x's gradient is written over it, if it has its shape.
    """
    if pieces == 1 or stock(x) or not torch.is_grad_enabled():
        return run(x, *weights)
    ends = [len(x) * piece // pieces for piece in range(pieces + 1)]
    return _Piecewise.apply(run, [slice(*pair) for pair in pairwise(ends)], private, x, *weights)


class _Piecewise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, run: Callable[..., Tensor], parts: list[slice], private: bool, x: Tensor, *weights: Tensor
    ) -> Tensor:
        ctx.run, ctx.parts, ctx.private = run, parts, private
        ctx.save_for_backward(x, *weights)
        result: Tensor | None = None
        for span in parts:
            piece = run(x[span], *weights)
            result = piece.new_empty(len(x), *piece.shape[1:]) if result is None else result
            result[span] = piece
        assert result is not None
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), grad = ctx.saved_tensors, grads[0]
        needed = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # a second derivative
            inputs = [t for t, need in zip((x, *weights), needed, strict=True) if need]
            found = iter(torch.autograd.grad(ctx.run(x, *weights), inputs, grad, create_graph=True))
            return None, None, None, *(next(found) if need else None for need in needed)
        dx = None
        if needed[0]:
            over = ctx.private and (grad.shape, grad.stride()) == (x.shape, x.stride())
            dx = grad if over else torch.empty_like(x)
        sums: list[Tensor] = []
        for span in ctx.parts:
            leaves = [t.detach().requires_grad_(n) for t, n in zip((x[span], *weights), needed, strict=True)]
            with torch.enable_grad():
                piece = ctx.run(*leaves, wanted=False)
            found = list(torch.autograd.grad(piece, [leaf for leaf in leaves if leaf.requires_grad], grad[span]))
            if dx is not None:
                dx[span] = found.pop(0)
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else found
        rest = iter(sums)
        return None, None, None, dx, *(next(rest) if need else None for need in needed[1:])
