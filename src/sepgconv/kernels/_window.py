"""Where a kernel is supported in space."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def ball(radius: Float[Tensor, "*s"], edge: float) -> Float[Tensor, "*s"]:
    """A ball with a smooth edge, as a function of the distance from its centre: 1 up to 1 − edge, 0 from 1 on."""
    return 0.5 + 0.5 * torch.cos(math.pi * ((radius - 1 + edge) / edge).clamp(0, 1))


def taps(kernel_size: int, space: int) -> Float[Tensor, "k d"]:
    """Positions of a kernel's taps in pixels, (x, y, z) with y up, in the order of a convolution weight's elements."""
    line = torch.arange(kernel_size, dtype=torch.float64, device="cpu") - (kernel_size - 1) / 2
    axes = torch.meshgrid(*[line] * space, indexing="ij")
    flipped = [-axis if name == space - 2 else axis for name, axis in enumerate(axes)]
    return torch.stack([axis.flatten() for axis in reversed(flipped)], dim=-1)
