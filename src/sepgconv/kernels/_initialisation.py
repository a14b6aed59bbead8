"""How kernel networks are drawn: nearly white kernels, and unit variance through a layer for every factorisation."""

import itertools
import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.kernels._factors import Factor, Term
from sepgconv.kernels._networks import KernelNetwork
from sepgconv.kernels._prefilter import filtered

if TYPE_CHECKING:
    from sepgconv.kernels._kernel import GroupKernel

POINTS = 1024
"""Points of a kernel's support on which its hidden units are compared."""


def power_spectrum(functions: Float[Tensor, "*axes c"]) -> Float[Tensor, "frequencies c"]:
    """|F[a](ω)|² of functions on a grid, zero-padded to twice its length."""
    axes = list(range(functions.ndim - 1))
    sizes = [2 * n if n > 1 else 1 for n in functions.shape[:-1]]
    transform = torch.fft.fftn(functions.double(), s=sizes, dim=axes) if axes else functions.double()
    return transform.abs().square().reshape(-1, functions.shape[-1])


@torch.no_grad()
def initialise(kernel: "GroupKernel") -> None:
    """Unit variance through the layer, at init and for every factorisation.

    Kernels are drawn nearly white (`whitening`). With independent last-layer weights a kernel's expected power spectrum
    over G is then S(ω) = Σ_u |F[a_u]|², a_u being its mixed hidden units; the spectra of factors multiply. White noise
    gains ∫S: so a lifting kernel is scaled. What is left of smoothness makes smooth features, whose spectrum after p
    layers is S^p, and those gain ∫S·S^p / ∫S^p. Group kernels are scaled for the p that keeps stacks of several
    layers steady; it grows with the dimension of G, since the more axes a spectrum has, the faster its peak takes over.
    """
    depth = 0.4 * (kernel.grid.space + len(kernel.names)) if kernel.source else 0
    pending = {"x", *(range(len(kernel.names)) if kernel.source else ())}
    for factor, term, network in zip(kernel.factors, kernel.terms, kernel.networks, strict=False):
        assert isinstance(network, KernelNetwork)
        network.reset_hidden()
        network.wake(_support(kernel, factor, term))
        network.reset_out(1.0)
        weighted = {*term.parts, *(["x"] if term.spatial else [])} & pending
        pending -= weighted
        units = _seen(kernel, factor, term, network, weighted)
        mixed = units
        if network.in_features:
            mix = whitening(kernel, factor, network).to(kernel.points)
            network.out.weight.copy_(network.out.weight @ mix)
            mixed = [unit @ mix for unit in units]
        expected = _mean_spectrum(mixed).sum(-1, keepdim=True)
        features = expected**depth / (expected**depth).mean()
        gain = (expected * features).mean()
        if factor.channels == "j" and network.in_features:
            # One function per channel: scaled by its own gain, unless that happens to be close to zero.
            drawn = _mean_spectrum([unit @ network.out.weight.t() for unit in units])
            own = (drawn * features).mean(0).clamp_min(0.1 * gain.item())
            network.out.weight.mul_(own.rsqrt().to(kernel.points)[:, None])
        else:
            network.scale_out(gain.rsqrt().item())
    # What no factor sees is constant there; it is made good in the first factor.
    rest = _mean_spectrum(_seen(kernel, Factor("", ""), Term((), False, ""), None, pending))
    gain = (rest ** (depth + 1)).mean() / (rest**depth).mean() * kernel.channels[0] * kernel.gain**2
    first = kernel.networks[0]
    assert isinstance(first, KernelNetwork)
    first.scale_out(gain.rsqrt().item())
    _balance([network for network in kernel.networks if isinstance(network, KernelNetwork)])


def _balance(networks: list[KernelNetwork]) -> None:
    """Gives the weights of all factors the same size, their product unchanged.

    A layer is blind to how its size is shared out, but Adam moves all weights by the same step: it would hardly move
    the large ones, and shake the small ones.
    """
    sizes = [network.last.square().mean().sqrt().item() for network in networks]
    size = math.prod(sizes) ** (1 / len(sizes))
    for network, own in zip(networks, sizes, strict=True):
        network.scale_out(size / own)


def whitening(kernel: "GroupKernel", factor: Factor, network: KernelNetwork) -> Float[Tensor, "u u"]:
    """The matrix that makes a network's hidden units nearly orthonormal on the kernel's support.

    Few sines of low frequency are almost the same function: independent weights would mostly draw multiples of their
    mean, and features would lose all but their lowest frequencies within a few layers. With B the units' inner products
    and β its largest eigenvalue, weights are multiplied by (B + λβ)^(−½): directions well above λ count alike, those
    below stay small, so that no kernel is made of differences between nearly equal units. λ = 10⁻ᵐ·(2k)⁻ᵈ for m
    coordinates of H and d of space: the more points a kernel is sampled on, the more functions are to be told apart.
    """
    seen = factor.coordinates.split()
    spatial = kernel.grid.space if "x" in seen else 0
    points = torch.quasirandom.SobolEngine(network.in_features).draw(POINTS, dtype=torch.float32)
    points = points.to(kernel.points) * 2 - 1
    if kernel.kernel_size == 1:
        points[:, :spatial] = 0
    window = kernel.window(points[:, :spatial].norm(dim=-1))
    units = (network.hidden(points) * window[:, None]).double()
    values, vectors = torch.linalg.eigh(units.t() @ units)
    largest = values[-1].clamp_min(1e-12)  # of units that are zero at all of these points, too
    floor = largest / (10.0 ** (network.in_features - spatial) * (2.0 * kernel.kernel_size) ** spatial)
    return vectors * (values.clamp_min(0) + floor).rsqrt() @ vectors.t() * POINTS**0.5


def _mean_spectrum(functions: list[Float[Tensor, "*axes c"]]) -> Float[Tensor, "frequencies c"]:
    return torch.stack([power_spectrum(each) for each in functions]).mean(0)


def _support(kernel: "GroupKernel", factor: Factor, term: Term) -> Float[Tensor, "rows n"]:
    """Where a factor's network is evaluated, without the taps outside of the window."""
    positions, window = kernel.positions()
    rows, shape = kernel.coordinates(factor, positions)
    if not term.spatial:
        return rows
    inside = (window > 0).reshape(*kernel.grid.shape, *(1,) * (len(shape) - window.ndim), -1)
    return rows[inside.expand(shape).flatten()]


def _seen(
    kernel: "GroupKernel", factor: Factor, term: Term, network: KernelNetwork | None, weighted: set
) -> list[Float[Tensor, "*axes u"]]:
    """A factor's hidden units `(h…, y…, u)` as output elements see them: all scales, at one rotation.

    The window and the cells' volumes are multiplied in for the coordinates in `weighted`.
    """
    axes = kernel.grid.axes
    places = itertools.product(*([axis.count // 2] if axis.group.period else range(axis.count) for axis in axes))
    positions, window = kernel.positions()
    return [_seen_from(place, kernel, factor, term, network, weighted, positions, window) for place in places]


def _seen_from(
    place: tuple[int, ...],
    kernel: "GroupKernel",
    factor: Factor,
    term: Term,
    network: KernelNetwork | None,
    weighted: set,
    positions: Tensor,
    window: Tensor,
) -> Float[Tensor, "*axes u"]:
    filtering = kernel.prefilter if term.spatial else None
    rows, shape = kernel.filtered_rows(factor, place) if filtering else kernel.coordinates(factor, positions, place)
    units = network.hidden(rows) if network and network.in_features else rows.new_ones(len(rows), 1)
    units = units.reshape(*shape, -1)
    if filtering:
        spread = filtering.spread(positions[place], kernel.lattice)
        units = filtered(spread, units * kernel.lattice_window[:, None])
        units = units.reshape(*(1,) * len(place), *units.shape) if len(shape) == 1 else units
    # Axes are (h of every part, k) for a spatial factor and (h of the parts it sees) for another.
    axes = {part: part if term.spatial else n for n, part in enumerate(term.parts)}
    if not term.spatial:
        for part, axis in axes.items():
            units = units.index_select(axis, getattr(kernel, f"index{part}")[place[part]])
    for part in sorted(weighted - {"x"}):
        row = kernel.relatives[part].weight[place[part]].to(kernel.points)
        if part in axes:
            units = units * row.reshape([-1 if n == axes[part] else 1 for n in range(units.ndim)])
        else:
            units = row.reshape(-1, *(1,) * units.ndim) * units
    if "x" in weighted:
        row = window[place]
        units = units * row[:, None] if term.spatial else units.unsqueeze(-2) * row[:, None]
    if term.spatial or "x" in weighted:
        units = units.unflatten(-2, (kernel.kernel_size,) * kernel.grid.space)
    return units
