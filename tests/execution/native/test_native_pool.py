"""Compiled max pooling against torch's: the same bits, forward and backward."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import native

WINDOWS = {  # shape, size, stride, padding
    "2": ((3, 32, 8, 8), 2, 2, 0),
    "2, odd image": ((2, 17, 9, 7), 2, 2, 0),
    "3 over 2": ((2, 20, 9, 10), 3, 2, 1),
    "3 at every pixel": ((2, 6, 7, 5), 3, 1, 1),
    "gaps": ((1, 16, 10, 11), 2, 3, 0),
    "one channel": ((2, 1, 6, 6), 2, 2, 0),
    "all of it": ((2, 33, 5, 5), 5, 5, 0),
    "15": ((1, 8, 16, 15), 15, 1, 7),
    "one pixel": ((2, 16, 3, 3), 1, 1, 0),
}


def gradients(run, x: Tensor, slope: Tensor | None = None) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = run(x)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y) if slope is None else slope)[0]


def images(*shape: int) -> Tensor:
    """With many equal values, so that it matters which of them is taken."""
    b, c, *space = shape
    return torch.randint(-3, 4, (b, *space, c)).float().movedim(-1, 1)


@pytest.mark.parametrize("case", WINDOWS.values(), ids=list(WINDOWS))
def test_values_and_gradients_are_those_of_torch(case, vectors: str) -> None:
    shape, *window = case
    x = images(*shape)
    slope = torch.randn_like(F.max_pool2d(x, *window))
    found = gradients(lambda t: native.max_pool(t, *window), x, slope)
    wanted = gradients(lambda t: F.max_pool2d(t, *window), x, slope)
    assert torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])  # where windows overlap, a sum has another order
    with torch.no_grad():
        assert torch.equal(native.max_pool(x, *window), wanted[0])


def test_what_is_not_finite_is_taken_as_torch_takes_it(vectors: str) -> None:
    x = images(2, 19, 6, 6)
    x[torch.rand(x.shape) < 0.2] = torch.nan
    x[torch.rand(x.shape) < 0.3] = -torch.inf
    slope = torch.randn(2, 19, 3, 3)
    found = gradients(lambda t: native.max_pool(t, 2, 2, 0), x, slope)
    wanted = gradients(lambda t: F.max_pool2d(t, 2, 2, 0), x, slope)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("kernels")
def test_it_keeps_one_byte_per_maximum(kept_bytes) -> None:
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    assert kept_bytes(lambda: native.max_pool(x, 2, 2, 0), x) == 2 * 16 * 4 * 4


def test_results_do_not_depend_on_threads(kernels, two_threads: None) -> None:
    x, found = torch.randn(3, 24, 28, 28), []
    for threads in (2, 1, 3):
        torch.set_num_threads(threads)
        found.append([gradients(lambda t, w=w: native.max_pool(t, *w), x) for w in ((2, 2, 0), (3, 1, 1))])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])


@pytest.mark.usefixtures("kernels")
def test_layouts_empty_batches_and_mistakes() -> None:
    x = torch.randn(2, 5, 7, 9).mT
    assert torch.equal(native.max_pool(x, 3, 2, 1), F.max_pool2d(x, 3, 2, 1))
    assert native.max_pool(torch.randn(0, 5, 8, 8), 2, 2, 0).shape == (0, 5, 4, 4)
    with pytest.raises(RuntimeError, match="half of"):
        native.max_pool(x, 2, 2, 2)
    with pytest.raises(RuntimeError, match="too small"):
        native.max_pool(torch.randn(1, 5, 2, 2), 3, 3, 0)


@pytest.mark.usefixtures("kernels")
def test_second_derivatives_transforms_and_compilers() -> None:
    x, window = torch.randn(2, 4, 6, 6), (3, 2, 1)

    def loss(run):
        return lambda t: run(t, *window).pow(3).sum()

    found = torch.func.grad(loss(native.max_pool))(x)
    torch.testing.assert_close(found, torch.func.grad(loss(F.max_pool2d))(x))
    results = []
    for run in (native.max_pool, F.max_pool2d):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(run)(leaf), leaf, create_graph=True)
        results.append(torch.autograd.grad(first.pow(2).sum(), leaf)[0])
    torch.testing.assert_close(*results)

    def pooled(t: Tensor) -> Tensor:
        return native.max_pool(t, *window)

    compiled = torch.compile(pooled, backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(compiled, x), gradients(pooled, x), strict=True):
        assert torch.equal(a, b)
    torch.library.opcheck(torch.ops.sepgconv.max_pool.default, (x.requires_grad_(), *window, True))
