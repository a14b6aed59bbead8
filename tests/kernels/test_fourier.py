"""Kernels in a basis with a cut-off: how much lies above it, measured afresh, and that nothing else changes."""

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.groups import Coordinate
from sepgconv.kernels import PARAMETRISATIONS, Domain, FourierBasis, KernelNetwork, Parametrisation
from sepgconv.testing import assert_equivariant


def energy_above(values: torch.Tensor, per_pixel: int, cutoff: float) -> float:
    """Share of a function's energy above a frequency, in cycles per pixel; the function is sampled on a cube."""
    space = values.ndim
    power = torch.fft.fftn(values.double(), s=[3 * n for n in values.shape]).abs().square()
    lines = [torch.fft.fftfreq(n, 1 / per_pixel, dtype=torch.float64) for n in power.shape]
    frequency = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).norm(dim=-1)
    assert frequency.ndim == space
    return (power[frequency > cutoff].sum() / power.sum()).item()


@pytest.mark.parametrize(
    ("grid", "size", "cutoff"),
    [
        (sg.se2(4), 7, 0.4),
        (sg.e2(4), 5, 0.45),
        (sg.scale2(3, 1.5), 11, 0.4),
        (sg.se3(12), 5, 0.5),
        (sg.scale1(3, 1.5), 9, 0.3),
        (sg.translation2(), 9, 0.25),
    ],
    ids=str,
)
def test_at_most_a_hundredth_of_the_energy_lies_above_the_cut_off(grid: sg.Grid, size: int, cutoff: float) -> None:
    """With the window, at the smallest scale, on a finer lattice than the basis was made on, whatever the weights."""
    config = sg.KernelConfig(parametrisation="fourier", cutoff=cutoff)
    kernel = sg.LiftingConv(1, 5, size, grid=grid, kernel=config).double().kernel
    fine = {1: 11, 2: 7, 3: 4}[grid.space]
    count = int(2 * kernel.radius * fine) + 3
    line = (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) / fine / kernel.radius
    points = torch.stack(torch.meshgrid(*[line] * grid.space, indexing="ij"), -1)
    network = kernel.networks[0]
    for adversary in (False, True):
        if adversary:
            network.out.weight.data = torch.eye(len(network.mixing), dtype=torch.float64)
            assert network.out.bias is None
        with torch.no_grad():
            values = network(points.flatten(0, -2)) * kernel.window(points.flatten(0, -2).norm(dim=-1))[:, None]
        shares = [energy_above(v.reshape(points.shape[:-1]), fine, cutoff) for v in values.t()]
        assert max(shares) <= 0.01, shares


def test_a_network_has_more_above_it() -> None:
    """What the basis is for: the kernels of a SIREN as it is drawn."""
    kernel = sg.LiftingConv(1, 5, 7, grid=sg.se2(4)).double().kernel
    line = (torch.arange(59, dtype=torch.float64) - 29) / 7 / kernel.radius
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).flatten(0, 1)
    with torch.no_grad():
        values = kernel.networks[0](points) * kernel.window(points.norm(dim=-1))[:, None]
    assert min(energy_above(v.reshape(59, 59), 7, 0.4) for v in values.t()) > 0.01


@pytest.mark.parametrize("factorisation", sg.FACTORISATIONS)
def test_layers_are_exact_and_of_unit_variance_in_it(factorisation: str) -> None:
    config = sg.KernelConfig(parametrisation="fourier", cutoff=0.45)
    grid = sg.e2(4)
    net = nn.Sequential(
        sg.LiftingConv(2, 8, 5, grid=grid, kernel=config),
        sg.GroupConv(8, 8, 5, grid=grid, kernel=config, factorisation=factorisation),
        sg.GroupConv(8, 8, 1, grid=grid, kernel=config, factorisation=factorisation),
    ).double()
    grid.resample()
    x = torch.randn(2, 2, 11, 11, dtype=torch.float64)
    assert 0.2 < net.eval()(x).std() < 5
    assert_equivariant(net, x, grid=grid)


def test_every_parametrisation_serves_every_group_and_says_its_rates() -> None:
    for name in PARAMETRISATIONS:
        config = sg.KernelConfig(hidden=8, layers=1, parametrisation=name, cutoff=0.5)
        for grid in (sg.se2(4), sg.e2(4), sg.sim2(4, 3, 1.2), sg.se3(12)):
            conv = sg.GroupConv(2, 3, 5, grid=grid, kernel=config, factorisation="nonseparable")
            x = torch.randn(1, 2, grid.size, *(5,) * grid.space)
            assert conv(x).isfinite().all()
            network = conv.kernel.networks[0]
            assert isinstance(network, Parametrisation)
            expected = set(network.hidden.parameters()) if isinstance(network, KernelNetwork) else set()
            assert set(network.slower()) == expected


def test_harmonics_along_a_circle_close() -> None:
    basis = FourierBasis(Domain(0, (Coordinate("rotation", 1, 3.14, 6.28),)), 2, sg.KernelConfig())
    ends = basis.features(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
    torch.testing.assert_close(ends[0], ends[1])


def test_a_parametrisation_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Polynomial(Parametrisation):
        """1, x and x² of every coordinate."""

        def __init__(self, domain: Domain, out_features: int, config: sg.KernelConfig) -> None:
            super().__init__(domain.columns, out_features)
            self.read_out(2 * domain.columns + 1)

        def features(self, coordinates: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.ones_like(coordinates[:, :1]), coordinates, coordinates.square()], -1)

    monkeypatch.setitem(PARAMETRISATIONS, "polynomial", Polynomial)
    grid = sg.e2(4)
    conv = sg.GroupConv(2, 2, 3, grid=grid, kernel=sg.KernelConfig(parametrisation="polynomial")).double()
    assert_equivariant(conv, torch.randn(2, 2, 8, 5, 5, dtype=torch.float64), grid=grid)


def test_wrong_settings_are_named() -> None:
    for settings, message in (
        ({"parametrisation": "wavelet"}, "parametrisation must be one of network, fourier; got 'wavelet'"),
        ({"cutoff": 0.0}, "cutoff must be positive and at most 0.5 cycles per pixel"),
    ):
        with pytest.raises(ValueError, match=message):
            sg.KernelConfig(**settings)
    with pytest.raises(ValueError, match=r"cutoff=0.3 cycles per pixel is too low .* at least [0-9.]+ %"):
        sg.LiftingConv(1, 1, 3, grid=sg.se2(4), kernel=sg.KernelConfig(parametrisation="fourier", cutoff=0.3))
