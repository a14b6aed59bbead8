"""Convolutions of which torch has only slow versions on a CPU.

All are ordinary differentiable functions. Where `plain` says so they are made of stock operations.
"""

import math

import torch
from einops import rearrange
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad
from torch.nn import functional as F

from sepgconv.execution import native

LINE = 16
"""Numbers in a cache line of 64 bytes."""
LARGE = 1 << 18
"""Numbers in an image of 1 MB, which does not fit into a core's cache."""
WIDE, NARROW, BLOCK = 1 << 10, 1 << 6, 1 << 20
"""From 1,024 channels on, neighbouring pixels of a large image push each other out of the cache: 64 channels at a time
are convolved, of images with a million numbers altogether (x0.7 at 2,048 channels; docs/speed.md)."""
MANY, SLICE = 1 << 9, 1 << 9
"""From 512 pixels on, the weights' gradient of such images is taken 512 channels at a time (x0.95; docs/speed.md)."""
SHORT, WORK = 14, 1 << 21
"""oneDNN's own gradient of the weights is the faster one up to 14 taps, and up to 2 million multiply-adds per image;
but not for kernels that are more than 14 wide (docs/speed.md)."""


def plain(x: Tensor) -> bool:
    """Whether to leave an operation to torch.

    That is on other devices, under a compiler, autocast or a transform of torch.func, in forward mode, and for any
    tensor that is not an ordinary one.
    """
    return (
        x.device.type != "cpu"
        or type(x) is not Tensor
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def spans(length: int, size: int) -> list[slice]:
    """A length in pieces of a size, the last of which may be shorter."""
    return [slice(start, start + size) for start in range(0, length, size)]


def depthwise(
    x: Tensor, weight: Tensor, stride: int = 1, padding: tuple[int, int] = (0, 0), *, wanted: bool = True
) -> Tensor:
    """A convolution of each channel with its own kernel.

    oneDNN's gradient for the weights of a depthwise convolution takes up to five times as long as the convolution, and
    far longer for a kernel that is more than 14 wide. It is itself one, of every image with its gradient as the kernel;
    done so, image by image, that of large images is up to four times as fast. The gradient for x is one as well, with
    the kernel turned round, and that is how it is taken for a stride of 1. With `wanted=False` only gradients are asked
    for, and the result may be whatever is in memory.

    Shapes:
        x `(b, c, y, x)`, channels-last; weight `(c, 1, k, l)`
    """
    if native.CHOSEN and native.applies(x, weight):
        return native.depthwise(x, weight, stride, padding)
    if plain(x) or x.dtype != torch.float32:
        return F.conv2d(x, weight.contiguous(), None, stride, padding, 1, len(weight))
    if not torch.is_grad_enabled():
        return _depthwise(x, weight, stride, padding)
    return _Depthwise.apply(x, weight, stride, padding, wanted)


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int], wanted: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return (_depthwise if wanted else _empty)(x, weight, stride, padding)

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
        return dx, dw, None, None, None


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


def circular_product(x: Tensor, blocks: Tensor, basis: Tensor) -> Tensor:
    """Transforms over a circle of n points, multiplies by one block per pair of waves, transforms back.

    Shapes:
        x `(b, …, n, i)`, blocks `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(b, …, n, j)`
    """
    if native.CHOSEN and native.applies(x, blocks):
        return native.circular_product(x, blocks, basis)
    return basis_product(x, blocks, basis)


def basis_product(x: Tensor, blocks: Tensor, basis: Tensor) -> Tensor:
    """Transforms to a basis, multiplies by one block per pair of its functions, transforms back.

    Shapes:
        x `(b, …, n, i)`, blocks `(pairs, 2i, 2j)`, basis `(2·pairs, n)` → `(b, …, n, j)`
    """
    outer, basis = x.shape[:-2], basis.to(x.dtype)
    flat = x.reshape(math.prod(outer), *x.shape[-2:])
    waves = torch.bmm(basis.expand(flat.shape[0], -1, -1), flat)
    rows = waves.reshape(*outer[:2], math.prod(outer[2:]), blocks.shape[0] * blocks.shape[1])
    product = grouped_product(rows, blocks).reshape(flat.shape[0], len(basis), blocks.shape[2] // 2)
    result = torch.bmm(basis.t().expand(flat.shape[0], -1, -1), product)
    return result.reshape(*outer, basis.shape[1], blocks.shape[2] // 2)


def grouped_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ M` for a block-diagonal matrix M with blocks of one size.

    oneDNN's grouped 1×1 convolution is the fastest way forward and for x's gradient, a matrix product per block for
    the weight's.

    Shapes:
        x `(b, y, x, groups·in)`, weight `(groups, in, out)` → `(b, y, x, groups·out)`
    """
    if plain(x) or not torch.is_grad_enabled():
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
