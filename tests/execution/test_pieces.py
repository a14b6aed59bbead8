"""Pieces of a batch, against the function itself."""

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from sepgconv.execution.pieces import in_pieces


def test_in_pieces_it_is_the_function_itself_with_all_derivatives() -> None:
    def run(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias=None) -> torch.Tensor:
        return (x @ a).sin() @ b

    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    frozen = torch.randn(4, 2, dtype=torch.float64)
    for pieces in (2, 3, 5):
        assert_close(in_pieces(run, pieces, x, (a, frozen)), run(x, a, frozen))
        assert gradcheck(lambda x, a, p=pieces: in_pieces(run, p, x, (a, frozen)), (x, a))
        assert gradgradcheck(lambda x, a, p=pieces: in_pieces(run, p, x, (a, frozen)), (x, a))
    seen: list[int] = []
    in_pieces(lambda x, bias=None: seen.append(len(x)) or x * 2, 2, x, ()).sum().backward()
    assert seen == [2, 3, 2, 3]


def test_an_own_gradient_is_written_over() -> None:
    def run(x: torch.Tensor, a: torch.Tensor, bias=None) -> torch.Tensor:
        return (x @ a).sin()

    x, a = torch.randn(5, 2, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    direction = torch.randn(5, 2, 3)
    expected = torch.autograd.grad(run(x, a), [x, a], direction)
    for own in (False, True):
        grad = direction.clone()
        found = torch.autograd.grad(in_pieces(run, 2, x, (a,), own=own), [x, a], grad)
        assert_close(found, expected)
        assert (found[0].data_ptr() == grad.data_ptr()) == own
        assert torch.equal(grad, direction) != own
    other = torch.randn(3, 4)  # of another shape: there is nothing to write over
    found = torch.autograd.grad(in_pieces(run, 2, x, (other,), own=True), x, torch.ones(5, 2, 4))
    assert_close(found, torch.autograd.grad(run(x, other), x, torch.ones(5, 2, 4)))
