"""Max pooling that keeps little, against torch's."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import sepgconv as sg
from sepgconv.execution.cpu import pooling


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "CHUNK", 800)


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 3, 0), (3, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
def test_pooling(window: tuple[int, int, int], size: tuple[int, int]) -> None:
    x = torch.randint(3, (5, 6, *size)).float()  # many are equal
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    ours, stock = pooling.max_pool(x, *window), F.max_pool2d(x, *window)
    direction = torch.randn_like(stock)
    assert torch.equal(ours, stock)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    for gradient in (direction, direction.contiguous()):
        a, b = (torch.autograd.grad(y, x, gradient, retain_graph=True)[0] for y in (ours, stock))
        assert torch.equal(a, b)
        assert a.is_contiguous(memory_format=torch.channels_last)


def test_pooling_derivatives() -> None:
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert gradcheck(lambda x: pooling.max_pool(x, 2, 2, 0), (x,))
    assert gradgradcheck(lambda x: pooling.max_pool(x, 2, 2, 0), (x,))


def test_pooling_keeps_two_bytes_per_maximum(kept_bytes) -> None:
    x = torch.randn(3, 8, 8, 4, 4).permute(0, 4, 3, 1, 2).requires_grad_()
    assert kept_bytes(lambda: sg.SpatialPool("max", 2)(x)) == 2 * x.numel() // 4
