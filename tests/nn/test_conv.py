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


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd.*got 4"),
        ({"kernel_size": 0}, "kernel_size must be a whole number of at least 1, got 0"),
        ({"kernel_size": 3.0}, "kernel_size must be a whole number"),
        ({"in_channels": 0}, "in_channels must be a whole number of at least 1, got 0"),
        ({"out_channels": -2}, "out_channels must be a whole number of at least 1, got -2"),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"padding": "full"}, "padding must be 'same', 'valid' or a number of pixels, got 'full'"),
        ({"padding": -1}, "padding must be a whole number of at least 0, got -1"),
        ({"execution": "fast"}, "execution must be one of auto, dense, structured; got 'fast'"),
        ({"factorisation": "tucker"}, "factorisation must be one of nonseparable, separable"),
        ({"factorisation": "h_separable"}, "needs two coordinates of H .* a product of rotations and scales"),
        ({"out_grid": sg.scale2(4)}, "must sample one group.*SO2.*Dilation"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    chosen = {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "grid": sg.se2(4), **settings}
    with pytest.raises(ValueError, match=message):
        sg.GroupConv(**chosen)


def test_grids_must_agree_on_the_largest_scale() -> None:
    with pytest.raises(ValueError, match="one max_scale, got 2 and 3"):
        sg.GroupConv(1, 1, 3, grid=sg.scale2(3, 2.0), out_grid=sg.scale2(3, 3.0))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(1, 2, 4, 7), r"takes \(b, c, h, y, x\), got 4 axes: \(1, 2, 4, 7\)"),
        (torch.randn(1, 3, 4, 7, 7), r"has in_channels=2, got 3: \(1, 3, 4, 7, 7\)"),
        (torch.randn(1, 2, 8, 7, 7), "the h axis has length 8 but the grid has 4 elements"),
        (torch.ones(1, 2, 4, 7, 7, dtype=torch.long), "floating-point input, got torch.int64"),
        (torch.ones(1, 2, 4, 7, 7, dtype=torch.complex64), "floating-point input, got torch.complex64"),
        (
            torch.ones(1, 2, 4, 7, 7, dtype=torch.float64),
            "input is torch.float64 but the layer's parameters are torch.float32",
        ),
    ],
)
def test_bad_input(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sg.GroupConv(2, 3, 3, grid=sg.se2(4))(x)


def test_bad_images() -> None:
    lift = sg.LiftingConv(3, 4, 7, grid=sg.se2(4), padding="valid")
    with pytest.raises(ValueError, match=r"takes \(b, c, y, x\), got 3 axes: \(3, 28, 28\)"):
        lift(torch.randn(3, 28, 28))
    with pytest.raises(ValueError, match="in_channels=3, got 1"):
        lift(torch.randn(1, 1, 28, 28))
    with pytest.raises(ValueError, match=r"kernel_size=7 and padding=0 does not fit an input of shape \(1, 3, 5, 5\)"):
        lift(torch.randn(1, 3, 5, 5))
    with pytest.raises(ValueError, match=r"takes \(b, c, x\)"):
        sg.LiftingConv(1, 1, 3, grid=sg.scale1(2))(torch.randn(1, 1, 5, 5))


# --- equivariance lost, and said --------------------------------------------------------------------------------------


def test_a_stride_that_samples_off_centre_is_reported_once() -> None:
    conv = sg.GroupConv(2, 3, 3, grid=sg.se2(4), stride=2).eval()
    with pytest.warns(
        sg.EquivarianceWarning, match=r"GroupConv\(2, 3, kernel_size=3.*stride=2.*size 8.*sees 7 or 9"
    ) as caught:
        conv(torch.randn(1, 2, 4, 8, 8))
        conv(torch.randn(1, 2, 4, 8, 8))
    assert len(caught) == 1


def test_the_warning_is_right() -> None:
    """Where it is silent, quarter turns commute; where it speaks, they do not; its advice works."""
    import warnings

    for stride, padding, size in (
        (2, "same", 8),
        (2, "same", 9),
        (2, "valid", 9),
        (3, "same", 9),
        (3, 1, 10),
        (2, 0, 8),
    ):
        grid = sg.se2(4)
        lift = sg.LiftingConv(1, 3, 5, grid=grid, stride=stride, padding=padding).double().eval()
        x = torch.randn(1, 1, size, size, dtype=torch.float64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = sg.testing.equivariance_error(lift, x, grid=grid)
        error = max(entry.error for entry in report.exact)
        assert (error > 1e-3) == bool(caught), (stride, padding, size, error)
        if not caught:
            assert error < 1e-12


def test_plain_cnns_may_stride_as_they_like() -> None:
    sg.GroupConv(1, 1, 3, grid=sg.translation2(), stride=2)(torch.randn(1, 1, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sg.LiftingConv(1, 2, 3, grid=sg.se2(4))(torch.randn(1, 1, 8, 8, 8)),
            r"takes \(b, c, y, x\), got 5 axes.*acts on R\^2; \(z, y, x\) is for se3, scale3, translation3",
        ),
        (
            lambda: sg.LiftingConv(1, 2, 3, grid=sg.se3())(torch.randn(1, 1, 8, 8)),
            r"takes \(b, c, z, y, x\), got 4 axes.*acts on R\^3; \(y, x\) is for se2, e2, scale2, sim2, translation2",
        ),
        (
            lambda: sg.GroupConv(32, 64, 15, grid=sg.se3(), factorisation="nonseparable"),
            r"kernel_size=15 in 3 dimensions .* would take 17.6 GB to sample, more than 4 GB; kernels of up to 9 fit",
        ),
        (lambda: sg.models.resnet(sg.se3(), kernel_size=4), r"kernel_size must be odd.*got 4"),
        (
            lambda: sg.ResidualBlock(2, 2, 3, grid=sg.se2(4), out_grid=sg.e2(4)),
            r"must sample one group, got SO2\(space=2\) and O2\(space=2\)",
        ),
        (
            lambda: sg.GroupConv(2, 2, 3, grid=sg.se3(), factorisation="h_separable"),
            r"'h_separable' needs two coordinates of H to tell apart.*got a grid with rotation",
        ),
    ],
)
def test_groups_and_inputs_that_do_not_go_together(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
