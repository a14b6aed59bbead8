"""How much kernels vary along the subgroup: PCA of full kernels, and the variance of k_H."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.kernels import multiply
from sepgconv.nn import GroupConv


@dataclass(frozen=True)
class LayerValues:
    """One number for every kernel k^{ij} of a layer.

    Args:
        name: the layer's, within its network.
        kernels: how many spatial kernels there are, |H|·i·j.
        values: by input and output channel.

    Shapes:
        values `(i, j)`
    """

    name: str
    kernels: int
    values: Float[Tensor, "i j"]


def full_kernel(layer: GroupConv) -> Float[Tensor, "h k i j"]:
    """k^{ij}(x, h) as the first output element sees it, window included, on the layer's unshifted grid."""
    values = multiply(layer.kernel())
    rank = len(layer.kernel.names)
    first = values[(0,) * rank]
    elements = tuple(layer.kernel.resolution[1])
    first = first.expand(*elements, *first.shape[rank:])
    return first.reshape(-1, *first.shape[rank:])


def explained_by_first(kernel: Float[Tensor, "h k i j"]) -> Float[Tensor, "i j"]:
    """The part of a kernel's variance over h that its first principal component explains (paper, Fig. redundancy).

    For each i and j the |H| spatial kernels are the samples and the k×k taps their features. A part of 1 means that
    one spatial kernel, weighted, serves all of H.
    """
    samples = (kernel - kernel.mean(0)).permute(2, 3, 0, 1).double()
    squares = torch.linalg.svdvals(samples).square()
    return squares[..., 0] / squares.sum(-1).clamp_min(torch.finfo(torch.float64).tiny)


def subgroup_kernel(layer: GroupConv) -> Float[Tensor, "h i j"]:
    """k_H^{ij}(h) of a layer whose table has a factor that sees the subgroup and not space."""
    kernel = layer.kernel
    for factor, network in zip(kernel.factors, kernel.networks, strict=True):
        if factor.coordinates and "x" not in factor.coordinates.split() and factor.channels == "ij":
            rows, _ = kernel.coordinates(factor, kernel.positions()[0])
            return network(rows).reshape(len(rows), *kernel.channels)
    raise ValueError(f"the variance of k_H needs a factor k_H^ij(h), got the table {kernel.factors}")


def over_layers(
    network: nn.Module, measure: Callable[[GroupConv], Float[Tensor, "i j"]], *, least_size: int = 2
) -> list[LayerValues]:
    """A measure of all group convolutions of a network; 1×1 shortcuts have no spatial kernels and are left out."""
    training = network.training
    network.eval()  # the grids go back to where they are not shifted
    try:
        with torch.no_grad():
            return [
                LayerValues(name, layer.grid.size * layer.in_channels * layer.out_channels, measure(layer))
                for name, layer in network.named_modules()
                if isinstance(layer, GroupConv) and layer.kernel_size >= least_size
            ]
    finally:
        network.train(training)


def explained_variance(network: nn.Module) -> list[LayerValues]:
    """Per layer, the variance along h that one spatial kernel explains."""
    return over_layers(network, lambda layer: explained_by_first(full_kernel(layer)))


def subgroup_variance(network: nn.Module) -> list[LayerValues]:
    """Per layer, the variance of k_H along h."""
    return over_layers(network, lambda layer: subgroup_kernel(layer).var(0, unbiased=False))


def subgroup_variance_relative(network: nn.Module) -> list[LayerValues]:
    """Per layer, the variance of k_H along h over its mean square: 0 is constant, and the kernel's scale cancels.

    The paper's measure is not free of scale, which k_H and k_X share between them.
    """

    def measure(layer: GroupConv) -> Tensor:
        values = subgroup_kernel(layer)
        return values.var(0, unbiased=False) / values.square().mean(0).clamp_min(1e-30)

    return over_layers(network, measure)
