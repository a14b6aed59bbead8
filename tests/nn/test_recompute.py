"""Recomputed activations change nothing but memory and time."""

import copy
import multiprocessing
import os
import weakref

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.execution import plan
from sepgconv.execution.native import _library
from sepgconv.models._segments import Recomputed

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def block(recompute: bool, **options) -> sg.ResidualBlock:
    torch.manual_seed(0)
    return sg.ResidualBlock(2, 3, 3, grid=sg.se2(4), kernel=KERNEL, recompute=recompute, **options)


def assert_equal_steps(kept: nn.Module, again: nn.Module, x: torch.Tensor, steps: int = 3) -> None:
    """Bit for bit: outputs, gradients of weights and input, buffers, and the state of the random numbers."""
    assert list(kept.state_dict()) == list(again.state_dict())
    for _ in range(steps):
        seen = []
        for module in (kept, again):
            torch.manual_seed(7)
            module.zero_grad()
            image = x.clone().requires_grad_()
            output = module(image)
            output.square().mean().backward()
            gradients = [p.grad for p in module.parameters()]
            seen.append([output, image.grad, *gradients, *module.buffers(), torch.get_rng_state()])
        assert len(seen[0]) == len(seen[1])
        assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.fixture(params=["compiled", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled kernels, where they are, and without."""
    if request.param == "plain":
        monkeypatch.setattr(_library, "FOUND", False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("moved", [False, True])
def test_a_recomputed_block_gives_the_same_bits(training: bool, moved: bool) -> None:
    kept, again = (block(c, out_grid=sg.se2(4) if moved else None).train(training) for c in (False, True))
    assert_equal_steps(kept, again, torch.randn(2, 2, 4, 6, 6))
    if training:
        assert again.norm1.num_batches_tracked == 3


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", [name for name in sg.models.list() if name != "shallow"])
@pytest.mark.parametrize("grid", [sg.se2(4), sg.sim2(2, 2, scale_sampling="random")], ids=str)
def test_a_recomputed_model_gives_the_same_bits(name: str, grid: sg.Grid) -> None:
    """Random grids and dropout included; the names of the weights are the same."""
    models = []
    for recompute in (False, True):
        torch.manual_seed(0)
        settings = {"in_channels": 1, "width": 0.1, "kernel": KERNEL, "recompute": recompute}
        models.append(sg.models.create(name, copy.deepcopy(grid), **settings))
    assert any(isinstance(layer, nn.Dropout) for layer in models[0])
    assert_equal_steps(*models, torch.randn(3, 1, 28, 28), steps=2)


@pytest.mark.usefixtures("way")
def test_a_graph_that_is_kept_can_go_backward_again() -> None:
    """What is computed again is computed for each pass."""
    module, x = block(True), torch.randn(2, 2, 4, 6, 6, requires_grad=True)
    output = module(x).square().mean()
    wanted = [x, *module.parameters()]
    first = torch.autograd.grad(output, wanted, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(output, wanted), strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("way")
def test_what_a_hook_has_seen_is_not_written_over() -> None:
    module, seen = block(True), []
    module.conv2.register_forward_hook(lambda *args: seen.append(args[2]))
    module(torch.randn(2, 2, 4, 6, 6)).square().mean().backward()
    first, again = seen
    assert torch.equal(first, again)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["conv1", "norm1", "conv2", "norm2"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_that_a_hook_has_seen_are_not_written_over(
    name: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, seen = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4), kernel=KERNEL, recompute=recompute), []
    monkeypatch.setattr(plan, "LARGE", 0)
    monkeypatch.setattr(plan, "PIECE", 1)
    module.get_submodule(name).register_full_backward_hook(
        lambda _, inputs, outputs: seen.extend((t, t.clone()) for t in (*inputs, *outputs))
    )
    module(torch.randn(2, 2, 4, 6, 6, requires_grad=True)).square().mean().backward()
    assert len(seen) == 2
    assert all(torch.equal(now, then) for now, then in seen)


def test_a_second_forward_before_backward_does_not_move_the_first_ones_grid() -> None:
    """Each backward pass runs again on the shift that its forward pass has drawn."""
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(1)
        module = sg.models.resnet(sg.se2(4), width=0.1, kernel=KERNEL, recompute=recompute)
        module[18].p = 0.0
        torch.manual_seed(2)
        first, second = (module(torch.randn(2, 1, 28, 28)) for _ in range(2))
        first.square().mean().backward()
        second.square().mean().backward()
        gradients.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_grid_keeps_its_shift_through_the_backward_pass() -> None:
    out = sg.se2(4)
    module = block(True, out_grid=out)
    seen = []
    module.conv2.register_forward_hook(lambda *_: seen.append(out.offset.clone()))
    result = module(torch.randn(2, 2, 4, 6, 6))
    drawn, version = out.offset.clone(), out.offset._version
    result.square().mean().backward()
    assert len(seen) == 2  # forward, and again in backward
    assert seen[0] == seen[1] == drawn == out.offset != 0
    assert out.offset._version == version  # not written to a second time


def test_a_graph_can_be_used_twice() -> None:
    module = block(True)
    loss = module(torch.randn(2, 2, 4, 6, 6)).square().mean()
    first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert module.norm1.num_batches_tracked == 1


def test_a_recomputed_model_keeps_less(kept_bytes) -> None:
    x = torch.randn(4, 1, 28, 28)
    sizes = []
    for recompute in (False, True):
        module = sg.models.resnet(sg.se2(8), width=0.25, kernel=KERNEL, recompute=recompute)
        sizes.append(kept_bytes(lambda module=module: module(x)))
    assert sizes[1] < sizes[0] / 3
    block, lifted = module[3], 4 * 8 * 8 * 28 * 28 * 4
    assert kept_bytes(lambda: module[:4](x)) < 2.1 * lifted  # the first half and the result, not the lifted images
    handle = block.register_forward_hook(lambda *_: None)
    assert kept_bytes(lambda: module[:4](x)) > 2.9 * lifted  # which a hook must be shown
    handle.remove()


def test_what_is_computed_again_is_held_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, normalise = [], sg.BatchNorm.normalise

    def watched(self: sg.BatchNorm, features: torch.Tensor, **options) -> torch.Tensor:
        seen.append(weakref.ref(features.untyped_storage()))
        return normalise(self, features, **options)

    monkeypatch.setattr(sg.BatchNorm, "normalise", watched)
    result = block(recompute=True)(torch.randn(2, 2, 4, 6, 6, requires_grad=True))
    assert result.requires_grad
    assert [reference() for reference in seen] == [None, None]


def test_without_gradients_nothing_is_checkpointed() -> None:
    module = sg.models.resnet(sg.se2(4), width=0.1, kernel=KERNEL, recompute=True).eval()
    reference = sg.models.resnet(sg.se2(4), width=0.1, kernel=KERNEL).eval()
    reference.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.equal(module(torch.ones(2, 1, 28, 28)), reference(torch.ones(2, 1, 28, 28)))


def test_segments() -> None:
    model = sg.models.resnet(sg.se2(4), width=0.1, recompute=True)
    assert [len(segment) for segment in model.segments()] == [3, 1, 3, 1, 3, 3, 6]
    assert isinstance(model[:3], Recomputed)
    small = sg.models.allcnnc(sg.se2(4), width=0.1, recompute=True)
    assert sum(len(segment) for segment in small.segments()) == len(small)


def in_a_distributed_run(store: str) -> None:
    kept, again = (block(c, out_grid=sg.se2(4)) for c in (False, True))
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    wrapped = nn.parallel.DistributedDataParallel(again)
    x = torch.randn(2, 2, 4, 6, 6)
    for module in (kept, wrapped):
        torch.manual_seed(7)
        for _ in range(2):
            module(x).square().mean().backward()
    same = [torch.equal(a.grad, b.grad) for a, b in zip(kept.parameters(), again.parameters(), strict=True)]
    same += [torch.equal(a, b) for a, b in zip(kept.buffers(), again.buffers(), strict=True)]
    os._exit(0 if all(same) else 1)  # gloo's own clean-up waits for threads that wait for Python


def test_a_recomputed_block_in_a_distributed_run(tmp_path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=in_a_distributed_run, args=(f"{tmp_path}/store",))
    child.start()
    child.join(120)
    assert child.exitcode == 0


def test_compiled_checkpointing_counts_a_batch_once() -> None:
    x = torch.randn(2, 2, 4, 6, 6)
    eager, compiled = (block(True) for _ in range(2))
    compiled.compile(backend="aot_eager", fullgraph=True)
    for module in (eager, compiled):
        torch.manual_seed(3)
        module(x).square().mean().backward()
    for a, b in zip(
        [*eager.buffers(), *[p.grad for p in eager.parameters()]],
        [*compiled.buffers(), *[p.grad for p in compiled.parameters()]],
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert compiled.norm2.num_batches_tracked == 1
