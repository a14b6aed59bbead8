"""torch.func, forward mode and ensembles of layers and models."""

import copy

import pytest
import torch
from client_helpers import KERNEL, block, features, model
from torch import Tensor
from torch.testing import assert_close

import sepgconv as sg


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_torch_func_grad(dtype: torch.dtype, training: bool) -> None:
    module, x = block().to(dtype).train(training), features(dtype)
    if training:  # which torch.func asks for
        torch.func.replace_all_batch_norm_modules_(module)
    names, values = zip(*module.named_parameters(), strict=True)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(copy.deepcopy(module), {**buffers, **parameters}, x).square().mean()

    found = torch.func.grad(loss)(dict(zip(names, values, strict=True)), x)
    expected = torch.autograd.grad(module(x).square().mean(), values)
    for name, slope in zip(names, expected, strict=True):
        scale = slope.abs().max().clamp_min(1e-6)
        assert (found[name] - slope).abs().max() <= (1e-4 if dtype == torch.float32 else 1e-10) * scale


@pytest.mark.parametrize("execution", ["dense", "structured"])
def test_torch_func_grad_of_a_layer(execution: str) -> None:
    layer = sg.GroupConv(4, 4, 3, grid=sg.se2(4, sampling="fixed"), kernel=KERNEL, execution=execution)
    names, values = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(2, 4, 4, 5, 5)
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).square().mean())(
        dict(zip(names, values, strict=True))
    )
    expected = torch.autograd.grad(layer(x).square().mean(), values)
    for name, slope in zip(names, expected, strict=True):
        assert_close(found[name], slope, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("execution", ["auto", "structured"])
def test_jacobians_vmap_and_ensembles(execution: str) -> None:
    layer = sg.GroupConv(2, 2, 3, grid=sg.se2(4, sampling="fixed"), kernel=KERNEL, execution=execution).eval()
    x = torch.randn(1, 2, 4, 4, 4)
    jacobian = torch.func.jacrev(lambda x: layer(x).sum((2, 3, 4)))(x)
    assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: layer(x).sum((2, 3, 4)), x))
    tangents = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    assert_close(tangents[1], layer(torch.ones_like(x)))
    batches = torch.randn(3, 2, 2, 4, 4, 4)
    with torch.no_grad():
        assert_close(torch.vmap(layer)(batches), torch.stack([layer(b) for b in batches]), atol=1e-5, rtol=1e-4)
    nets = [model(grid=sg.se2(4, sampling="fixed")).eval() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)
    images = torch.randn(2, 1, 28, 28)

    def one(parameters: dict, buffers: dict) -> Tensor:
        return torch.func.functional_call(nets[0], (parameters, buffers), (images,))

    found = torch.vmap(one)(parameters, buffers)
    for member, output in zip(nets, found, strict=True):
        assert_close(output, member(images), atol=1e-4, rtol=1e-3)


def test_forward_mode() -> None:
    from torch.autograd import forward_ad

    layer, x = sg.GroupConv(2, 2, 3, grid=sg.se2(4), kernel=KERNEL).eval(), torch.randn(1, 2, 4, 4, 4)
    with forward_ad.dual_level():
        out = layer(forward_ad.make_dual(x, torch.ones_like(x)))
        assert_close(forward_ad.unpack_dual(out).tangent, layer(torch.ones_like(x)))
