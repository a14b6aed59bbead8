"""Networks that are drawn badly, and precisions in which points are not."""

import copy
import itertools

import pytest
import torch

import sepgconv as sg
from sepgconv.kernels import KernelNetwork
from sepgconv.kernels._networks import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [1, 2, 4, 8])
def test_narrow_networks_have_finite_weights(activation: str, hidden: int) -> None:
    """With ReLU all units of a layer may be zero on the whole support, and with half the width in the shortcut."""
    config = sg.KernelConfig(hidden=hidden, activation=activation)
    for seed in range(4):
        torch.manual_seed(seed)
        block = sg.ResidualBlock(2, 3, 3, grid=sg.se2(4, sampling="fixed"), kernel=config)
        weights = torch.cat([weight.flatten() for weight in block.parameters()])
        assert weights.isfinite().all()
        assert weights.abs().max() < 200
        for conv in (block.conv1, block.conv2, block.shortcut):
            assert 0.02 < conv(torch.randn(4, 2, 4, 9, 9)).std() < 20


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
@pytest.mark.parametrize("hidden", [1, 2, 8])
def test_narrow_networks_of_filtered_kernels(activation: str, hidden: int) -> None:
    """These are evaluated in a smaller ball, in which all units may be zero that are not so outside of it."""
    config = sg.KernelConfig(hidden=hidden, layers=1, activation=activation, cutoff=0.4)
    for seed, factorisation in itertools.product(range(4), ("separable", "gseparable", "nonseparable")):
        torch.manual_seed(seed)
        conv = sg.GroupConv(3, 2, 5, grid=sg.sim2(4, 2), factorisation=factorisation, kernel=config)
        weights = torch.cat([weight.flatten() for weight in conv.parameters()])
        assert weights.isfinite().all()
        assert 0.02 < conv(torch.randn(4, 3, 8, 9, 9)).std() < 20


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
def test_a_layer_that_passes_nothing_is_turned_round(activation: str) -> None:
    network = KernelNetwork(1, 2, sg.KernelConfig(hidden=3, layers=1, activation=activation))
    network.reset_features()
    network.hidden[2].weight.data.abs_().neg_()
    network.hidden[2].bias.data.abs_().neg_()
    points = torch.linspace(-1, 1, 20)[:, None]
    assert network.hidden(points).max() <= 0
    before = copy.deepcopy(network.hidden[2])
    network.wake(points)
    assert network.hidden(points).max() > 0.1
    assert torch.equal(network.hidden[2].weight, -before.weight)
    again = copy.deepcopy(network.state_dict())
    network.wake(points)
    assert all(torch.equal(value, again[name]) for name, value in network.state_dict().items())


def test_sines_stay_as_they_are_drawn() -> None:
    network = KernelNetwork(2, 2, sg.KernelConfig(hidden=1, layers=3, omega0=1e-3))
    network.reset_features()
    before = copy.deepcopy(network.state_dict())
    network.wake(torch.zeros(5, 2))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_layers_are_built_in_the_default_precision(dtype: torch.dtype) -> None:
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        block = sg.ResidualBlock(2, 3, 3, grid=sg.sim2(2, 2), kernel=sg.KernelConfig(hidden=8))
        result = block(torch.randn(2, 2, 4, 7, 7))
    finally:
        torch.set_default_dtype(usual)
    assert {weight.dtype for weight in block.parameters()} == {result.dtype} == {dtype}
    assert result.isfinite().all()
