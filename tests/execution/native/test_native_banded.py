"""Products with banded tables through the compiled kernel, against a convolution in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import native

UNIT = 2.0**-24


def plain(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution along the elements."""
    images = x.reshape(-1, *x.shape[-2:]).movedim(-1, 1)
    result = F.conv1d(images, weight.permute(2, 1, 0), padding=len(weight) // 2)
    return result.movedim(1, -1).reshape(*x.shape[:-1], weight.shape[2])


def gradients(run, slope: Tensor, *leaves: Tensor) -> list[Tensor]:
    leaves = tuple(t.detach().requires_grad_() for t in leaves)
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, slope)]


@pytest.mark.parametrize("elements", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "neighbours", "i", "j"), [(70, 1, 3, 5), (400, 1, 32, 32), (50, 2, 35, 2), (101, 3, 8, 65), (1, 0, 1, 1)]
)
def test_products_and_gradients_are_those_of_a_convolution_in_float64(
    elements: int, rows: int, neighbours: int, i: int, j: int, vectors: str
) -> None:
    x, weight = torch.randn(rows, elements, i), torch.randn(2 * neighbours + 1, i, j)
    slope = torch.randn(rows, elements, j)
    found = gradients(native.banded_product, slope, x, weight)
    wanted = gradients(plain, *(t.double() for t in (slope, x, weight)))
    sizes = gradients(plain, *(t.double().abs() for t in (slope, x, weight)))
    terms = (2 * neighbours + 1) * max(i, j)
    for a, b, size, count in zip(found, wanted, sizes, (terms, terms, rows * elements), strict=True):
        assert a.shape == b.shape
        assert ((a - b).abs() <= UNIT * min(count + 4, 600) * size).all()


def test_results_do_not_depend_on_threads(kernels, two_threads: None) -> None:
    x, weight, slope, found = torch.randn(3000, 4, 20), torch.randn(3, 20, 12), torch.randn(3000, 4, 12), []
    for threads in (2, 2, 1, 3):
        torch.set_num_threads(threads)
        found.append(gradients(native.banded_product, slope, x, weight))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("kernels")
def test_empty_batches_transforms_second_derivatives_and_compilers() -> None:
    weight, x = torch.randn(3, 3, 5), torch.randn(2, 7, 4, 3)
    assert native.banded_product(torch.randn(0, 4, 3), weight).shape == (0, 4, 5)

    def loss(run):
        return lambda a, w: run(a, w).pow(3).sum()

    found = torch.func.grad(loss(native.banded_product), (0, 1))(x, weight)
    for a, b in zip(found, torch.func.grad(loss(plain), (0, 1))(x, weight), strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    results = []
    for run in (native.banded_product, plain):
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        first = torch.autograd.grad(loss(run)(*leaves), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    slope = torch.randn(2, 7, 4, 5)
    compiled = torch.compile(native.banded_product, backend="aot_eager", fullgraph=True)
    for a, b in zip(*(gradients(f, slope, x, weight) for f in (compiled, native.banded_product)), strict=True):
        torch.testing.assert_close(a, b)
    arguments = (torch.randn(9, 4, 3, requires_grad=True), weight.requires_grad_())
    torch.library.opcheck(torch.ops.sepgconv.banded_product.default, arguments)


@pytest.mark.usefixtures("kernels")
def test_only_the_gradients_that_are_needed_are_taken() -> None:
    x, weight = torch.randn(30, 4, 3), torch.randn(3, 5, 3).mT
    both = gradients(native.banded_product, torch.ones(30, 4, 5), x, weight)
    for place in range(2):
        leaves = [x.clone(), weight.clone()]
        leaves[place].requires_grad_()
        native.banded_product(*leaves).sum().backward()
        assert torch.equal(leaves[place].grad, both[place + 1])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 4, 5)])
def test_matrices_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"banded_product: rows .* and matrices .* do not fit"):
        torch.ops.sepgconv.banded_product.default(torch.randn(2, 4, 3), torch.randn(*shape))
