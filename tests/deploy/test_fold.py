"""A folded network is made of stock layers and computes the same numbers, for every model, group and factorisation."""

import copy
import itertools

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.deploy import _layers
from sepgconv.deploy._layers import Waves
from sepgconv.deploy._stock import CONVS

SMALL = sg.KernelConfig(hidden=8, layers=1)
GRIDS = {
    "se2(4)": sg.se2(4),
    "se2(5)": sg.se2(5),
    "e2(4)": sg.e2(4),
    "scale2(3)": sg.scale2(3),
    "sim2(4, 3)": sg.sim2(4, 3),
    "translation2()": sg.translation2(),
}
EVERY = [
    case
    for case in itertools.product(sg.models.list(), GRIDS, sg.FACTORISATIONS)
    if case[2] != "h_separable" or ("sim2" in case[1] and case[0] != "shallow")  # a pyramid takes the scales away
]


def lived_in(model: nn.Module) -> nn.Module:
    """A model whose norms have statistics and weights, as after training."""
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(-0.5, 1.5)
            part.bias.data.normal_(0, 0.2)
        if isinstance(part, sg.GroupConv | sg.LiftingConv) and part.bias is not None:
            part.bias.data.normal_()
    return model.eval()


@torch.no_grad()
def difference(model: nn.Module, folded: nn.Module, x: torch.Tensor) -> float:
    expected = model(x)
    found = folded(x)
    assert found.shape == expected.shape
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(("name", "grid", "factorisation"), EVERY)
def test_every_model_folds(name, grid, factorisation):
    settings = {"in_channels": 1, "factorisation": factorisation, "kernel": SMALL, "width": 0.1}
    model = lived_in(sg.models.create(name, GRIDS[grid], **settings))
    x = torch.randn(2, 1, 16, 16)
    for runtime in ("torch", "onnx"):
        folded = sg.fold(model, runtime=runtime)
        assert difference(model, folded, x) < 1e-5
        assert not [m for m in folded.modules() if type(m).__module__.startswith(("sepgconv.nn", "sepgconv.kernels"))]


class Twice(nn.Module):
    """A module of somebody else's that calls one layer by two names."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.first, self.again = conv, conv

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.again(self.first(features))


def test_a_layer_that_is_used_twice_folds_twice():
    """One ReLU, norm, pool or convolution in several places of a network, as people write them."""
    grid = sg.se2(4)
    relu, norm, conv = nn.ReLU(), sg.BatchNorm(4), sg.GroupConv(4, 4, 3, grid=grid, kernel=SMALL)
    lifting = sg.LiftingConv(1, 4, 3, grid=grid, kernel=SMALL)
    model = lived_in(nn.Sequential(lifting, norm, relu, conv, norm, relu, conv, relu, Twice(conv)))
    assert difference(model, sg.fold(model), torch.randn(2, 1, 8, 8)) < 1e-5
    flat = lived_in(nn.Sequential(sg.GroupConv(4, 4, 3, grid=grid, kernel=SMALL), relu, conv, relu))
    x = torch.randn(2, 4, 4, 8, 8)
    with torch.no_grad():
        assert (sg.fold(flat)(x) >= 0).all()


@pytest.mark.parametrize("grid", [sg.se2(8), sg.se2(7), sg.sim2(8, 2)], ids=str)
def test_waves_are_the_circulant_product(grid):
    """The Fourier basis, which small networks do not choose by themselves, odd circles included."""
    conv = lived_in(sg.GroupConv(24, 40, 3, grid=grid, kernel=SMALL, bias=True))
    folded = sg.fold(conv, runtime="onnx")
    assert any(isinstance(part, Waves) for part in folded.modules())
    assert difference(conv, folded, torch.randn(2, 24, grid.size, 6, 5)) < 1e-5
    shortcut = lived_in(sg.GroupConv(24, 40, 1, grid=grid, kernel=SMALL, bias=True))
    assert difference(shortcut, sg.fold(shortcut, runtime="onnx"), torch.randn(2, 24, grid.size, 6, 5)) < 1e-5


@pytest.mark.parametrize("factorisation", [name for name in sg.FACTORISATIONS if name != "h_separable"])
@pytest.mark.parametrize(("size", "stride"), [(3, 2), (1, 2), (5, 1)])
def test_layers_fold_by_themselves(factorisation, size, stride):
    """Between grids of different sizes, with a stride, a bias and no padding, in double precision."""
    source, target = sg.se2(4), sg.se2(6)
    settings = {"grid": source, "out_grid": target, "stride": stride, "padding": "valid", "bias": True}
    conv = sg.GroupConv(3, 4, size, factorisation=factorisation, kernel=SMALL, **settings).double()
    folded = sg.fold(lived_in(conv))
    assert difference(conv, folded, torch.randn(2, 3, 4, 9, 7, dtype=torch.float64)) < 1e-12
    assert not any(parameter.requires_grad for parameter in folded.parameters())


@pytest.mark.parametrize("factorisation", ["nonseparable", "separable", "dseparable"])
def test_three_dimensions(factorisation):
    grid = sg.se3(12)
    settings = {"grid": grid, "kernel": SMALL}
    block = sg.ResidualBlock(2, 3, 3, factorisation=factorisation, **settings)
    net = lived_in(nn.Sequential(sg.LiftingConv(1, 2, 3, **settings), nn.ReLU(), block, sg.GroupPool("max")))
    folded = sg.fold(net)
    assert difference(net, folded, torch.randn(2, 1, 5, 5, 5)) < 1e-5
    assert any(isinstance(part, nn.Conv3d) for part in folded.modules())


def test_anti_aliased_networks_keep_their_filters():
    model = lived_in(sg.models.resnet(sg.se2(4), kernel=SMALL, width=0.1, antialias=True))
    assert difference(model, sg.fold(model), torch.randn(2, 1, 28, 28)) < 1e-5
    peaks = nn.Sequential(model[0], sg.GroupPool("peak", grid=model[0].grid))
    assert difference(peaks, sg.fold(peaks), torch.randn(2, 1, 9, 9)) < 1e-5


def test_one_dimension():
    grid = sg.scale1(3, 2.0)
    net = nn.Sequential(sg.LiftingConv(2, 4, 5, grid=grid, kernel=SMALL), sg.BatchNorm(4), nn.ReLU(), sg.SpatialPool())
    folded = sg.fold(lived_in(net))
    assert difference(net, folded, torch.randn(2, 2, 20)) < 1e-5
    assert any(isinstance(part, nn.Conv1d) for part in folded.modules())


def test_norms_are_part_of_the_convolutions():
    """Two are left: those that follow a block's ReLU."""
    folded = sg.fold(sg.models.resnet(sg.se2(4), kernel=SMALL, width=0.1))
    assert sum(isinstance(part, nn.BatchNorm2d) for part in folded.modules()) == 2
    assert sum(isinstance(part, CONVS) for part in folded.modules()) == 1 + 2 * 5 + 1


def test_a_model_in_training_folds_at_rest_and_stays_as_it_is():
    model = sg.models.resnet(sg.se2(4), kernel=SMALL, width=0.1).train()
    model(torch.randn(4, 1, 16, 16))  # draws the grid's shift
    before = copy.deepcopy(model.state_dict())
    shift = model[0].grid.offset.clone()
    folded = sg.fold(model)
    assert model.training
    assert shift.abs().max() > 0
    assert torch.equal(model[0].grid.offset, shift)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert difference(model.eval(), folded, torch.randn(2, 1, 16, 16)) < 1e-5


class Own(nn.Module):
    """Somebody's network: layers of ours and its own between them, called in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        grid = sg.se2(4)
        self.lift = nn.Sequential(sg.LiftingConv(1, 4, 5, grid=grid, kernel=SMALL), sg.BatchNorm(4))
        self.convs = nn.ModuleList(sg.GroupConv(4, 4, 3, grid=grid, kernel=SMALL) for _ in range(2))
        self.pool = sg.GroupPool("mean", space=False)
        self.gate = nn.PReLU(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.gate(self.lift(x))
        for conv in self.convs:
            features = features + torch.sin(conv(features))
        return self.pool(features)


def test_a_module_of_ones_own_keeps_its_forward():
    model = lived_in(Own())
    assert difference(model, sg.fold(model), torch.randn(2, 1, 9, 9)) < 1e-5
    mixed = lived_in(nn.Sequential(model.lift, nn.PReLU(4), sg.SpatialPool("mean", 3), nn.Dropout(), model.convs[0]))
    assert difference(mixed, sg.fold(mixed), torch.randn(2, 1, 9, 9)) < 1e-5


def test_a_block_with_another_norm_is_kept():
    block = lived_in(sg.ResidualBlock(2, 4, 3, grid=sg.se2(4), kernel=SMALL))
    block.norm1 = nn.InstanceNorm3d(2)
    assert difference(block, sg.fold(block), torch.randn(2, 2, 4, 9, 9)) < 1e-5


def test_large_batches_are_run_in_pieces_and_hooks_see_them_whole(monkeypatch):
    monkeypatch.setattr(_layers, "PIECE", 32 * 16 * 16 * 3)
    model = lived_in(sg.models.resnet(sg.se2(4), kernel=SMALL, width=0.25))
    folded, x = sg.fold(model), torch.randn(8, 1, 16, 16)
    linear, seen = nn.functional.linear, []
    with torch.no_grad():
        expected = model(x)
        with monkeypatch.context() as patch:
            patch.setattr(nn.functional, "linear", lambda x, *rest: seen.append(len(x)) or linear(x, *rest))
            found = folded(x)
    assert seen == [3, 3, 3, 3, 2, 2]  # two such layers
    assert ((found - expected).abs().max() / expected.abs().max()).item() < 1e-5
    seen.clear()
    handle = folded[0].register_forward_hook(lambda _module, _inputs, output: seen.append(len(output)))
    folded(x)
    handle.remove()
    assert seen == [8]
    exported = torch.export.export(folded, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert torch.allclose(exported.module()(x[:5]), expected[:5], atol=1e-5)


class OverBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_a_module_that_looks_at_the_whole_batch_gets_it(monkeypatch):
    monkeypatch.setattr(_layers, "PIECE", 1)
    lift = sg.LiftingConv(1, 2, 3, grid=sg.se2(4), kernel=SMALL)
    for last in (OverBatch(), nn.BatchNorm1d(2, track_running_stats=False)):
        model = nn.Sequential(lift, sg.GroupPool("max"), last).eval()
        assert difference(model, sg.fold(model), torch.randn(4, 1, 9, 9)) < 1e-5


class Loud(sg.GroupConv):
    def forward(self, features):
        return 2 * super().forward(features)


def test_what_does_not_fold_is_named():
    grid = sg.se2(4)
    lift = sg.LiftingConv(1, 2, 3, grid=grid, kernel=SMALL)
    with pytest.raises(ValueError, match=r"Loud '1' does not fold: its forward is not that of GroupConv"):
        sg.fold(nn.Sequential(lift, Loud(2, 2, 3, grid=grid, kernel=SMALL)))
    net = nn.Sequential(lift, sg.ResidualBlock(2, 2, 3, grid=grid, kernel=SMALL))
    net[1].conv2.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"GroupConv '1.conv2' does not fold: it has hooks"):
        sg.fold(net)
    with pytest.raises(ValueError, match="runtime must be one of torch, onnx; got 'tpu'"):
        sg.fold(lift, runtime="tpu")
    norm = nn.Sequential(copy.deepcopy(lift), sg.BatchNorm(2))
    norm[1].running_var.fill_(-1)
    with pytest.raises(ValueError, match=r"LiftingConv '0' does not fold: its kernel or norm is not finite"):
        sg.fold(norm)
