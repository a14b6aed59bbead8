"""The operations that replace slow ones of torch, against what they replace: values, gradients, second derivatives."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from sepgconv.execution.cpu import convolution
from sepgconv.execution.cpu.convolution import depthwise, grouped_product


def images(channels: int = 16, size: tuple[int, int] = (9, 8)) -> torch.Tensor:
    return torch.randn(3, channels, *size).contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.fixture(params=["small", "large", "wide", "wide and many"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images are taken as those that do not fit into the cache, or have many channels, or many pixels too.

    With no kernel short, all weights' gradients of these are taken image by image.
    """
    smaller = {"large": {"LARGE": 0, "SHORT": 0}}
    smaller["wide"] = {**smaller["large"], "WIDE": 16, "NARROW": 6, "BLOCK": 2 * 6 * 9 * 8}
    smaller["wide and many"] = {**smaller["wide"], "MANY": 1, "SLICE": 6}
    for name, value in smaller.get(request.param, {}).items():
        monkeypatch.setattr(convolution, name, value)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0), (2, 2), (1, 3)])
@pytest.mark.parametrize("kernel", [(1, 1), (5, 5), (1, 5)])
def test_depthwise_is_a_grouped_convolution(stride: int, padding: tuple[int, int], kernel: tuple[int, int]) -> None:
    x, weight = images(), torch.randn(16, 1, *kernel, requires_grad=True)
    ours = depthwise(x, weight, stride, padding)
    stock = F.conv2d(x, weight, None, stride, padding, 1, 16)
    assert torch.equal(ours, stock)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(depthwise(x, weight, stride, padding), stock)
    direction = torch.randn_like(stock)
    pairs = zip(
        torch.autograd.grad(ours, (x, weight), direction),
        torch.autograd.grad(stock, (x, weight), direction),
        strict=True,
    )
    for a, b in pairs:
        assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_a_result_that_nobody_reads_has_the_gradients_of_the_right_one() -> None:
    x, weight = images(), torch.randn(16, 1, 5, 3, requires_grad=True)
    y = depthwise(x, weight, 2, (2, 1))
    blank = depthwise(x, weight, 2, (2, 1), wanted=False)
    assert (blank.shape, blank.stride()) == (y.shape, y.stride())
    direction = torch.randn_like(y)
    found = torch.autograd.grad(blank, (x, weight), direction)
    for a, b in zip(found, torch.autograd.grad(y, (x, weight), direction), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(depthwise(x, weight, 2, (2, 1)), y)


@pytest.mark.usefixtures("sizes")
def test_depthwise_can_be_differentiated_twice() -> None:
    x, weight = images(), torch.randn(16, 1, 3, 3, requires_grad=True)

    def penalty(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slopes = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (x, weight))

    ours = penalty(depthwise(x, weight, 1, (1, 1)))
    for a, b in zip(ours, penalty(F.conv2d(x, weight, None, 1, 1, 1, 16)), strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.usefixtures("sizes")
def test_images_stay_channels_last_for_the_weights_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without its own stride over the batch is reordered by torch, which takes several times as long."""
    strides, convolve = [], F.conv2d
    monkeypatch.setattr(convolution, "SHORT", 0)

    def spy(x: torch.Tensor, *rest) -> torch.Tensor:
        strides.append((x.stride(0), x[0].numel(), x.stride(1)))
        return convolve(x, *rest)

    y = depthwise(images(), torch.randn(16, 1, 3, 3, requires_grad=True), 1, (1, 1))
    monkeypatch.setattr(F, "conv2d", spy)
    y.sum().backward()
    assert len(strides) > 3
    assert all(over == size and inner == 1 for over, size, inner in strides)


@pytest.mark.usefixtures("sizes")
def test_no_images_at_all() -> None:
    x, weight = torch.empty(0, 16, 9, 8, requires_grad=True), torch.randn(16, 1, 3, 3, requires_grad=True)
    y = depthwise(x, weight, 1, (1, 1))
    y.sum().backward()
    assert (y.shape, x.grad.shape) == (x.shape, x.shape)
    assert not weight.grad.any()


@pytest.mark.parametrize(("needs_x", "needs_weight"), [(True, False), (False, True), (False, False)])
def test_depthwise_gives_only_the_gradients_that_are_asked_for(needs_x: bool, needs_weight: bool) -> None:
    x, weight = images().detach().requires_grad_(needs_x), torch.randn(16, 1, 3, 3, requires_grad=needs_weight)
    y = depthwise(x, weight, 1, (1, 1))
    assert y.requires_grad == (needs_x or needs_weight)
    if y.requires_grad:
        y.sum().backward()
    assert (x.grad is not None, weight.grad is not None) == (needs_x, needs_weight)


def test_a_grouped_product_is_a_product_with_a_block_diagonal_matrix() -> None:
    x = torch.randn(2, 3, 4, 12, dtype=torch.float64)
    weight = torch.randn(3, 4, 5, dtype=torch.float64)
    assert_close(grouped_product(x, weight), x @ torch.block_diag(*weight))


def test_gradients_of_a_grouped_product() -> None:
    x = torch.randn(1, 2, 2, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(grouped_product, (x, weight))
    assert gradgradcheck(grouped_product, (x, weight))


def test_autocast_decides_the_precision() -> None:
    calls = {
        "depthwise": lambda: depthwise(images(), torch.randn(16, 1, 3, 3, requires_grad=True), 1, (1, 1)),
        "grouped": lambda: grouped_product(torch.randn(1, 4, 4, 6), torch.randn(3, 2, 2, requires_grad=True)),
    }
    for name, call in calls.items():
        with torch.autocast("cpu", torch.bfloat16):
            y = call()
        assert y.dtype == torch.bfloat16, name
        y.float().sum().backward()


def test_layout_stays_channels_last() -> None:
    """No copy hides in the gradients: what flows back lies in memory as what went in."""
    for stride, kernel in itertools.product((1, 2), (3, 7)):
        x = images(32, (14, 14))
        y = depthwise(x, torch.randn(32, 1, kernel, kernel, requires_grad=True), stride, (kernel // 2,) * 2)
        assert y.is_contiguous(memory_format=torch.channels_last)
        (dx,) = torch.autograd.grad(y, x, torch.randn_like(y))
        assert dx.is_contiguous(memory_format=torch.channels_last)
