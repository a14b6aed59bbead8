"""The low-pass filter before features are subsampled."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution.native import depthwise
from sepgconv.kernels import ball

REACH = 1.75
"""Radius of the filter over the stride. At a stride of 2 it leaves 11 % of the frequency that the coarser pixels can
just hold and at most 2 % of those from 0.35 cycles per pixel on, the same in all directions to 0.5 % of its input."""


def filter_taps(kernel_size: int, stride: int) -> int:
    """How many taps a filter has along an axis: as many as its radius holds, even or odd as the window it replaces."""
    radius = max(REACH * stride, (kernel_size + 1) / 2)
    return next(taps for taps in range(kernel_size + 2 * math.ceil(radius), 0, -2) if (taps - 1) / 2 < radius)


def low_pass(kernel_size: int, stride: int, space: int) -> Float[Tensor, "*taps"]:
    """A round filter: (1 + cos πr)/2 of the distance from its centre, which is 0 at its radius. It sums to 1."""
    taps, radius = filter_taps(kernel_size, stride), max(REACH * stride, (kernel_size + 1) / 2)
    line = (torch.arange(taps, dtype=torch.float64, device="cpu") - (taps - 1) / 2).square()
    squares = sum(torch.meshgrid(*[line] * space, indexing="ij"))
    weights = ball(torch.as_tensor(squares).sqrt() / radius, 1.0)
    return weights / weights.sum()


def subsample(
    images: Float[Tensor, "b c *space"], kernel_size: int, stride: int, padding: int
) -> Float[Tensor, "b c *coarse"]:
    """Low-passed images at every stride-th pixel, where windows of `kernel_size` at this padding have their centres.

    What lies outside of an image does not count: a constant stays what it is up to the border.
    """
    space, channels = images.ndim - 2, images.shape[1]
    weights = low_pass(kernel_size, stride, space).to(images)[None, None]
    around = padding + (weights.shape[-1] - kernel_size) // 2
    convolve = (F.conv1d, F.conv2d, F.conv3d)[space - 1]
    covered = convolve(torch.ones_like(images[:1, :1]), weights, None, stride, around)
    kernels = weights.repeat(channels, *(1,) * (space + 1))
    if space == 2:
        coarse = depthwise(images, kernels, stride, (around, around))
    else:
        coarse = convolve(images, kernels, None, stride, around, 1, channels)
    return coarse / covered
