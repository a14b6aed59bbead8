"""Pieces of a batch, against the function itself."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.execution import native, plan
from sepgconv.execution.pieces import Made, in_pieces


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


def test_the_second_run_is_for_gradients_alone_and_features_are_made_again() -> None:
    def run(x: torch.Tensor, a: torch.Tensor, bias=None) -> torch.Tensor:
        return x.sin() @ a

    def garbage(x: torch.Tensor, a: torch.Tensor, bias=None) -> torch.Tensor:
        found = run(x, a)
        return found + (float("nan") * torch.ones_like(found)).detach()

    source = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    seen: list[slice] = []
    made = Made((source,), lambda x, part: seen.append(part) or x[part].detach().exp(), lambda x: x.exp())

    def whole(source: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            x = source.exp()
            result = in_pieces(run, 2, x, (a,), again=garbage, made=made)
        assert sum(t.data_ptr() == x.data_ptr() for t in kept) == 1  # by the exponential, not by the pieces
        return result

    assert_close(whole(source, a), run(source.exp(), a))
    assert gradcheck(whole, (source, a))
    assert seen[:2] == [slice(0, 2), slice(2, 5)]
    assert gradgradcheck(whole, (source, a))


@pytest.mark.skipif(not native.status().active, reason="the plain way keeps what it likes")
def test_a_block_in_pieces_keeps_no_normalised_features(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = sg.sim2(4, 2, sampling="fixed")
    block = sg.ResidualBlock(3, 3, 3, grid=grid, factorisation="h_separable", kernel=sg.KernelConfig(hidden=8))
    block.conv1.execution = block.conv2.execution = "structured"
    features = torch.randn(6, 9, 9, grid.size, 3).permute(0, 4, 3, 1, 2)
    found, kept = [], []
    for limit in (1 << 28, 1 << 10):
        monkeypatch.setattr(plan, "LARGE", limit)
        monkeypatch.setattr(plan, "PIECE", features[:2].nbytes)
        sizes: list[int] = []
        x = features.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(_place(t)) or t, lambda t: t):
            result = block(x)
        kept.append(len(set(sizes) - {0}))
        result.square().mean().backward()
        found.append([result, x.grad, *(p.grad for p in block.parameters())])
        block.zero_grad(set_to_none=True)
    assert torch.equal(found[0][0], found[1][0])
    # The input, what both norms take, and the sum; otherwise what the second convolution takes, and between the ways.
    assert kept[1] == 4
    assert kept[0] == 5 + sum(len(conv.plan.steps) - 1 for conv in (block.conv1, block.conv2))
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@pytest.mark.skipif(not native.status().active, reason="the plain way leaves no recipe")
def test_a_recipe_is_for_the_very_result_alone() -> None:
    features = torch.randn(4, 3, 2, 5, 5, requires_grad=True)
    norm = sg.BatchNorm(3)
    result, shape = norm.normalise(features, relu=True, remade=True), torch.Size((4, 5, 5, 2, 3))
    made = native.recipe(result, shape)
    assert made is not None
    rows = result.permute(0, 3, 4, 2, 1)
    assert torch.equal(made.some(*made.given, slice(1, 3)), rows[1:3])
    assert_close(made.whole(*made.given), rows)
    assert native.recipe(norm.normalise(features, relu=True, remade=True) * 1, shape) is None
    assert native.recipe(norm.normalise(features, relu=True), shape) is None
    with torch.no_grad():
        changed = norm.normalise(features, relu=True, remade=True)
    assert native.recipe(changed, shape) is None
    changed = norm.normalise(features, relu=True, remade=True)
    with torch.no_grad():
        assert native.recipe(changed.mul_(2), shape) is None


def _place(t: torch.Tensor) -> int:
    """Where a tensor as large as the features lies; 0 for others."""
    return t.data_ptr() if t.numel() == 6 * 3 * 8 * 81 else 0
