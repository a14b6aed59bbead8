import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import sepgconv as sg
from sepgconv.kernels import GroupKernel


def small_net(grid: sg.Grid) -> nn.Sequential:
    return nn.Sequential(
        sg.LiftingConv(1, 4, 5, grid=grid),
        sg.BatchNorm(4),
        nn.ReLU(),
        sg.ResidualBlock(4, 6, 3, grid=grid),
        sg.SpatialPool("max", 2),
        sg.GroupPool("max"),
        nn.Linear(6, 3),
    )


@pytest.mark.parametrize("grid", [sg.scale1(3), sg.se2(4), sg.sim2(4, 2), sg.translation2(), sg.Grid(3)], ids=str)
def test_shapes_in_one_two_and_three_dimensions(grid: sg.Grid) -> None:
    space = (9, 8, 7)[: grid.space]
    features = sg.LiftingConv(2, 3, 3, grid=grid)(torch.randn(2, 2, *space))
    assert features.shape == (2, 3, grid.size, *space)
    for factorisation in ("separable", "nonseparable"):
        conv = sg.GroupConv(3, 5, 3, grid=grid, factorisation=factorisation, padding="valid")
        assert conv(features).shape == (2, 5, grid.size, *(n - 2 for n in space))


def test_rotations_and_scales_of_volumes() -> None:
    """Nothing assumes the plane: SO(2) about the z axis times dilations of R³."""
    from sepgconv.grids._factories import scales_of

    rotations = sg.Axis(sg.groups.SO2(3), 4, sampling="random")
    grid = sg.Grid(3, (rotations, scales_of(3, 2, 1.5, "fixed", 1)))
    net = nn.Sequential(sg.LiftingConv(1, 2, 3, grid=grid), sg.GroupConv(2, 2, 3, grid=grid)).double().eval()
    grid.resample()
    report = sg.testing.equivariance_error(net, torch.randn(1, 1, 5, 6, 6, dtype=torch.float64), grid=grid, trim=0)
    assert len(report.exact) == 3
    assert max(entry.error for entry in report.exact) < 1e-12


def test_bias_is_a_parameter_and_is_added() -> None:
    conv = sg.GroupConv(2, 3, 3, grid=sg.se2(4), bias=True).eval()
    x = torch.randn(1, 2, 4, 5, 5)
    before = conv(x)
    with torch.no_grad():
        conv.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert_close(conv(x), before + torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1, 1))
    assert "bias" in dict(conv.named_parameters())


@pytest.mark.parametrize("make", [lambda: sg.se2(4), lambda: sg.sim2(2, 2), sg.scale2, sg.translation2])
def test_gradcheck(make) -> None:
    grid = make()
    lift = sg.LiftingConv(1, 2, 3, grid=grid, kernel=sg.KernelConfig(hidden=4, layers=1), bias=True).double().eval()
    conv = sg.GroupConv(2, 2, 3, grid=grid, kernel=sg.KernelConfig(hidden=4, layers=1)).double().eval()
    params = [*lift.parameters(), *conv.parameters()]
    x = torch.randn(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        names = [f"0.{n}" for n, _ in lift.named_parameters()] + [f"1.{n}" for n, _ in conv.named_parameters()]
        return torch.func.functional_call(nn.Sequential(lift, conv), dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *params), fast_mode=True)


@pytest.mark.parametrize("training", [False, True])
def test_compile_without_a_graph_break_equals_eager(training: bool) -> None:
    """A whole net in training, three layers in eval."""
    torch._dynamo.reset()
    grid = sg.sim2(4, 2)
    layers = (sg.LiftingConv(1, 4, 5, grid=grid), sg.BatchNorm(4), sg.GroupConv(4, 6, 3, grid=grid))
    nets = {False: lambda: nn.Sequential(*layers), True: lambda: small_net(sg.sim2(4, 2))}
    for make, shape in (
        (lambda: sg.LiftingConv(1, 2, 3, grid=sg.se2(4)), (1, 1, 6, 6)),
        (nets[training], (4, 1, 8, 8)),
    ):
        module = make().double().train(training)  # in which rounding says nothing
        x = torch.randn(*shape, dtype=torch.float64)
        compiled = torch.compile(copy.deepcopy(module), fullgraph=True, dynamic=True, backend="aot_eager")
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        found = compiled(x)
        assert_close(found, expected, atol=1e-11, rtol=1e-9)
        found.square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(compiled.parameters(), module.parameters(), strict=True):
            assert (a.grad - b.grad).abs().max() <= 1e-10 * b.grad.abs().max().clamp_min(1)


@pytest.mark.parametrize("training", [False, True])
def test_inductor_compiles_a_layer_and_a_net(training: bool) -> None:
    """The default backend. It draws random numbers of its own, so that the grids here are fixed."""
    layer = sg.GroupConv(2, 3, 3, grid=sg.se2(4, sampling="fixed")), torch.randn(1, 2, 4, 6, 6)
    net = small_net(sg.sim2(4, 2, sampling="fixed")), torch.randn(4, 1, 8, 8)
    module, x = net if training else layer
    torch._dynamo.reset()
    module.train(training)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), module(x), atol=1e-5, rtol=1e-4)


def test_copies_and_pickles_give_the_same_output() -> None:
    net = small_net(sg.sim2(4, 2)).eval()
    x = torch.randn(2, 1, 10, 10)
    with torch.no_grad():
        expected = net(x)  # fills the kernel caches
        for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert torch.equal(twin(x), expected)
            grids = {id(m) for m in twin.modules() if isinstance(m, sg.Grid)}
            assert len(grids) == 1  # layers still share their grid
            assert grids != {id(m) for m in net.modules() if isinstance(m, sg.Grid)}


def test_state_dict_round_trip_and_keys() -> None:
    net, twin = small_net(sg.sim2(4, 2)), small_net(sg.sim2(4, 2))
    keys = list(net.state_dict())
    net.train()(torch.randn(2, 1, 10, 10))
    assert list(net.state_dict()) == keys
    net.eval()
    assert list(net.state_dict()) == keys
    x = torch.randn(2, 1, 10, 10)
    twin.load_state_dict(net.state_dict())
    with torch.no_grad():
        assert torch.equal(twin.eval()(x), net(x))
    sg.set_resolution(net, rotations=8, scales=3)
    assert list(net.state_dict()) == keys
    fine = small_net(sg.sim2(8, 2))
    fine.load_state_dict(net.state_dict())
    sg.set_resolution(net, scales=2)
    with torch.no_grad():
        assert_close(fine.eval()(x), net(x))


def test_set_resolution_refines_what_the_network_computes() -> None:
    """Sums over H are integrals: with smooth kernels a finer grid changes little, and ever less."""
    grid = sg.se2(8)
    config = sg.KernelConfig(omega0=1.0)
    net = nn.Sequential(
        sg.LiftingConv(1, 4, 7, grid=grid, kernel=config),
        nn.ReLU(),
        sg.GroupConv(4, 4, 7, grid=grid, kernel=config),
        sg.GroupPool("mean"),
    ).eval()
    x = torch.randn(2, 1, 15, 15)
    outputs = []
    for rotations in (8, 16, 32, 128):
        sg.set_resolution(net, rotations=rotations)
        with torch.no_grad():
            outputs.append(net(x))
    errors = [((y - outputs[-1]).norm() / outputs[-1].norm()).item() for y in outputs[:-1]]
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 0.2


def test_kernels_are_sampled_once_in_eval_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net(sg.se2(4))
    x = torch.randn(1, 1, 8, 8)
    counts, sample = {"n": 0}, GroupKernel.forward
    monkeypatch.setattr(GroupKernel, "forward", lambda kernel: counts.update(n=counts["n"] + 1) or sample(kernel))

    def samplings() -> int:
        counts["n"] = 0
        with torch.no_grad():
            net(x)
        return counts["n"]

    assert samplings() == 4
    assert samplings() == 4  # training: every time
    net.eval()
    assert samplings() == 4
    assert samplings() == 0
    with torch.no_grad():
        net[0].kernel.networks[0].out.weight.mul_(2)
    assert samplings() == 1
    net.load_state_dict(net.state_dict())
    assert samplings() == 0  # the same weights
    sg.set_resolution(net, rotations=8)
    assert samplings() == 4
    counts["n"] = 0
    net(x)  # with gradients the graph is needed
    assert counts["n"] == 4
    net.double()
    x = x.double()
    assert samplings() == 4
    with torch.inference_mode():
        expected = net(x)
    with torch.no_grad():
        assert torch.equal(net(x), expected)


def test_an_optimiser_step_invalidates_the_cache() -> None:
    conv = sg.GroupConv(2, 2, 3, grid=sg.se2(4)).eval()
    x = torch.randn(1, 2, 4, 5, 5)
    with torch.no_grad():
        before = conv(x)
    optimiser = torch.optim.AdamW(conv.parameters(), lr=0.1)
    conv(x).square().sum().backward()
    optimiser.step()
    with torch.no_grad():
        after = conv(x)
    assert not torch.allclose(before, after)
    assert_close(after, conv(x).detach())


@pytest.mark.parametrize("factorisation", ["separable", "nonseparable"])
def test_building_the_papers_stack_takes_little_work(factorisation: str) -> None:
    """Drawing white kernels solves small systems: 0.39 and 0.29 GFLOP, a tenth of a second."""
    with FlopCounterMode(display=False) as counter:
        sg.models.resnet(sg.se2(8), factorisation=factorisation)
    assert 0 < counter.get_total_flops() < 6e8


def test_autocast_keeps_coordinates_precise() -> None:
    net = small_net(sg.se2(8)).eval()
    x = torch.randn(2, 1, 10, 10)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = net(x)
        turned = net(torch.rot90(x, 1, (-2, -1)))
    assert low.dtype == torch.bfloat16
    with torch.no_grad():
        assert_close(low.float(), net(x), atol=0.15, rtol=0.1)
    assert_close(turned.float(), low.float(), atol=0.05, rtol=0.05)


def test_an_empty_batch_is_fine() -> None:
    assert small_net(sg.se2(4)).eval()(torch.randn(0, 1, 8, 8)).shape == (0, 3)
