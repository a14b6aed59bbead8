"""Operations of which torch has only slow versions on a CPU: a depthwise convolution's gradient, products by blocks.

All are ordinary differentiable functions. Where a fast way does not apply (another device, autocast, a compiler, a
second derivative) they are made of stock operations and give the same numbers.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

Block = tuple[slice, slice]
"""The columns that a block reads and the columns that it writes."""


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


def block_product(x: Tensor, weights: Sequence[Tensor], blocks: Sequence[Block]) -> Tensor:
    """`x @ M` for a matrix M whose non-zero entries are the blocks; those that write the same columns do not overlap.

    Shapes:
        x `(rows, in)`, weights `(in of the block, out of the block)` → `(rows, out)`, written from left to right
    """
    if _stock(x):
        return torch.cat([x[:, source] @ weight for weight, (source, _) in zip(weights, blocks, strict=True)], dim=1)
    return _BlockProduct.apply(x, tuple(blocks), *weights)


class _BlockProduct(torch.autograd.Function):
    """Reads and writes columns of whole rows, so that nothing is split or joined."""

    @staticmethod
    def forward(ctx, x: Tensor, blocks: tuple[Block, ...], *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.blocks = blocks
        result = x.new_empty(len(x), blocks[-1][1].stop)
        for weight, (source, target) in zip(weights, blocks, strict=True):
            torch.mm(x[:, source], weight, out=result[:, target])
        return result

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), grad, blocks = ctx.saved_tensors, grads[0], ctx.blocks
        if torch.is_grad_enabled():  # a second derivative: of operations that torch can differentiate
            columns = [
                F.pad(weight, (0, 0, source.start, x.shape[1] - source.stop))
                for weight, (source, _) in zip(weights, blocks, strict=True)
            ]
            dws = [x[:, source].t() @ grad[:, target] for source, target in blocks]
            return grad @ torch.cat(columns, dim=1).t(), None, *dws
        dx = None
        if ctx.needs_input_grad[0]:
            disjoint = all(a.stop <= b.start for (a, _), (b, _) in pairwise(blocks))
            dx = torch.empty_like(x) if disjoint else torch.zeros_like(x)
            for weight, (source, target) in zip(weights, blocks, strict=True):
                if disjoint:
                    torch.mm(grad[:, target], weight.t(), out=dx[:, source])
                else:
                    dx[:, source].addmm_(grad[:, target], weight.t())
        dws = [
            x[:, source].t() @ grad[:, target] if needed else None
            for (source, target), needed in zip(blocks, ctx.needs_input_grad[2:], strict=True)
        ]
        return dx, None, *dws
