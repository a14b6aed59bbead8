"""A penalty for frequencies that turns between the pixels cannot keep, for kernels of any kind."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.kernels._kernel import GroupKernel
from sepgconv.kernels._values import multiply


def frequency_penalty(model: nn.Module, cutoff: float = 0.3) -> Float[Tensor, ""]:
    """The share of the kernels' power above a frequency: between 0 and 1, to be added to a loss.

    It is taken from the sampled kernels' spectra over space, at every element of the grid, and averaged over all
    kernels of more than one tap.

    Args:
        model: a network or a layer.
        cutoff: in cycles per pixel; at most 0.5.
    """
    if not 0 < cutoff <= 0.5:
        raise ValueError(f"cutoff must be positive and at most 0.5 cycles per pixel, got {cutoff!r}")
    kernels = [module for module in model.modules() if isinstance(module, GroupKernel) and module.kernel_size > 1]
    if not kernels:
        raise ValueError(f"{type(model).__name__} has no kernel of more than one tap")
    return torch.stack([_high_share(kernel, cutoff) for kernel in kernels]).mean()


def _high_share(kernel: GroupKernel, cutoff: float) -> Float[Tensor, ""]:
    """The share of one kernel; what does not see x is left out, since it changes no frequency."""
    space, size = kernel.grid.space, 2 * kernel.kernel_size
    spatial = multiply([values for values, term in zip(kernel(), kernel.terms, strict=True) if term.spatial])
    taps = spatial.movedim(-3, -1).unflatten(-1, (kernel.kernel_size,) * space)
    power = torch.fft.fftn(taps, s=(size,) * space, dim=tuple(range(-space, 0))).abs().square()
    line = torch.fft.fftfreq(size, device=power.device, dtype=power.dtype).square()
    radius = torch.as_tensor(sum(torch.meshgrid(*[line] * space, indexing="ij"))).sqrt()
    return (power * (radius > cutoff)).sum() / power.sum().clamp_min(torch.finfo(power.dtype).tiny)
