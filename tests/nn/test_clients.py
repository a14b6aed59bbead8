"""What others do with modules: hooks, subclasses, other norms, meta devices, export, autocast."""

import copy

import pytest
import torch
from client_helpers import KERNEL, block, features, model
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close

import sepgconv as sg


class Louder(sg.GroupConv):
    def forward(self, features: Tensor) -> Tensor:
        return 10 * super().forward(features)


class Shifted(sg.BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def by_hand(module: sg.ResidualBlock, x: Tensor) -> Tensor:
    hidden = torch.relu(module.norm1(module.conv1(x)))
    hidden = torch.relu(module.norm2(module.conv2(hidden)))
    return torch.relu(hidden + module.shortcut(x))


# --- hooks, subclasses, patches --------------------------------------------------------------------------------------


def subclassed_conv(module: sg.ResidualBlock) -> None:
    module.conv1.__class__ = Louder


def subclassed_norm(module: sg.ResidualBlock) -> None:
    module.norm2.__class__ = Shifted


def patched(module: sg.ResidualBlock) -> None:
    forward = module.conv2.forward
    module.conv2.forward = lambda x: forward(x).square()  # which no norm undoes


def offloaded(module: sg.ResidualBlock) -> None:
    """As accelerate does it: the weights come when the layer is called, and go after it."""
    kept = {name: p.detach().clone() for name, p in module.norm1.named_parameters()}
    forward = module.norm1.forward

    def with_weights(x: Tensor) -> Tensor:
        module.norm1.weight = nn.Parameter(kept["weight"] * 3)
        return forward(x)

    module.norm1.weight = nn.Parameter(torch.full((2,), torch.nan))
    module.norm1.forward = with_weights


def hooked(module: sg.ResidualBlock) -> None:
    module.norm1.register_forward_hook(lambda m, i, o: o + 1)


def compiled(module: sg.ResidualBlock) -> None:
    module.conv1.compile(backend="eager")


@pytest.mark.parametrize("change", [subclassed_conv, subclassed_norm, patched, offloaded, hooked, compiled])
@pytest.mark.parametrize("mode", ["training", "eval", "eval without gradients"])
def test_a_block_does_what_its_layers_do(change, mode: str) -> None:
    module, x = block().train(mode == "training"), features()
    plain = module(x)
    change(module)
    with torch.set_grad_enabled(mode != "eval without gradients"):
        found = module(x)
        assert_close(found, by_hand(module, x), atol=1e-5, rtol=1e-4)
    if change is not compiled:
        assert not torch.allclose(found, plain)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("change", [lambda module: None, subclassed_conv], ids=["as it is", "subclassed"])
def test_a_hook_that_does_nothing_changes_nothing(change, training: bool) -> None:
    module, x = block().train(training), features()
    change(module)
    with torch.no_grad():
        expected = module(x)
        module.conv1.register_forward_hook(lambda *_: None)
        assert_close(module(x), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_global_hooks_fire_for_every_layer(training: bool) -> None:
    module, seen = block().train(training), []
    handle = register_module_forward_hook(lambda m, i, o: seen.append(m))
    try:
        with torch.no_grad():
            module(features())
    finally:
        handle.remove()
    assert {module.conv1, module.norm1, module.conv2, module.norm2, module.shortcut} <= set(seen)


NORMS = {
    "GroupNorm": lambda c: nn.GroupNorm(1, c),
    "Identity": lambda c: nn.Identity(),
    "Sequential": lambda c: nn.Sequential(sg.BatchNorm(c), nn.Identity()),
    "BatchNorm3d": nn.BatchNorm3d,
    "InstanceNorm3d": nn.InstanceNorm3d,
}


@pytest.mark.parametrize("norm", NORMS)
def test_any_norm_trains_and_evaluates(norm: str) -> None:
    module, x = block(), features()
    module.norm1, module.norm2 = NORMS[norm](2), NORMS[norm](3)
    for training in (True, False):
        module.train(training)
        module(x).sum().backward()
        with torch.no_grad():
            assert_close(module(x), by_hand(module, x), atol=1e-5, rtol=1e-4)


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, 0]


@pytest.mark.parametrize(
    ("name", "replacement", "message"),
    [
        ("norm1", Wrong(), r"Wrong stands for a norm and must keep \(3, 2, 4, 6, 6\), got \(3, 2, 6, 6\)"),
        ("conv2", Wrong(), r"Wrong stands for a group convolution.*it made \(3, 2, 6, 6\) of \(3, 2, 4, 6, 6\)"),
        ("conv2", nn.Identity(), r"BatchNorm has 3 channels, got 2"),
        ("shortcut", nn.Identity(), r"cannot add Identity's \(3, 2, 4, 6, 6\) to GroupConv's \(3, 3, 4, 6, 6\)"),
    ],
)
def test_what_does_not_fit_into_a_block_is_named(name: str, replacement: nn.Module, message: str) -> None:
    module = block()
    setattr(module, name, replacement)
    for training in (True, False):
        with pytest.raises(ValueError, match=message):
            module.train(training)(features())


def test_plans_say_what_is_wrong() -> None:
    layer = sg.GroupConv(2, 3, 3, grid=sg.se2(4))
    with pytest.raises(RuntimeError, match="GroupConv has no plan before it is built"):
        _ = object.__new__(sg.GroupConv).plan
    layer.execution = "fast"
    with pytest.raises(
        ValueError, match=r"execution must be one of auto, dense, structured; got 'fast' in GroupConv\(2"
    ):
        _ = layer.plan


# --- odd sizes, types and devices ------------------------------------------------------------------------------------


def test_one_output_channel_in_float64_goes_backward() -> None:
    for channels in ((2, 1), (1, 1), (1, 2)):
        for scales, execution in ((3, "auto"), (5, "structured")):  # with five, bands over the scales pay
            grid = sg.sim2(4, scales)
            conv = sg.GroupConv(*channels, 3, grid=grid, factorisation="h_separable", execution=execution).double()
            conv(torch.randn(2, channels[0], grid.size, 5, 5, dtype=torch.float64)).square().sum().backward()


@pytest.mark.parametrize("factorisation", sg.FACTORISATIONS)
@pytest.mark.parametrize("execution", ["dense", "structured"])
def test_an_empty_batch_in_every_plan(factorisation: str, execution: str) -> None:
    for size in (1, 3):
        conv = sg.GroupConv(2, 3, size, grid=sg.sim2(4, 3), factorisation=factorisation, execution=execution)
        x = torch.randn(0, 2, 12, 5, 5, requires_grad=True)
        y = conv(x)
        assert y.shape == (0, 3, 12, 5, 5)
        y.sum().backward()
    for grid in (sg.scale2(4), sg.se2(8)):
        assert sg.GroupConv(16, 16, 3, grid=grid)(torch.randn(0, 16, grid.size, 5, 5)).shape[0] == 0


@pytest.mark.parametrize("name", sg.models.list())
def test_models_are_built_on_the_meta_device_and_loaded(name: str) -> None:
    source = model(name).eval()
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        expected = source(x)
    with torch.device("meta"):
        empty, assigned = model(name), model(name)
    assert all(t.is_meta for t in [*empty.parameters(), *empty.buffers()])
    empty.to_empty(device="cpu").load_state_dict(source.state_dict())
    assigned.load_state_dict(source.state_dict(), assign=True)
    with torch.no_grad():
        for built in (empty.eval(), assigned.eval()):
            assert torch.equal(built(x), expected)
    for built in (empty, assigned):
        built.train()(x).sum().backward()


def test_a_default_of_float64_or_bfloat16() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            layer = sg.GroupConv(2, 3, 3, grid=sg.se2(4), kernel=KERNEL)
            assert layer(torch.randn(1, 2, 4, 5, 5)).isfinite().all()
            assert {p.dtype for p in layer.parameters()} == {dtype}
        finally:
            torch.set_default_dtype(torch.float32)


def test_replicas_without_parameters() -> None:
    """nn.DataParallel's replicas hold tensors where modules hold parameters."""
    net = model().eval()
    replica = net._replicate_for_data_parallel()
    assert replica is not net
    layer = sg.GroupConv(2, 3, 3, grid=sg.se2(4), kernel=KERNEL)
    twin, x = copy.deepcopy(layer), torch.randn(1, 2, 4, 5, 5)
    for module in twin.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                setattr(module, name, parameter.detach().clone())
    assert not list(twin.parameters())
    assert_close(twin(x), layer(x))
    assert_close(twin.eval()(x), layer.eval()(x))


def test_what_cannot_be_done_says_what_can() -> None:
    net = model().eval()
    with pytest.raises(ValueError, match=r"cannot be traced by torch.jit.*use torch.export"):
        torch.jit.trace(net, torch.randn(1, 1, 28, 28))
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(net), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ValueError, match=r"cannot be quantised.*torch.autocast"):
        quantised(torch.randn(1, 1, 28, 28))


# --- export, compile, autocast ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sg.models.list())
def test_export_with_any_batch_and_size(name: str) -> None:
    net = model(name).eval()
    batch, side = torch.export.Dim("batch"), torch.export.Dim("side", min=7)
    shapes = ({0: batch, 2: 4 * side, 3: 4 * side},)
    program = torch.export.export(net, (torch.randn(2, 1, 28, 28),), dynamic_shapes=shapes)
    assert not any("sepgconv" in str(node.target) for node in program.graph.nodes)
    for shape in ((1, 28), (5, 28), (3, 36)):
        x = torch.randn(shape[0], 1, shape[1], shape[1])
        with torch.no_grad():
            assert_close(program.module()(x), net(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_close_as_for_a_plain_network(dtype: torch.dtype) -> None:
    """Relative error in the maximum norm against float32, beside that of the same network on the translation group."""
    errors, quarter, x = {}, 0.0, torch.randn(4, 1, 28, 28)
    for name, grid in {"plain": sg.translation2(), "SE(2)": sg.se2(4)}.items():
        torch.manual_seed(0)
        net = model(grid=grid, width=0.25).eval()
        with torch.no_grad():
            exact = net(x)
            with torch.autocast("cpu", dtype):
                low, turned = net(x).float(), net(torch.rot90(x, 1, (-2, -1))).float()
        errors[name] = ((low - exact).abs().max() / exact.abs().max()).item()
        if name == "SE(2)":
            quarter = ((turned - low).abs().max() / low.abs().max()).item()
    print(f"\n{dtype}: {errors}, quarter turn {quarter:.1e}")
    assert errors["SE(2)"] <= 3 * max(errors["plain"], torch.finfo(dtype).eps)
    assert quarter <= 8 * torch.finfo(dtype).eps
