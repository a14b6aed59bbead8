"""Kernels that are kept in eval are never stale: other weights, modes, precisions, threads."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from kept_helpers import KERNEL, fresh, net
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.kernels import GroupKernel


def _doubled(module: nn.Module, value: torch.Tensor | tuple) -> torch.Tensor | None:
    """What a hook makes of a linear layer's output, or of its inputs."""
    if not isinstance(module, nn.Linear):
        return None
    return 2 * (value[0] if isinstance(value, tuple) else value)


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
@torch.no_grad()
def test_global_hooks_take_part_in_sampling(register) -> None:
    model, x = net(), torch.randn(2, 1, 6, 6)
    before = model(x)
    handle = register(lambda module, *values: _doubled(module, values[-1]))
    try:
        found, expected = model(x), fresh(model, x)
    finally:
        handle.remove()
    assert not torch.allclose(found, before)
    assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(model(x), before)


@torch.no_grad()
def test_what_is_written_while_a_kernel_is_sampled_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, sample = net(), torch.randn(2, 1, 6, 6), GroupKernel.forward

    def disturbed(kernel: GroupKernel) -> list[torch.Tensor]:
        values = [value.clone() for value in sample(kernel)]
        for parameter in kernel.parameters():
            parameter.data.mul_(1.1)  # as another thread would, that takes averages
        return values

    with monkeypatch.context() as patch:
        patch.setattr(GroupKernel, "forward", disturbed)
        model(x)
    assert_close(model(x), fresh(model, x), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_nothing_is_kept_under_a_mode() -> None:
    """A fake kernel was compared at address zero."""
    model, x = net(), torch.randn(2, 1, 6, 6)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(x)
    for layer in (model[0], model[1].conv1):
        assert layer._kept is None
    assert_close(model(x), fresh(model, x), atol=1e-5, rtol=1e-4)


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


def in_threads(check: Callable[[int], None], sizes: Sequence[int], times: int) -> None:
    """A check without gradients, so many times in a thread for each size, all at once; what goes wrong is raised."""

    def repeat(n: int) -> None:
        with torch.no_grad():
            for _ in range(times):
                check(n)

    with ThreadPoolExecutor(len(sizes)) as threads:
        list(threads.map(repeat, sizes))


def test_threads_serve_batches_of_any_size() -> None:
    model = net()
    batches = {n: torch.randn(n, 1, 6, 6) for n in (1, 16)}
    with torch.no_grad():
        expected = {n: model(x) for n, x in batches.items()}

    def serve(n: int) -> None:
        model[1].conv1._kept = None
        assert torch.equal(model(batches[n]), expected[n])

    in_threads(serve, (1, 16, 1, 16), 60)


class Slow(sg.GroupConv):
    """Between what it writes down and what it reads next, other threads have their turn."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        time.sleep(1e-3)


@pytest.mark.parametrize(("channels", "size", "rotations", "side"), [(4, 5, 8, 5), (8, 1, 4, 9)])
def test_threads_that_want_different_plans(channels: int, size: int, rotations: int, side: int) -> None:
    """Layers for which one image and 64 may be convolved in different ways."""
    layer = Slow(channels, channels, size, grid=sg.se2(rotations), kernel=KERNEL).eval()
    batches = {n: torch.randn(n, channels, rotations, side, side) for n in (1, 64)}
    with torch.no_grad():
        expected = {n: layer(x) for n, x in batches.items()}
    in_threads(
        lambda n: assert_close(layer(batches[n]), expected[n], atol=1e-4, rtol=1e-4), sizes=(1, 64, 1, 64), times=20
    )


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
