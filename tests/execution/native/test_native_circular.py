"""Products with circulant tables through the compiled transforms, against the same with the basis as a matrix."""

import pytest
import torch
from torch import Tensor

from sepgconv.execution import native
from sepgconv.execution.native._circular import POINTS
from sepgconv.execution.ways.dihedral import dihedral_waves
from sepgconv.execution.ways.product import real_fourier as numbers

UNIT = 2.0**-24
MIRRORS = (8, 16, 24, 32)
"""Points on a circle and its mirror image."""


def real_fourier(count: int) -> Tensor:
    return torch.tensor(numbers(count), dtype=torch.float64)


def dihedral(count: int) -> Tensor:
    """The orthonormal basis on a circle of count/2 points and its mirror image."""
    waves = torch.tensor(dihedral_waves(count // 2), dtype=torch.float64)
    return waves / waves.norm(dim=1, keepdim=True)


def whole(weight: Tensor, unmixed: int) -> Tensor:
    """The blocks of all pairs, [a −b; b a] or as they are; the first pairs' functions do not mix."""
    if weight.ndim == 4:
        rows = [torch.cat([weight[:, 0], -weight[:, 1]], -1), torch.cat([weight[:, 1], weight[:, 0]], -1)]
        first = torch.block_diag(*weight[0])[None]
        return torch.cat([first, torch.cat(rows, -2)[1:]])
    mask, (i, j) = torch.ones_like(weight), (n // 2 for n in weight.shape[1:])
    mask[:unmixed, :i, j:] = mask[:unmixed, i:, :j] = 0
    return weight * mask


def plain(x: Tensor, weight: Tensor, basis: Tensor) -> Tensor:
    pairs, weight = len(weight), whole(weight, 2)
    waves = torch.einsum("mt,...ti->...mi", basis, x).unflatten(-2, (pairs, 2)).flatten(-2)
    product = torch.einsum("...pi,pij->...pj", waves, weight).unflatten(-1, (2, -1)).flatten(-3, -2)
    return torch.einsum("mt,...mj->...tj", basis, product)


def blocks(pairs: int, i: int, j: int, mirrored: bool = False) -> Tensor:
    """One block per pair of waves."""
    return torch.randn(pairs, 2 * i, 2 * j) if mirrored else torch.randn(pairs, 2, i, j)


def gradients(run, slope: Tensor, *leaves: Tensor) -> list[Tensor]:
    leaves = tuple(t.detach().requires_grad_() for t in leaves)
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope)]


@pytest.mark.parametrize(("count", "mirrored"), [*((n, False) for n in POINTS), *((n, True) for n in MIRRORS)])
@pytest.mark.parametrize(("rows", "i", "j"), [(70, 3, 5), (3, 16, 16), (50, 35, 2), (101, 8, 33), (1, 1, 1)])
def test_products_and_gradients_are_those_of_the_plain_way_in_float64(
    count: int, mirrored: bool, rows: int, i: int, j: int, vectors: str
) -> None:
    basis = dihedral(count) if mirrored else real_fourier(count)
    x, weight = torch.randn(rows, count, i), blocks(len(basis) // 2, i, j, mirrored)
    slope = torch.randn(rows, count, j)
    found = gradients(lambda a, w: native.circular_product(a, w, basis), slope, x, weight)
    wanted = gradients(lambda a, w: plain(a, w, basis), slope.double(), x.double(), weight.double())
    # A transform takes two rounds of sums and one of up to n/4 + 1 products, a product 2i (2j, rows) terms; there are
    # two transforms, and all of it grows with the norms of what is multiplied.
    norm_x, norm_g = x.flatten(1).norm(dim=1).max().double(), slope.flatten(1).norm(dim=1).max().double()
    norm_w, size = torch.linalg.matrix_norm(whole(weight, 2).double(), 2).max(), 2 * (count // 4 + 4)
    bounds = (norm_x * norm_w * (size + 2 * i), norm_g * norm_w * (size + 2 * j), norm_x * norm_g * rows * (size + 64))
    for a, b, bound in zip(found, wanted, bounds, strict=True):
        assert a.shape == b.shape
        assert ((a - b).abs() <= UNIT * bound).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("count", [3, 5, 6, 10, 20, 36])
def test_other_numbers_of_points_take_the_plain_way(count: int) -> None:
    basis = real_fourier(count)
    x, weight = torch.randn(2, 3, count, 4), blocks(len(basis) // 2, 4, 5)
    wanted = plain(x.double(), weight.double(), basis)
    assert (native.circular_product(x, weight, basis) - wanted).abs().max() <= 64 * UNIT * wanted.abs().max()


def test_results_do_not_depend_on_threads(kernels, two_threads: None) -> None:
    x, weight, slope, found = torch.randn(1000, 8, 20), blocks(4, 20, 12), torch.randn(1000, 8, 12), []
    basis = real_fourier(8)
    for threads in (2, 2, 1, 3):
        torch.set_num_threads(threads)
        found.append(gradients(lambda a, w: native.circular_product(a, w, basis), slope, x, weight))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("kernels")
def test_empty_batches_transforms_second_derivatives_and_compilers() -> None:
    basis, weight = real_fourier(8).float(), blocks(4, 3, 5)
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
    arguments = (torch.randn(9, 8, 3, requires_grad=True), weight.requires_grad_(), basis)
    torch.library.opcheck(torch.ops.sepgconv.circular_product.default, arguments)


@pytest.mark.usefixtures("kernels")
def test_only_the_gradients_that_are_needed_are_taken() -> None:
    basis, x, weight = real_fourier(8), torch.randn(30, 8, 3), blocks(4, 5, 3).mT
    leaf = x.clone().requires_grad_()
    native.circular_product(leaf, weight, basis).sum().backward()
    both = gradients(lambda a, w: native.circular_product(a, w, basis), torch.ones(30, 8, 5), x, weight)
    assert torch.equal(leaf.grad, both[1])
    kernel = weight.clone().requires_grad_()
    native.circular_product(x, kernel, basis).sum().backward()
    assert torch.equal(kernel.grad, both[2])
