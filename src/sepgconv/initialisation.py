"""How kernel networks are drawn: unit variance through a layer, for every factorisation, by the kernel's spectrum."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.factors import Factor, Term
from sepgconv.siren import KernelNetwork

if TYPE_CHECKING:
    from sepgconv.kernels import GroupKernel


def power_spectrum(functions: Float[Tensor, "*axes c"]) -> Float[Tensor, "frequencies c"]:
    """|F[a](ω)|² of functions on a grid, zero-padded to twice its length."""
    axes = list(range(functions.ndim - 1))
    sizes = [2 * n if n > 1 else 1 for n in functions.shape[:-1]]
    transform = torch.fft.fftn(functions.double(), s=sizes, dim=axes) if axes else functions.double()
    return transform.abs().square().reshape(-1, functions.shape[-1])


@torch.no_grad()
def initialise(kernel: "GroupKernel") -> None:
    """Unit variance through the layer, at init and for every factorisation.

    With independent last-layer weights a kernel's expected power spectrum over G is S(ω) = Σ_u |F[a_u]|², a_u being
    its hidden units; the spectra of factors multiply. White noise gains ∫S: so a lifting kernel is scaled.
    But smooth kernels make smooth features, whose spectrum after p layers is S^p, and those gain ∫S·S^p / ∫S^p.
    Group kernels are scaled for the p that keeps stacks of several layers steady; it grows with the dimension of G,
    since the more axes a spectrum has, the faster its peak takes over.
    """
    depth = (1 + kernel.grid.space + len(kernel.names)) / 2 if kernel.source else 0
    pending = {"x", *(range(len(kernel.names)) if kernel.source else ())}
    for factor, term, network in zip(kernel.factors, kernel.terms, kernel.networks, strict=False):
        assert isinstance(network, KernelNetwork)
        network.reset_hidden()
        network.reset_out(1.0)
        weighted = {*term.parts, *(["x"] if term.spatial else [])} & pending
        pending -= weighted
        units = _around_one_element(kernel, factor, term, network, weighted)
        expected = power_spectrum(units).sum(-1, keepdim=True)
        features = expected**depth / (expected**depth).mean()
        gain = (expected * features).mean()
        if factor.channels == "j" and units[..., 0].numel() > 1:
            # One function per channel: scaled by its own gain, unless that happens to be close to zero.
            own = (power_spectrum(units @ network.out.weight.t()) * features).mean(0)
            network.out.weight.mul_(own.clamp_min(0.1 * gain.item()).rsqrt().to(units)[:, None])
        else:
            network.scale_out(gain.rsqrt().item())
    # What no factor sees is constant there; it is made good in the first factor.
    rest = power_spectrum(_around_one_element(kernel, Factor("", ""), Term((), False, ""), None, pending))
    gain = (rest ** (depth + 1)).mean() / (rest**depth).mean() * kernel.channels[0] * kernel.gain**2
    first = kernel.networks[0]
    assert isinstance(first, KernelNetwork)
    first.scale_out(gain.rsqrt().item())


def _around_one_element(
    kernel: "GroupKernel", factor: Factor, term: Term, network: KernelNetwork | None, weighted: set
) -> Float[Tensor, "*axes u"]:
    """A factor's hidden units `(h…, y…, u)` as the middle output element sees them.

    The window and the cells' volumes are multiplied in for the coordinates in `weighted`, scaled to their mean
    square over all output elements.
    """
    middle = tuple(count // 2 for count in kernel.grid.shape)
    rows, shape = kernel.coordinates(factor, middle)
    units = network.hidden(rows) if network and network.in_features else rows.new_ones(len(rows), 1)
    units = units.reshape(*shape, -1)
    # Axes are (h of every part, k) for a spatial factor and (h of the parts it sees) for another.
    axes = {part: part if term.spatial else n for n, part in enumerate(term.parts)}
    if not term.spatial:
        for part, axis in axes.items():
            units = units.index_select(axis, getattr(kernel, f"index{part}")[middle[part]])
    for part in sorted(weighted - {"x"}):
        weight = getattr(kernel, f"weight{part}")
        row = weight[middle[part]] * (weight.square().sum(-1).mean() / weight[middle[part]].square().sum()).sqrt()
        if part in axes:
            units = units * row.reshape([-1 if n == axes[part] else 1 for n in range(units.ndim)])
        else:
            units = row.reshape(-1, *(1,) * units.ndim) * units
    if "x" in weighted:
        window = kernel.positions()[1]
        row = window[middle]
        if not kernel.source:  # white noise gains less at larger scales; smooth features gain the same at all
            row = row * (window.square().sum(-1).mean() / row.square().sum()).sqrt()
        units = units * row[:, None] if term.spatial else units.unsqueeze(-2) * row[:, None]
    if term.spatial or "x" in weighted:
        units = units.unflatten(-2, (kernel.kernel_size,) * kernel.grid.space)
    return units
