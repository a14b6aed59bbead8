"""Products with circulant tables through the compiled transforms, against the same with the basis as a matrix."""

import math

import pytest
import torch
from torch import Tensor

from sepgconv.execution import native
from sepgconv.execution.native._fourier import POINTS
from sepgconv.steps import real_fourier

UNIT = 2.0**-24


def plain(x: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    pairs = len(weight)
    waves = torch.einsum("mt,...ti->...mi", basis, x).unflatten(-2, (pairs, 2)).flatten(-2)
    product = torch.einsum("...pi,pij->...pj", waves, weight).unflatten(-1, (2, -1)).flatten(-3, -2)
    return torch.einsum("mt,...mj->...tj", basis, product)


def gradients(run, slope: Tensor, *leaves: Tensor) -> list[Tensor]:
    leaves = tuple(t.detach().requires_grad_() for t in leaves)
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope)]


@pytest.mark.parametrize("count", POINTS)
@pytest.mark.parametrize("channels", [1, 6, 16, 35])
def test_transforms_are_products_with_the_basis(count: int, channels: int, vectors: str) -> None:
    x, basis = torch.randn(70, count, channels), real_fourier(count)
    found = torch.ops.sepgconv.fourier(x)
    wanted = (basis @ x.double()).unflatten(1, (-1, 2)).permute(1, 0, 2, 3).flatten(2)
    # Two rounds of sums, then one of up to n/4 + 1 products, of numbers whose squares add up to those of x.
    bound = (count // 4 + 4) * UNIT * 2 * x.double().square().sum(1).sqrt().max()
    assert ((found - wanted).abs() <= bound).all()
    assert ((torch.ops.sepgconv.fourier_back(found) - x).abs() <= 2 * bound).all()
    back = torch.ops.sepgconv.fourier_back(wanted.float())
    assert ((back - x).abs() <= 2 * bound).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("count", "i", "j"), [(4, 3, 5), (8, 32, 32), (12, 16, 7), (32, 4, 4), (6, 5, 3), (5, 2, 2)])
def test_products_and_gradients_are_those_of_the_plain_way_in_float64(count: int, i: int, j: int) -> None:
    basis = real_fourier(count)
    x, weight = torch.randn(3, 5, count, i), torch.randn(len(basis) // 2, 2 * i, 2 * j) / math.sqrt(i)
    slope = torch.randn(3, 5, count, j)
    found = gradients(lambda a, w: native.circular_product(a, w, basis), slope, x, weight)
    wanted = gradients(lambda a, w: plain(a, w, basis), slope.double(), x.double(), weight.double())
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 40 * UNIT * b.abs().max()  # 64 terms and three rounds of sums, random signs


def test_results_do_not_depend_on_threads(kernels, two_threads: None) -> None:
    x, found = torch.randn(1000, 8, 20), []
    for threads in (2, 1, 3):
        torch.set_num_threads(threads)
        found.append(torch.ops.sepgconv.fourier_back(torch.ops.sepgconv.fourier(x) * 2))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.usefixtures("kernels")
def test_empty_batches_transforms_second_derivatives_and_compilers() -> None:
    basis, weight = real_fourier(8).float(), torch.randn(4, 6, 10)
    assert native.circular_product(torch.randn(0, 8, 3), weight, basis).shape == (0, 8, 5)
    x = torch.randn(2, 7, 8, 3)

    def loss(run):
        return lambda a, w: run(a, w, basis).pow(3).sum()

    found = torch.func.grad(loss(native.circular_product), (0, 1))(x, weight)
    for a, b in zip(found, torch.func.grad(loss(plain), (0, 1))(x, weight), strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    results = []
    for run in (native.circular_product, plain):
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        first = torch.autograd.grad(loss(run)(*leaves), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    slope = torch.randn(2, 7, 8, 5)
    compiled = torch.compile(native.circular_product, backend="aot_eager", fullgraph=True)
    runs = [gradients(lambda a, w, f=f: f(a, w, basis), slope, x, weight) for f in (compiled, native.circular_product)]
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)
    torch.library.opcheck(torch.ops.sepgconv.fourier.default, (torch.randn(9, 8, 3, requires_grad=True),))
    torch.library.opcheck(torch.ops.sepgconv.fourier_back.default, (torch.randn(4, 9, 6, requires_grad=True),))
