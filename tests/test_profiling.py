import copy

import pytest
import torch
from torch import nn

import sepgconv as sg

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def rows(model: nn.Module, *shape: int) -> dict[str, object]:
    return {layer.name: layer for layer in sg.profile(model, torch.randn(*shape), repeats=1).layers}


@pytest.mark.parametrize(
    ("layer", "shape", "count"),
    [
        (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 8, 6), 2 * 8 * 6 * 5 * 3 * 9),
        (nn.Conv2d(4, 8, 3, stride=2, groups=2), (1, 4, 9, 9), 4 * 4 * 8 * 2 * 9),
        (nn.Conv1d(2, 3, 5), (1, 2, 9), 5 * 3 * 2 * 5),
        (nn.ConvTranspose2d(3, 5, 2, stride=2), (2, 3, 4, 4), 2 * 4 * 4 * 3 * 5 * 4),
        (nn.Linear(7, 4), (3, 2, 7), 3 * 2 * 7 * 4),
        (nn.ReLU(), (3, 2), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_multiply_adds_of_stock_layers(layer: nn.Module, shape, count) -> None:
    assert rows(layer, *shape)[""].multiply_adds == count


def test_multiply_adds_of_group_convolutions_by_hand() -> None:
    """Batch 2, 6×6 pixels, 3 to 5 channels, 4 rotations, kernel size 3."""
    grid = sg.se2(4)
    options = {"grid": grid, "kernel": KERNEL}
    lifted = sg.profile(sg.LiftingConv(3, 5, 3, **options), torch.randn(2, 3, 6, 6))
    assert lifted.multiply_adds == 2 * 36 * (4 * 5) * 3 * 9
    x = torch.randn(2, 3, 4, 6, 6)
    whole = sg.GroupConv(3, 5, 3, factorisation="nonseparable", execution="dense", **options)
    assert sg.profile(whole, x).multiply_adds == 2 * 36 * (4 * 5) * (4 * 3) * 9
    dense = sg.GroupConv(3, 5, 3, execution="dense", **options)
    assert sg.profile(dense, x).multiply_adds == 2 * 36 * (4 * 5) * (4 * 3) * 9


@pytest.mark.parametrize(
    ("options", "pixels"),
    [({}, 36), ({"padding": "valid"}, 16), ({"stride": 2, "padding": "valid"}, 9)],
    ids=["same", "valid", "stride"],
)
def test_a_separable_convolution_mixes_on_the_input_and_convolves_to_the_output(options, pixels) -> None:
    size = 7 if "stride" in options else 6
    layer = sg.GroupConv(3, 5, 3, grid=sg.se2(4), kernel=KERNEL, execution="structured", **options)
    measured = sg.profile(layer, torch.randn(2, 3, 4, size, size))
    mixing = layer.plan.multiply_adds() - 4 * 5 * 9  # k_X convolves every channel of every element by itself
    assert mixing > 0
    assert measured.multiply_adds == 2 * (size**2 * mixing + pixels * 4 * 5 * 9)


def test_mixing_over_rotations_is_at_most_dense() -> None:
    layer = sg.GroupConv(3, 5, 3, grid=sg.se2(4), kernel=KERNEL, execution="structured")
    total = sg.profile(layer, torch.randn(1, 3, 4, 6, 6)).multiply_adds
    assert total <= 36 * ((4 * 5) * (4 * 3) + 4 * 5 * 9)


def test_a_whole_model() -> None:
    model = sg.models.resnet(sg.se2(8), kernel=sg.KernelConfig(layers=1), width=0.5)
    profile = sg.profile(model, torch.randn(2, 1, 28, 28), repeats=1)
    names = [name for name, _ in model.named_modules()]
    assert profile.parameters == sum(p.numel() for p in model.parameters())
    assert sum(layer.parameters for layer in profile.layers) == profile.parameters
    assert all(layer.name in names for layer in profile.layers)
    found = {layer.name: layer for layer in profile.layers}
    assert found["0"].shape == (2, 16, 8, 28, 28)
    assert found["0"].activations == 2 * 16 * 8 * 28 * 28 * 4
    assert found["0"].execution == "dense"
    assert found["3.conv1"].execution == "structured"
    assert found["19"].multiply_adds == 2 * 256 * 10
    assert found["3.shortcut"].activations == 0  # the identity keeps nothing new
    assert profile.multiply_adds == sum(layer.multiply_adds or 0 for layer in profile.layers)
    assert all(layer.seconds > 0 for layer in profile.layers)
    assert profile.seconds > 0


def test_it_prints_as_a_table_of_a_hundred_columns() -> None:
    model = sg.models.resnet(sg.sim2(4, 4), factorisation="h_separable", width=0.25, kernel=KERNEL)
    text = str(sg.profile(model, torch.randn(2, 1, 28, 28), repeats=1))
    assert max(map(len, text.splitlines())) <= 100
    for word in ("layer", "parameters", "mult-adds", "execution", "activations", "time", "total", "7.shortcut", "ms"):
        assert word in text
    assert f"{sum(p.numel() for p in model.parameters()):,}" in text
    assert "…" not in text


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = sg.models.resnet(sg.se2(4), width=0.1, kernel=KERNEL).train()
    model(torch.randn(2, 1, 28, 28))  # moves the grid
    model.train(training)
    model[19].eval()
    before = copy.deepcopy(model)
    modes = [module.training for module in model.modules()]
    state, buffers = torch.get_rng_state(), list(model.buffers())
    sg.profile(model, torch.ones(2, 1, 28, 28))
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(a is b and torch.equal(a, c) for a, b, c in zip(model.buffers(), buffers, before.buffers(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_hooks_are_removed_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.raises(RuntimeError):
        sg.profile(model, torch.randn(2, 4))
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        sg.profile(model, torch.randn(2, 3), repeats=0)


class Twice(nn.Module):
    """A layer that runs twice, a parameter of its own, a layer with another inside, and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.inner = nn.Sequential(nn.Tanh(), self.linear)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(*[self.inner(self.linear(x))] * 3)[0]


def test_any_module() -> None:
    model = Twice()
    profile = sg.profile(model, torch.randn(3, 4))
    found = {layer.name: layer for layer in profile.layers}
    assert set(found) == {"linear", "attention", "inner.0"}
    assert found["linear"].multiply_adds == 2 * 3 * 4 * 4
    assert found["attention"].multiply_adds is None
    assert profile.parameters == sum(p.numel() for p in model.parameters())
    assert str(profile)


def test_a_compiled_model_is_profiled_by_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    model.compile(backend="eager")
    assert [layer.name for layer in sg.profile(model, torch.randn(2, 3)).layers] == ["0", "1"]
