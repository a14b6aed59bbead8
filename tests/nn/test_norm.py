"""Batch norm on groups, compiled and plain, against torch's in float64: values, derivatives, what is kept."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.execution import native
from sepgconv.execution.native import _library


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled kernels, where they are, and without."""
    if request.param == "plain":
        monkeypatch.setattr(_library, "FOUND", False)
    elif not native.status().active:
        pytest.skip(f"no compiled kernels: {native.status().reason}")
    return request.param


def in_rows(features: torch.Tensor) -> bool:
    return features.movedim((1, 2), (-1, -2)).is_contiguous()


def features(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random `(b, c, h, y, x)`, in rows."""
    b, c, h, *space = shape
    rows = torch.randn(b, *space, h, c, dtype=dtype)
    return rows.movedim((-1, -2), (1, 2)).detach().requires_grad_()


NORMS = {
    "default": {},
    "cumulative": {"momentum": None},
    "no weights": {"affine": False},
    "no statistics": {"track_running_stats": False},
}


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("options", NORMS.values(), ids=list(NORMS))
@pytest.mark.parametrize("shape", [(3, 5, 4, 6, 7), (1, 3, 2, 4, 4), (2, 1, 3, 5, 4), (2, 4, 1, 9), (2, 70, 64, 2, 2)])
def test_norms_are_those_of_torch(options: dict, shape: tuple[int, ...], relu: bool) -> None:
    ours = sg.BatchNorm(shape[1], **options)
    if ours.affine:
        nn.init.normal_(ours.weight)
        nn.init.normal_(ours.bias)
    stock = nn.BatchNorm1d(shape[1], **options)
    stock.double().load_state_dict(copy.deepcopy(ours.state_dict()))

    def expected(x: torch.Tensor) -> torch.Tensor:
        rows = x.double().movedim((1, 2), (-1, -2))
        return stock(rows.reshape(-1, shape[1])).reshape(rows.shape).movedim((-1, -2), (1, 2))

    for _ in range(3):
        x = features(*shape)
        with torch.no_grad():
            x.mul_(3).add_(5)
        direction, found = torch.randn_like(x), []
        for y in (ours.normalise(x, relu=True), F.relu(expected(x))) if relu else (ours(x), expected(x)):
            found.append(
                [y, *torch.autograd.grad(y, [x, *ours.parameters(), *stock.parameters()], direction, allow_unused=True)]
            )
        (a, da, *rest), (b, db, *others) = found
        assert_close(a, b.float(), atol=2e-6, rtol=1e-5)
        assert in_rows(a)
        assert_close(da, db, atol=1e-5, rtol=1e-4)
        count = len(list(ours.parameters()))
        for slope, other in zip(rest[:count], others[count:], strict=True):
            assert_close(slope, other.float(), atol=1e-4, rtol=1e-5)
        for buffer, other in zip(ours.buffers(), stock.buffers(), strict=True):
            assert_close(buffer, other.to(buffer))


@pytest.mark.parametrize("relu", [True, False])
def test_derivatives_of_a_norm(relu: bool) -> None:
    x = features(2, 3, 2, 3, 3, dtype=torch.float64)
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return native.batch_norm(x, weight, bias, (None, None), 0.1, 1e-5, relu=relu)

    assert gradcheck(run, (x, weight, bias))
    assert gradgradcheck(run, (x, weight, bias))


def brightness(c: int, offset: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Features with many rows, images of unlike brightness, at some distance from zero."""
    x = features(12, c, 4, 40, 41).detach().relu_()
    return (x * torch.linspace(0.1, 3, 12)[:, None, None, None, None] + offset).to(dtype)


def exact(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.double().transpose(0, 1).flatten(1)
    return flat.mean(1), flat.var(1, correction=0)


@pytest.mark.parametrize("layout", ["rows", "channels-last", "contiguous"])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("c", "offset"), [(3, 0.0), (3, 1e3), (17, 0.0), (32, -1e3), (1, 10.0)])
def test_statistics_are_exact(c: int, offset: float, relu: bool, layout: str) -> None:
    x = brightness(c, offset)
    if layout == "channels-last":
        x = x.contiguous(memory_format=torch.channels_last_3d)
    if layout == "contiguous":
        x = x.contiguous()
    norm = sg.BatchNorm(c, momentum=1.0)
    norm.normalise(x, relu=relu)
    mean, variance = exact(x)
    count = x.numel() // c
    assert_close(norm.running_mean.double(), mean, atol=0, rtol=1e-6)
    assert_close(norm.running_var.double(), variance * count / (count - 1), atol=0, rtol=1e-6)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("dtype", "own"), [(torch.bfloat16, False), (torch.float32, False), (torch.bfloat16, True)])
def test_reduced_precision_does_not_reach_the_sums(dtype: torch.dtype, own: bool, relu: bool) -> None:
    """Under autocast, of either type of features, and with a norm that is itself of reduced precision."""
    x = brightness(17, 0.0).to(dtype).requires_grad_()
    norm = sg.BatchNorm(17, momentum=1.0).to(dtype if own else torch.float32)
    with torch.autocast("cpu", enabled=not own):
        y = norm.normalise(x, relu=relu)
    direction = (torch.rand_like(x) * x.detach()).to(dtype)
    y.backward(direction)
    assert y.dtype == x.grad.dtype == dtype
    mean, variance = exact(x.detach())
    assert_close(norm.running_mean.double(), mean, atol=0, rtol=4e-3 if own else 1e-6)
    assert_close(norm.running_var.double(), variance, atol=0, rtol=4e-3 if own else 2e-5)  # count / (count − 1)
    wide = x.detach().double().requires_grad_()
    stock = nn.BatchNorm3d(17).double()
    expected = F.relu(stock(wide)) if relu else stock(wide)
    expected.backward(direction.double())
    rounding = 1e-6 if dtype == torch.float32 else 4e-3
    assert (y - expected).norm() < rounding * expected.norm()
    assert (x.grad - wide.grad).norm() < 4 * rounding * wide.grad.norm()
    assert (norm.weight.grad - stock.weight.grad).norm() < (4e-3 if own else 4e-6) * stock.weight.grad.norm()


@pytest.mark.parametrize("mode", ["training", "eval", "eval by the batch"])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("c", [3, 17])
def test_gradients_are_exact(c: int, relu: bool, mode: str) -> None:
    """Of many rows, against float64 and stock operations."""
    torch.manual_seed(c)
    norm = sg.BatchNorm(c, track_running_stats=mode != "eval by the batch").train(mode == "training")
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, 0.1, 0.2)
    if mode == "eval":
        for buffer, value in zip((norm.running_mean, norm.running_var), exact(brightness(c, 0.0)), strict=True):
            buffer.copy_(value)
    stock = nn.BatchNorm3d(c, track_running_stats=norm.track_running_stats).double().train(norm.training)
    stock.load_state_dict(norm.state_dict())
    x = brightness(c, 0.0).requires_grad_()
    direction = torch.rand_like(x) * x.detach()  # sums that do not cancel
    wide = x.detach().double().contiguous().requires_grad_()
    found = norm.normalise(x, relu=relu)
    expected = F.relu(stock(wide)) if relu else stock(wide)
    ours = torch.autograd.grad(found, [x, *norm.parameters()], direction)
    others = torch.autograd.grad(expected, [wide, *stock.parameters()], direction.double().contiguous())
    for slope, other in zip(ours, others, strict=True):
        assert (slope - other).norm() < 1e-6 * other.norm()


def test_norm_and_relu_keep_only_their_input(kept_bytes, way: str) -> None:
    if way == "plain":
        pytest.skip("stock operations keep what they keep")
    norm, x = sg.BatchNorm(4), features(3, 4, 4, 6, 6)
    assert kept_bytes(lambda: norm.normalise(x, relu=True), x) < 200
    assert kept_bytes(lambda: F.relu(norm(x)), x) > 4 * x.numel()


def test_an_own_gradient_is_written_over(way: str) -> None:
    if way == "plain":
        pytest.skip("stock operations write over nothing")
    norm, x = sg.BatchNorm(4), features(3, 4, 4, 6, 6)
    direction = torch.randn_like(x)
    expected = torch.autograd.grad(F.relu(norm(x)), x, direction)
    for own in (False, True):
        grad = direction.clone()
        (found,) = torch.autograd.grad(norm.normalise(x, relu=True, own=own), x, grad)
        assert_close(found, *expected, atol=1e-5, rtol=1e-4)
        assert (found.data_ptr() == grad.data_ptr()) == own
        assert torch.equal(grad, direction) != own
    flipped = direction.contiguous()
    (found,) = torch.autograd.grad(norm.normalise(x, relu=True, own=True), x, flipped)
    assert_close(found, *expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(flipped, direction)


def test_any_layout_is_normalised() -> None:
    norm, x = sg.BatchNorm(4), torch.randn(2, 4, 4, 5, 5, requires_grad=True)
    assert_close(norm.normalise(x, relu=True), F.relu(norm(x)))
    y, flipped = norm.normalise(features(2, 4, 4, 5, 5), relu=True), torch.randn(2, 4, 4, 5, 5)
    y.backward(flipped)  # a gradient that does not lie in rows
    with pytest.raises(ValueError, match="more than 1 value"):
        norm.normalise(torch.randn(1, 4, 1, 1, 1), relu=True)


def test_hooks_of_a_norm_are_called_in_training() -> None:
    block, seen = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4)), []
    block.norm1.register_forward_hook(lambda *args: seen.append(args[2]))
    block.norm2.register_full_backward_hook(lambda *args: seen.append(args[2][0]))
    block(features(2, 2, 4, 5, 5)).sum().backward()
    assert len(seen) == 2
    assert (seen[0] < 0).any()


def test_a_block_keeps_one_map_per_convolution_twice(kept_bytes, way: str) -> None:
    """Input and output of two convolutions, and the result; nothing that lies in between."""
    if way == "plain":
        pytest.skip("stock operations keep what they keep")
    torch.manual_seed(0)
    block, x = (
        sg.ResidualBlock(8, 8, 1, grid=sg.se2(4), kernel=sg.KernelConfig(hidden=4, layers=1)),
        features(4, 8, 4, 12, 12),
    )
    maps = kept_bytes(lambda: block(x), x, *block.parameters()) / (4 * x.numel())
    assert 4 <= maps < 5
