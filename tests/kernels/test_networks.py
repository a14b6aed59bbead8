import math

import pytest
import torch

import sepgconv as sg
from sepgconv.kernels import KernelNetwork
from sepgconv.kernels._networks import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_shapes_and_parameters(activation: str) -> None:
    config = sg.KernelConfig(hidden=16, layers=2, activation=activation)
    network = KernelNetwork(3, 5, config)
    assert network(torch.zeros(7, 3)).shape == (7, 5)
    expected = (3 * 16 + 16) + 2 * (16 * 16 + 16) + (16 * 5 + 5)
    assert sum(p.numel() for p in network.parameters()) == expected


def test_a_network_without_coordinates_is_a_parameter() -> None:
    network = KernelNetwork(0, 6, sg.KernelConfig())
    assert sum(p.numel() for p in network.parameters()) == 6
    network.reset_out(2.0)
    assert torch.equal(network(torch.zeros(3, 0)), network.value.expand(3, 6))


def test_siren_formula() -> None:
    """sin(ω₀·(W x + b)) in every hidden layer, then a linear one."""
    config = sg.KernelConfig(hidden=8, layers=1, omega0=7.0)
    network = KernelNetwork(2, 3, config)
    x = torch.randn(5, 2)
    first, second = network.hidden[0], network.hidden[2]
    hidden = torch.sin(7.0 * (x @ first.weight.T + first.bias))
    hidden = torch.sin(7.0 * (hidden @ second.weight.T + second.bias))
    expected = hidden @ network.out.weight.T + network.out.bias
    torch.testing.assert_close(network(x), expected)


def test_omega0_controls_smoothness() -> None:
    line = torch.linspace(-1, 1, 400)[:, None]
    roughness = []
    for omega0 in (1.0, 3.0, 10.0, 30.0):
        torch.manual_seed(0)
        network = KernelNetwork(1, 32, sg.KernelConfig(omega0=omega0))
        network.reset_features()
        network.reset_out(1.0)
        values = network(line)
        roughness.append((values.diff(dim=0).square().mean() / values.var()).item())
    assert roughness == sorted(roughness)
    assert roughness[-1] > 10 * roughness[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"layers": -1}, "layers must be at least 0, got -1"),
        ({"omega0": 0.0}, "omega0 must be a positive number"),
        ({"omega0": math.nan}, "omega0 must be a positive number"),
        ({"activation": "tanh"}, "activation must be one of sine, relu, leaky_relu, silu; got 'tanh'"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sg.KernelConfig(**settings)


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        sg.KernelConfig().hidden = 3  # pyright: ignore[reportAttributeAccessIssue]
