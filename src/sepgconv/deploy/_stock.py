"""A group convolution on a grid at rest as stock convolutions of images `(b, h·c, …)`.

The kernel is a product of tensors `(o…, h…, k, i, j)`: output and input elements, taps, channels. Which of these axes a
tensor varies along is read off its shape, whatever group and factorisation it comes from.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sepgconv.deploy._layers import Regroup, Waves
from sepgconv.execution.ways.product import real_fourier
from sepgconv.kernels._values import multiply
from sepgconv.nn import GroupConv, LiftingConv

RUNTIMES = {"torch": (1 / 30, 8.0), "onnx": (1 / 43, 1.1)}
"""Nanoseconds per multiply-add of a 1×1 convolution, and per channel of a Fourier transform to or fro, on one core.

Measured on AVX-512 (docs/deploy.md). Torch's convolutions run channels-last, where a transform costs a copy."""
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Sampled(NamedTuple):
    """A kernel's values, split in those that see space and those that do not, with the axes of H flattened.

    Each is `(o, h, k, i, j)`, where an axis that nothing depends on has length 1.
    """

    mixing: Tensor
    spatial: Tensor
    circle: int
    """Length of the outermost part of H, if the mixing is circulant along it, else 0."""


def sample(conv: GroupConv | LiftingConv) -> Sampled:
    """The values of a convolution's kernel, in float64."""
    kernel = conv.kernel
    values = [value.detach().double() for value in kernel()]
    target, rank = kernel.grid.shape, len(kernel.grid.shape)
    source = kernel.source.shape if kernel.source is not None else (1,) * rank
    point = conv.kernel_size == 1 and conv.stride == 1 and conv.padding == 0
    one = values[0].new_ones((1,) * (2 * rank + 3))
    apart = [value for value in values if value.shape[2 * rank] == 1]
    if point:
        mixing, spatial = multiply([one, *values]), one
    else:
        mixing = multiply([one, *apart])
        spatial = multiply([one, *(value for value in values if value.shape[2 * rank] > 1)])
        if spatial.shape[2 * rank] == 1:  # a kernel of one tap with a stride
            mixing, spatial = one, mixing
    circle = _circle(mixing, target, source)
    return Sampled(_flat(mixing, target, source), _flat(spatial, target, source), circle)


def _flat(values: Tensor, target: tuple[int, ...], source: tuple[int, ...]) -> Tensor:
    """`(o, h, k, i, j)` of `(o…, h…, k, i, j)`; o and h keep length 1 where nothing depends on them."""
    rank = len(target)
    outs = target if any(n > 1 for n in values.shape[:rank]) else (1,) * rank
    ins = source if any(n > 1 for n in values.shape[rank : 2 * rank]) else (1,) * rank
    values = values.expand(*outs, *ins, *values.shape[2 * rank :])
    return values.reshape(math.prod(outs), math.prod(ins), *values.shape[2 * rank :])


def _circle(mixing: Tensor, target: tuple[int, ...], source: tuple[int, ...]) -> int:
    """The length of the first part of H, if shifting both ends along it changes nothing."""
    rank = len(target)
    if not rank or target[0] != source[0] or target[0] < 3:
        return 0
    if mixing.shape[0] != target[0] or mixing.shape[rank] != source[0]:
        return 0
    return target[0] if torch.equal(mixing.roll((1, 1), (0, rank)), mixing) else 0


def stock_layers(
    conv: GroupConv | LiftingConv, scale: Tensor | None, shift: Tensor | None, runtime: str
) -> list[nn.Module]:
    """Stock layers `(b, h·i, …)` → `(b, o·j, …)` with the numbers of a convolution, and of a norm that follows it.

    Args:
        conv: the convolution, with its grids at rest.
        scale: what to multiply output channels by.
        shift: what to add to them.
        runtime: what the layers are to be fast in, one of `RUNTIMES`.
    """
    like, sizes = conv.kernel.points, _Sizes.of(conv)
    sampled = sample(conv)
    bias = conv.bias
    if scale is not None and bias is not None:
        bias = bias * scale
    if shift is not None:
        bias = shift if bias is None else bias + shift
    if scale is not None:
        wide = scale.detach().double()
        point = sampled.spatial.numel() == 1
        sampled = sampled._replace(
            **{"mixing": sampled.mixing * wide} if point else {"spatial": sampled.spatial * wide}
        )
    layers = min(_choices(sampled, sizes, runtime), key=lambda choice: choice.cost).build()
    (last,) = [layer for layer in layers if isinstance(layer, (*CONVS, Waves))][-1:]
    layers = [layer.to(like) for layer in layers]
    if bias is not None:
        bias = bias.detach().to(like).repeat(sizes.outs)
        if isinstance(last, Waves):  # the transform back is the last step: what it adds must go through the first
            last.blocks.bias = nn.Parameter(_to_waves(last, bias))
        else:
            order = bias.unflatten(0, (sizes.outs, -1)).T.flatten() if isinstance(layers[-1], Regroup) else bias
            last.bias = nn.Parameter(order)
    for layer in layers:
        layer.requires_grad_(False)
        if runtime == "torch" and sizes.space == 2:
            layer.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return layers


def _to_waves(waves: Waves, bias: Tensor) -> Tensor:
    """The coefficients of something that is added on the circle."""
    return (waves.basis @ bias.reshape(waves.basis.shape[1], -1)).flatten()


class _Sizes(NamedTuple):
    """Sizes of a convolution: elements and channels on either side, and how it goes over space."""

    ins: int
    outs: int
    i: int
    j: int
    space: int
    kernel_size: int
    stride: int
    padding: int

    @classmethod
    def of(cls, conv: GroupConv | LiftingConv) -> "_Sizes":
        source = conv.kernel.source
        ins, outs = source.size if source is not None else 1, conv.kernel.grid.size
        rest = (conv.kernel_size, conv.stride, conv.padding)
        return cls(ins, outs, conv.in_channels, conv.out_channels, conv.kernel.grid.space, *rest)

    def conv(self, weight: Tensor, groups: int, *, spatial: bool) -> nn.Module:
        """A stock convolution with a weight `(out, in/groups, k)`."""
        kind, size = CONVS[self.space - 1], self.kernel_size if spatial else 1
        stride, padding = (self.stride, self.padding) if spatial else (1, 0)
        out, each = weight.shape[:2]
        made = kind(each * groups, out, size, stride, padding, groups=groups, bias=False, device=weight.device)
        made.weight = nn.Parameter(weight.reshape(out, each, *(size,) * self.space).contiguous())
        return made


class _Choice(NamedTuple):
    """One way to do it: nanoseconds per pixel of the input, and what makes the layers."""

    cost: float
    build: Callable[[], list[nn.Module]]


def _choices(sampled: Sampled, sizes: _Sizes, runtime: str) -> list[_Choice]:
    """All ways that give the right result."""
    mixing, spatial, circle = sampled
    rate, _ = RUNTIMES[runtime]
    taps = sizes.kernel_size**sizes.space
    pixels = 1 / sizes.stride**sizes.space
    everything = sizes.ins * sizes.outs * sizes.i * sizes.j * taps * rate * pixels
    choices = [_Choice(everything, lambda: [_dense(sampled, sizes)])]
    if spatial.numel() == 1:
        return _mixings(mixing * spatial, circle, sizes, runtime)
    if spatial.shape[1] == spatial.shape[3] == 1:  # over space, every output channel by itself
        depthwise = sizes.outs * sizes.j * taps * 3 * rate * pixels
        weight = spatial.expand(sizes.outs, 1, taps, 1, sizes.j).permute(0, 4, 1, 3, 2).reshape(-1, 1, taps)
        last = [sizes.conv(weight, len(weight), spatial=True)]
        for cost, build in _mixings(mixing, circle, sizes, runtime):
            choices.append(_Choice(cost + depthwise, lambda build=build: [*build(), *last]))
    elif mixing.shape[:2] == (1, 1) and spatial.shape[3] == 1:  # channels first, then elements and space together
        grouped = sizes.ins * sizes.outs * sizes.j * taps * 3 * rate * pixels
        first = sizes.ins * sizes.i * sizes.j * rate
        moved = (sizes.ins + sizes.outs) * sizes.j * 2.0
        choices.append(_Choice(first + grouped + moved, lambda: _by_channel(mixing, spatial, sizes)))
    return choices


def _dense(sampled: Sampled, sizes: _Sizes) -> nn.Module:
    """Everything at once: `(o j) (h i) k`."""
    taps = sizes.kernel_size**sizes.space
    kernel = (sampled.mixing * sampled.spatial).expand(sizes.outs, sizes.ins, taps, sizes.i, sizes.j)
    weight = kernel.permute(0, 4, 1, 3, 2).reshape(sizes.outs * sizes.j, sizes.ins * sizes.i, taps)
    return sizes.conv(weight, 1, spatial=True)


def _by_channel(mixing: Tensor, spatial: Tensor, sizes: _Sizes) -> list[nn.Module]:
    """i to j at every element; then, for every j by itself, elements and space."""
    matrix = mixing.expand(1, 1, 1, sizes.i, sizes.j)[0, 0, 0].T.repeat(sizes.ins, 1).unsqueeze(-1)
    taps = sizes.kernel_size**sizes.space
    kernel = spatial.expand(sizes.outs, sizes.ins, taps, 1, sizes.j).permute(4, 0, 3, 1, 2)
    return [
        sizes.conv(matrix, sizes.ins, spatial=False),
        Regroup(sizes.ins),
        sizes.conv(kernel.reshape(sizes.j * sizes.outs, sizes.ins, taps), sizes.j, spatial=True),
        Regroup(sizes.j),
    ]


def _mixings(mixing: Tensor, circle: int, sizes: _Sizes, runtime: str) -> list[_Choice]:
    """Ways to sum over elements and channels at every pixel: `(h i)` to `(o j)`."""
    rate, moved = RUNTIMES[runtime]
    kernel = mixing.expand(sizes.outs, sizes.ins, 1, sizes.i, sizes.j)[:, :, 0]  # o h i j
    work = sizes.ins * sizes.outs * sizes.i * sizes.j
    matrix = kernel.permute(0, 3, 1, 2).reshape(sizes.outs * sizes.j, sizes.ins * sizes.i)
    found = [_Choice(work * rate, lambda: [sizes.conv(matrix.unsqueeze(-1), 1, spatial=False)])]
    if circle:
        pairs = (circle + 1) // 2
        cost = work * 4 * pairs / circle**2 * 1.25 * rate + moved * (sizes.ins * sizes.i + sizes.outs * sizes.j)
        found.append(_Choice(cost, lambda: [_waves(matrix, circle, sizes)]))
    return found


def _waves(matrix: Tensor, circle: int, sizes: _Sizes) -> Waves:
    """The matrix in a Fourier basis along the outermost part: one block per pair of waves, by change of basis."""
    basis = matrix.new_tensor(real_fourier(circle))
    blocks = matrix.unflatten(0, (circle, -1)).unflatten(-1, (circle, -1))  # n, j, n, i
    turned = torch.einsum("fn,njmi,gm->fjgi", basis, blocks, basis)
    pairs = turned.unflatten(2, (-1, 2)).unflatten(0, (-1, 2))  # p 2 j q 2 i
    count = len(pairs)
    kept = torch.stack([pairs[p, :, :, p] for p in range(count)])  # p 2 j 2 i
    weight = kept.reshape(count * 2 * kept.shape[2], 2 * kept.shape[4], 1)
    return Waves(basis, sizes.conv(weight, count, spatial=False))
