"""Max pooling that keeps little for the backward pass."""

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import native
from sepgconv.execution.cpu.convolution import plain

CHUNK = 1 << 22
"""Numbers that are pooled at a time (16 MB): few calls, and little that is eight bytes long."""


def max_pool(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Stock max pooling that keeps two bytes per maximum, where it was found, instead of the input and eight bytes.

    Shapes:
        images `(b, c, y, x)`; it pays where they are channels-last
    """
    if native.CHOSEN and native.applies(images):
        return native.max_pool(images, size, stride, padding)
    if plain(images) or not (images.requires_grad and torch.is_grad_enabled()):
        return F.max_pool2d(images, size, stride, padding)
    large = images.shape[2] * images.shape[3] > torch.iinfo(torch.int16).max
    if large or not images.is_contiguous(memory_format=torch.channels_last):
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
    return max(CHUNK // images[0].numel(), 1)
