"""Kernels that are kept in eval are never stale, whatever was changed and however."""

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.kernels import GroupKernel

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def net(**options) -> nn.Sequential:
    grid = sg.se2(4)
    return nn.Sequential(
        sg.LiftingConv(1, 2, 3, grid=grid, kernel=KERNEL, **options),
        sg.ResidualBlock(2, 3, 3, grid=grid, kernel=KERNEL),
        sg.GroupPool("max"),
    ).eval()


def fresh(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """With gradients nothing is kept."""
    with torch.enable_grad():
        return model(x).detach()


def last(model: nn.Sequential) -> nn.Linear:
    return model[1].conv1.kernel.networks[0].out


def scale_through_data(model: nn.Sequential) -> None:
    last(model).weight.data.mul_(3)


def average_by_hand(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.data.lerp_(torch.ones_like(parameter), 0.3)


def prune_weights(model: nn.Sequential) -> None:
    prune.random_unstructured(last(model), "weight", amount=0.5)


def change_mask(model: nn.Sequential) -> None:
    prune.identity(last(model), "weight")
    with torch.no_grad():
        model(torch.ones(1, 1, 5, 5))
    last(model).weight_mask.zero_()


def change_frequency(model: nn.Sequential) -> None:
    model[1].conv1.kernel.networks[0].hidden[1].omega0 = 3.0


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def parametrise(model: nn.Sequential) -> None:
    parametrize.register_parametrization(last(model), "weight", Twice())


def hook(model: nn.Sequential) -> None:
    last(model).register_forward_hook(lambda module, inputs, output: 2 * output)


def change_window(model: nn.Sequential) -> None:
    model[1].conv1.kernel.points.mul_(0.5)


def swap_storage(model: nn.Sequential) -> None:
    last(model).weight.data = torch.randn_like(last(model).weight)


def change_running_statistics(model: nn.Sequential) -> None:
    model[1].norm1.running_var.data.mul_(4)


def fused_step(model: nn.Sequential) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        model(torch.ones(1, 1, 5, 5)).sum().backward()
    model(torch.ones(1, 1, 5, 5))  # kept after the last pass with gradients
    optimiser.step()


CHANGES = [
    scale_through_data,
    average_by_hand,
    prune_weights,
    change_mask,
    change_frequency,
    parametrise,
    hook,
    change_window,
    swap_storage,
    change_running_statistics,
    fused_step,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@torch.no_grad()
def test_a_change_is_seen(change) -> None:
    model, x = net(), torch.randn(2, 1, 6, 6)
    before = model(x)
    change(model)
    after = model(x)
    assert not torch.allclose(after, before)
    assert_close(after, fresh(model, x), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_nothing_is_sampled_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, count, sample = net(), torch.randn(2, 1, 6, 6), [], GroupKernel.forward
    monkeypatch.setattr(GroupKernel, "forward", lambda kernel: count.append(1) or sample(kernel))
    expected = model(x)
    assert len(count) == 4
    for batch in (1, 2, 5):  # no plan depends on the batch
        model(torch.randn(batch, 1, 6, 6))
    assert torch.equal(model(x), expected)
    assert len(count) == 4
    model.train()(x)
    model.eval()(x)
    assert len(count) == 12


@torch.no_grad()
def test_functional_calls_with_many_weights() -> None:
    """Tensors that are freed and made again at the same place are told apart."""
    model, x = net(), torch.randn(2, 1, 6, 6)
    names = [name for name, _ in model.named_parameters()]
    for seed in range(6):
        torch.manual_seed(seed)
        weights = {name: p + 0.1 * torch.randn_like(p) for name, p in model.named_parameters()}
        found = torch.func.functional_call(model, weights, x)
        with torch.enable_grad():
            expected = torch.func.functional_call(model, {n: weights[n].requires_grad_() for n in names}, x)
        assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)
        del weights


@torch.no_grad()
def test_functional_calls_with_one_weight_after_the_other() -> None:
    """All at one place in memory, as an allocator gives it that has just got it back."""
    layer, x = sg.GroupConv(2, 2, 3, grid=sg.se2(4), kernel=KERNEL).eval(), torch.randn(1, 2, 4, 5, 5)
    name, twin = "kernel.networks.0.out.weight", sg.GroupConv(2, 2, 3, grid=sg.se2(4), kernel=KERNEL)
    twin.load_state_dict(layer.state_dict())
    place = np.empty(layer.get_parameter(name).shape, np.float32)
    for factor in range(1, 4):
        np.copyto(place, layer.get_parameter(name).numpy() * factor)
        found = torch.func.functional_call(layer, {name: torch.from_numpy(place)}, (x,))
        twin.get_parameter(name).copy_(layer.get_parameter(name) * factor)
        assert_close(found, fresh(twin, x), atol=1e-5, rtol=1e-4)


def test_a_model_built_in_inference_mode_and_then_loaded() -> None:
    with torch.inference_mode():
        model = net()
        x = torch.randn(2, 1, 6, 6)
        model(x)
        other = net()
        model.load_state_dict(other.state_dict())
        found = model(x)
    with torch.no_grad():
        assert torch.equal(found, other(x))


def test_autocast_leaves_nothing_behind() -> None:
    model, x = net(), torch.randn(2, 1, 6, 6)
    with torch.no_grad():
        expected = model(x)
        fresh_model = net()
        fresh_model.load_state_dict(model.state_dict())
        with torch.autocast("cpu", torch.bfloat16):
            low = fresh_model(x)
        assert low.dtype == torch.bfloat16
        assert torch.equal(fresh_model(x), expected)
        layer, x = circle(12).eval(), torch.randn(2, 16, 12, 5, 5)
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        assert_close(layer(x), fresh(layer, x), atol=1e-5, rtol=1e-4)


def circle(rotations: int) -> sg.GroupConv:
    """A convolution that is taken in waves over the circle."""
    grid = sg.se2(rotations, sampling="fixed")
    return sg.GroupConv(16, 16, 3, grid=grid, kernel=KERNEL, execution="structured")


def test_threads_serve_batches_of_any_size() -> None:
    model, errors = net(), []
    batches = {n: torch.randn(n, 1, 6, 6) for n in (1, 16)}
    with torch.no_grad():
        expected = {n: model(x) for n, x in batches.items()}

    def serve(n: int) -> None:
        with torch.no_grad():
            for _ in range(60):
                try:
                    model[1].conv1._kept = None
                    assert torch.equal(model(batches[n]), expected[n])
                except Exception as error:
                    errors.append(error)

    threads = [threading.Thread(target=serve, args=(n,)) for n in (1, 16, 1, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


class Slow(sg.GroupConv):
    """Between what it writes down and what it reads next, other threads have their turn."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        time.sleep(1e-3)


@pytest.mark.parametrize(("channels", "size", "rotations", "side"), [(4, 5, 8, 5), (8, 1, 4, 9)])
def test_threads_that_want_different_plans(channels: int, size: int, rotations: int, side: int) -> None:
    """Layers for which one image and 64 may be convolved in different ways."""
    layer, errors = Slow(channels, channels, size, grid=sg.se2(rotations), kernel=KERNEL).eval(), []
    batches = {n: torch.randn(n, channels, rotations, side, side) for n in (1, 64)}
    with torch.no_grad():
        expected = {n: layer(x) for n, x in batches.items()}

    def serve(n: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                try:
                    assert_close(layer(batches[n]), expected[n], atol=1e-4, rtol=1e-4)
                except Exception as error:
                    errors.append(error)

    threads = [threading.Thread(target=serve, args=(n,)) for n in (1, 64, 1, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("training", [False, True])
def test_inference_and_fake_tensors_poison_nothing(training: bool) -> None:
    """No table is kept for the whole process."""
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    with torch.inference_mode():
        net().double()(x)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        assert net_outside.train(training)(mode.from_tensor(x)).shape == (2, 3)
    model = net().double().train()
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    expected = net_outside.eval()(x)
    assert type(expected) is torch.Tensor


def test_tables_of_waves_belong_to_their_layer() -> None:
    """The first layer with so many rotations runs in inference mode, or on fake tensors."""
    x = torch.randn(2, 16, 9, 5, 5, dtype=torch.float64)
    with torch.inference_mode():
        circle(9).double().eval()(x)
    circle(9).double()(x).sum().backward()
    layer, x, mode = circle(11), torch.randn(2, 16, 11, 5, 5), FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        layer(mode.from_tensor(x))
    for other in (layer, circle(11)):
        assert type(other(x)) is torch.Tensor


net_outside = net().double()
