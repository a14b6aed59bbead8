"""How kernel networks are drawn: nearly white kernels, and unit variance through a layer for every factorisation."""

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.grids import Axis
from sepgconv.groups import OneParameter
from sepgconv.kernels._factors import Factor, Term
from sepgconv.kernels._parametrisation import Parametrisation
from sepgconv.kernels._prefilter import filtered

if TYPE_CHECKING:
    from sepgconv.kernels._kernel import GroupKernel

POINTS = 1024
"""Points of a kernel's support on which its hidden units are compared."""


def power_spectrum(
    functions: Float[Tensor, "*axes c"], bases: Mapping[int, Float[Tensor, "n n"]] | None = None
) -> Float[Tensor, "frequencies c"]:
    """|F[a](ω)|² of functions on a grid, zero-padded to twice its length.

    Along an axis that is no line or circle a basis takes the place of waves.
    """
    values, bases = functions.double(), bases or {}
    for axis, basis in bases.items():
        values = torch.tensordot(basis.to(values), values.movedim(axis, 0), 1).movedim(0, axis) * len(basis) ** 0.5
    axes = [axis for axis in range(functions.ndim - 1) if axis not in bases]
    sizes = [2 * functions.shape[axis] if functions.shape[axis] > 1 else 1 for axis in axes]
    transform = torch.fft.fftn(values, s=sizes, dim=axes) if axes else values
    return transform.abs().square().reshape(-1, functions.shape[-1])


def smooth_basis(axis: Axis) -> Float[Tensor, "n n"]:
    """Functions on a sampled group from smooth to rough, one a row: on a circle they would be waves.

    The eigenvectors of a table that depends on h⁻¹h̃ only, by how far matrices are apart.
    """
    matrices = axis.group.matrix(axis.elements).flatten(1)
    return torch.linalg.eigh(torch.exp(-torch.cdist(matrices, matrices).square() / 2))[1].t()


@torch.no_grad()
def initialise(kernel: "GroupKernel") -> None:
    """Unit variance through the layer, at init and for every factorisation.

    Kernels are drawn nearly white (`whitening`). With independent last-layer weights a kernel's expected power spectrum
    over G is then S(ω) = Σ_u |F[a_u]|², a_u being its mixed hidden units; the spectra of factors multiply. White noise
    gains ∫S: so a lifting kernel is scaled. What is left of smoothness makes smooth features, whose spectrum after p
    layers is S^p, and those gain ∫S·S^p / ∫S^p. Group kernels are scaled for the p that keeps stacks of several
    layers steady; it grows with the dimension of G, since the more axes a spectrum has, the faster its peak takes over.
    """
    depth = 0.4 * (kernel.grid.space + kernel.grid.group.dimension) if kernel.source else 0
    pending = {"x", *(range(len(kernel.names)) if kernel.source else ())}
    before: dict[Term, list[Tensor]] = {}  # by what they vary along, the units of factors that are done
    for factor, term, network in zip(kernel.factors, kernel.terms, kernel.networks, strict=False):
        assert isinstance(network, Parametrisation)
        network.reset_features()
        network.wake(_support(kernel, factor, term))
        network.reset_out(1.0)
        weighted = {*term.parts, *(["x"] if term.spatial else [])} & pending
        pending -= weighted
        along = term._replace(channels="")
        others = before.get(along) if not term.spatial else None
        units = _seen(kernel, factor, term, network, weighted)
        mixed = units
        if network.in_features:
            mix = whitening(kernel, factor, network).to(kernel.points)
            network.out.weight.copy_(network.out.weight @ mix)
            mixed = [unit @ mix for unit in units]
        mixed = _products(mixed, others)
        bases = _bases(kernel, term, weighted)
        expected = _mean_spectrum(mixed, bases).sum(-1, keepdim=True)
        features = expected**depth / (expected**depth).mean()
        gain = (expected * features).mean()
        if factor.channels == "j" and network.in_features:
            # One function per channel: scaled by its own gain, unless that happens to be close to zero.
            drawn = _mean_spectrum(_products([unit @ network.out.weight.t() for unit in units], others), bases)
            drawn = drawn.unflatten(-1, (len(network.out.weight), -1)).sum(-1)
            own = (drawn * features).mean(0).clamp_min(0.1 * gain.item())
            network.out.weight.mul_(own.rsqrt().to(kernel.points)[:, None])
        else:
            network.scale_out(gain.rsqrt().item())
        if term.parts:
            before[along] = [unit * gain.rsqrt().item() * math.prod(unit.shape[:-1]) ** 0.5 for unit in mixed]
    # What no factor sees is constant there; it is made good in the first factor.
    nothing = Term((), False, "")
    rest = _mean_spectrum(_seen(kernel, Factor("", ""), nothing, None, pending), _bases(kernel, nothing, pending))
    gain = (rest ** (depth + 1)).mean() / (rest**depth).mean() * kernel.channels[0] * kernel.gain**2
    first = kernel.networks[0]
    assert isinstance(first, Parametrisation)
    first.scale_out(gain.rsqrt().item())
    _balance([network for network in kernel.networks if isinstance(network, Parametrisation)])


def _products(units: list[Tensor], others: list[Tensor] | None) -> list[Float[Tensor, "*axes c"]]:
    """All products of a factor's units with those of factors that vary along the same axes: spectra do not multiply.

    On O(2) the mirror and the angle of h⁻¹h̃ vary along one axis.
    """
    if others is None:
        return units
    return [(unit[..., None] * other[..., None, :]).flatten(-2) for unit, other in zip(units, others, strict=True)]


def _balance(networks: list[Parametrisation]) -> None:
    """Gives the weights of all factors the same size, their product unchanged.

    A layer is blind to how its size is shared out, but Adam moves all weights by the same step: it would hardly move
    the large ones, and shake the small ones.
    """
    sizes = [network.last.square().mean().sqrt().item() for network in networks]
    size = math.prod(sizes) ** (1 / len(sizes))
    for network, own in zip(networks, sizes, strict=True):
        network.scale_out(size / own)


def whitening(kernel: "GroupKernel", factor: Factor, network: Parametrisation) -> Float[Tensor, "u u"]:
    """The matrix that makes a network's hidden units nearly orthonormal on the kernel's support.

    Few sines of low frequency are almost the same function: independent weights would mostly draw multiples of their
    mean, and features would lose all but their lowest frequencies within a few layers. With B the units' inner products
    and β its largest eigenvalue, weights are multiplied by (B + λβ)^(−½): directions well above λ count alike, those
    below stay small, so that no kernel is made of differences between nearly equal units. λ = 10⁻ᵐ·(2k)⁻ᵈ for m
    dimensions of H and d of space: the more points a kernel is sampled on, the more functions are to be told apart.
    """
    seen = factor.coordinates.split()
    spatial = kernel.grid.space if "x" in seen else 0
    parts = [part for part in range(len(kernel.names)) if kernel.columns(part, seen)]
    axes = [(kernel.source or kernel.grid).axes[part] for part in parts]
    numbers = [axis.group.numbers for axis in axes]
    uniform = torch.quasirandom.SobolEngine(spatial + sum(numbers)).draw(POINTS, dtype=torch.float32)
    place, *others = uniform.to(kernel.points).split([spatial, *numbers], -1)
    columns = [place * 2 - 1]
    for part, axis, own in zip(parts, axes, others, strict=True):
        columns.append(axis.coordinates(axis.group.spread(own, axis.farthest))[:, kernel.columns(part, seen)])
    points = torch.cat(columns, -1)
    if kernel.kernel_size == 1:
        points[:, :spatial] = 0
    window = kernel.window(points[:, :spatial].norm(dim=-1))
    units = (network.features(points) * window[:, None]).double()
    values, vectors = torch.linalg.eigh(units.t() @ units)
    largest = values[-1].clamp_min(1e-12)  # of units that are zero at all of these points, too
    dimension = sum(axis.group.dimension for axis in axes)
    floor = largest / (10.0**dimension * (2.0 * kernel.kernel_size) ** spatial)
    return vectors * (values.clamp_min(0) + floor).rsqrt() @ vectors.t() * POINTS**0.5


def _mean_spectrum(
    functions: list[Float[Tensor, "*axes c"]], bases: Mapping[int, Tensor]
) -> Float[Tensor, "frequencies c"]:
    return torch.stack([power_spectrum(each, bases) for each in functions]).mean(0)


def _bases(kernel: "GroupKernel", term: Term, weighted: set) -> dict[int, Tensor]:
    """Bases for the axes of `_seen_from` that belong to parts which are no lines or circles."""
    if kernel.source is None:
        return {}
    added = sorted(weighted - {"x", *term.parts}, reverse=True)
    parts = [*added, *(range(len(kernel.names)) if term.spatial else term.parts)]
    axes = kernel.source.axes
    kept = {n: axes[part] for n, part in enumerate(parts) if not isinstance(axes[part].group, OneParameter)}
    return {n: smooth_basis(axis) for n, axis in kept.items() if not term.spatial or parts[n] in (*term.parts, *added)}


def _support(kernel: "GroupKernel", factor: Factor, term: Term) -> Float[Tensor, "rows n"]:
    """Where a factor's network is evaluated, without the taps outside of the window."""
    if term.spatial and kernel.prefilter:
        return kernel.filtered_rows(factor)[0]
    positions, window = kernel.positions()
    rows, shape = kernel.coordinates(factor, positions)
    if not term.spatial:
        return rows
    inside = (window > 0).reshape(*kernel.grid.shape, *(1,) * (len(shape) - window.ndim), -1)
    return rows[inside.expand(shape).flatten()]


def _seen(
    kernel: "GroupKernel", factor: Factor, term: Term, network: Parametrisation | None, weighted: set
) -> list[Float[Tensor, "*axes u"]]:
    """A factor's hidden units `(h…, y…, u)` as output elements see them: all scales, at one rotation.

    The window and the cells' volumes are multiplied in for the coordinates in `weighted`.
    """
    axes = kernel.grid.axes
    places = itertools.product(*([axis.size // 2] if axis.group.compact else range(axis.size) for axis in axes))
    positions, window = kernel.positions()
    return [_seen_from(place, kernel, factor, term, network, weighted, positions, window) for place in places]


def _seen_from(
    place: tuple[int, ...],
    kernel: "GroupKernel",
    factor: Factor,
    term: Term,
    network: Parametrisation | None,
    weighted: set,
    positions: Tensor,
    window: Tensor,
) -> Float[Tensor, "*axes u"]:
    filtering = kernel.prefilter if term.spatial else None
    rows, shape = kernel.filtered_rows(factor, place) if filtering else kernel.coordinates(factor, positions, place)
    units = network.features(rows) if network and network.in_features else rows.new_ones(len(rows), 1)
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
    for part in set(axes) - weighted:  # another factor has summed over it: this one counts on average
        units = units / units.shape[axes[part]] ** 0.5
    if "x" in weighted:
        row = window[place]
        units = units * row[:, None] if term.spatial else units.unsqueeze(-2) * row[:, None]
    if term.spatial or "x" in weighted:
        units = units.unflatten(-2, (kernel.kernel_size,) * kernel.grid.space)
    return units
