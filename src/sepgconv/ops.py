"""Operations of which torch has only slow versions on a CPU.

All are ordinary differentiable functions. Where a fast way does not apply (another device, autocast, a compiler, a
second derivative) they are made of stock operations and give the same numbers.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def _stock(x: Tensor) -> bool:
    """Whether to leave everything to torch."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")


def depthwise(x: Tensor, weight: Tensor, stride: int = 1, padding: tuple[int, int] = (0, 0)) -> Tensor:
    """A convolution of each channel with its own kernel.

    oneDNN's gradient for the weights of a depthwise convolution takes five times as long as the convolution. It is
    itself one, of every image with its gradient as the kernel; done so, image by image, it is three times as fast.

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
        return F.conv2d(x, weight, None, stride, padding, 1, len(weight))

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, stride, padding = grads[0], ctx.stride, ctx.padding
        dx = dw = None
        if ctx.needs_input_grad[0]:
            sizes = (None, [stride] * 2, padding, [1, 1], False, [0, 0], len(weight))
            dx = torch.ops.aten.convolution_backward(grad, x, weight, *sizes, [True, False, False])[0]
        if ctx.needs_input_grad[1]:
            grad = grad.contiguous(memory_format=torch.channels_last)
            height, width = weight.shape[2:]
            parts = [
                F.conv2d(image, kernel.unsqueeze(1), None, 1, padding, stride, len(weight))
                for image, kernel in zip(x.split(1), grad.unbind(), strict=True)
            ]
            dw = torch.cat(parts).sum(0).unsqueeze(1)[..., :height, :width]
        return dx, dw, None, None


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
            groups = zip(grad.flatten(0, 2).chunk(len(weight), 1), x.flatten(0, 2).chunk(len(weight), 1), strict=True)
            dw = torch.stack([g.t() @ f for g, f in groups]).mT
        return dx, dw


def piecewise(run: Callable[..., Tensor], pieces: int, x: Tensor, *weights: Tensor) -> Tensor:
    """`run(x, *weights)` for a few images at a time, keeping nothing but x: the backward pass runs each piece again.

    What lies between x and the result is then only ever there for one piece. That saves memory, and time where it
    would not have fitted into a cache.
    """
    if pieces == 1 or _stock(x) or not torch.is_grad_enabled():
        return run(x, *weights)
    return _Piecewise.apply(run, -(-len(x) // pieces), x, *weights)


class _Piecewise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run: Callable[..., Tensor], size: int, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.size = run, size
        ctx.save_for_backward(x, *weights)
        result: Tensor | None = None
        for start in range(0, len(x), size):
            piece = run(x[start : start + size], *weights)
            result = piece.new_empty(len(x), *piece.shape[1:]) if result is None else result
            result[start : start + size] = piece
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
        for start in range(0, len(x), ctx.size):
            span = slice(start, start + ctx.size)
            leaves = [t.detach().requires_grad_(n) for t, n in zip((x[span], *weights), needed, strict=True)]
            with torch.enable_grad():
                piece = ctx.run(*leaves)
            found = list(torch.autograd.grad(piece, [leaf for leaf in leaves if leaf.requires_grad], grads[0][span]))
            if dx is not None:
                dx[span] = found.pop(0)
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else found
        rest = iter(sums)
        return None, None, dx, *(next(rest) if need else None for need in needed[1:])
