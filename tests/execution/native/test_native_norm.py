"""Compiled batch norm and ReLU against torch's in float64.

A normalised value n takes four roundings (difference, factor, product, sum), so it is off by at most 4·u·(|n| + |bias|)
to first order, u = 2⁻²⁴; gradients are sums of such terms. Values whose n is so small that its sign is in doubt are not
drawn: a ReLU's gradient jumps there.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import native

UNIT = 2.0**-24
EPS = 1e-5
SHAPES = [
    (4, 32, 8, 7, 7),
    (3, 6, 4, 5, 5),
    (2, 1, 3, 5, 4),
    (2, 17, 1, 9),
    (1, 100, 2, 3, 3),
    (2, 3, 1),
    (70, 64, 8, 6, 6),
]


def features(*shape: int, mean: float = 0.0) -> Tensor:
    """Random `(b, c, h, …)`, in rows, every channel with its own mean and deviation, no value near its ReLU's edge."""
    b, c, h, *space = shape
    rows = torch.randn(b, *space, h, c)
    normal = (rows - rows.flatten(0, -2).mean(0)) / rows.flatten(0, -2).std(0, correction=0)
    rows = torch.where((normal - 0.25).abs() < 1e-3, rows + 0.01, rows)
    return (rows * torch.linspace(1, 3, c) + torch.linspace(-1, 2, c) + mean).movedim((-1, -2), (1, 2))


def parameters(channels: int) -> tuple[Tensor, Tensor]:
    """A weight, and the bias with which the ReLU's edge is at 0.25 deviations: where no value is."""
    weight = torch.rand(channels) + 0.5
    return weight, -0.25 * weight


def plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, relu: bool) -> Tensor:
    rows = x.movedim((1, 2), (-1, -2))
    found = F.batch_norm(rows.flatten(0, -2), None, None, weight, bias, True, 0.0, EPS).reshape(rows.shape)
    return (F.relu(found) if relu else found).movedim((-1, -2), (1, 2))


def gradients(run, slope: Tensor, *leaves: Tensor | None) -> list[Tensor]:
    leaves = tuple(None if t is None else t.detach().requires_grad_() for t in leaves)
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], slope)]


def ours(relu: bool, own: bool = False):
    return lambda x, w, b: native.batch_norm(x, w, b, (None, None), 0.1, EPS, relu=relu, own=own)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_torch_in_float64(
    shape: tuple[int, ...], affine: bool, relu: bool, vectors: str
) -> None:
    x = features(*shape)
    weight, bias = parameters(shape[1]) if affine else (None, None)
    slope = torch.randn_like(x)
    found = gradients(ours(relu), slope, x, weight, bias)
    doubles = [None if t is None else t.double() for t in (x, weight, bias)]
    wanted = gradients(lambda *a: plain(*a, relu), slope.double(), *doubles)
    assert ((found[0] - wanted[0]).abs() <= 8 * UNIT * (wanted[0].abs() + 1)).all()
    if not affine and relu:
        return  # its edge is at the mean, where values are
    assert ((found[1] - wanted[1]).abs() <= 16 * UNIT * (wanted[1].abs() + slope.abs().max() * 2)).all()
    for a, b in zip(found[2:], wanted[2:], strict=True):
        size = x.numel() / shape[1]
        assert ((a - b).abs() <= 8 * UNIT * size).all()  # the sum of |n·slope| is about that


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4, 1e6])
def test_statistics_are_exact_for_any_mean(mean: float, vectors: str) -> None:
    flat = torch.randn(5003, 7) * torch.logspace(-1, 1, 7) + mean
    flat[0] += 50  # the number that all others are compared with is far off
    found = torch.ops.sepgconv.norm_statistics(flat)
    exact = flat.double() - mean  # without its mean, since torch's own variance would lose digits, too
    assert torch.allclose(found[0] - mean, exact.mean(0), rtol=1e-12, atol=1e-9)
    assert torch.allclose(found[1], exact.var(0, correction=0), rtol=1e-11, atol=0)


@pytest.mark.usefixtures("kernels")
def test_a_large_mean_costs_no_digits() -> None:
    x = features(4, 8, 2, 6, 6, mean=30_000.0)
    weight, bias = parameters(8)
    found = native.batch_norm(x, weight, bias, (None, None), 0.1, EPS, relu=False)
    wanted = plain(x.double(), weight.double(), bias.double(), False)
    assert (found - wanted).abs().max() <= 16 * UNIT * wanted.abs().max()


@pytest.mark.usefixtures("kernels")
def test_running_statistics_follow_as_torch_has_them() -> None:
    x, mean, variance = features(3, 6, 2, 4, 4), torch.randn(6), torch.rand(6)
    wanted = mean.clone(), variance.clone()
    native.batch_norm(x, None, None, (mean, variance), 0.3, EPS)
    F.batch_norm(x.movedim(1, -1).flatten(0, -2), *wanted, None, None, True, 0.3, EPS)
    torch.testing.assert_close((mean, variance), wanted)


@pytest.mark.usefixtures("kernels")
def test_it_keeps_nothing_but_the_features(kept_bytes) -> None:
    x = features(4, 16, 8, 8, 8).requires_grad_()
    weight, bias = (t.requires_grad_() for t in parameters(16))
    assert kept_bytes(lambda: ours(True)(x, weight, bias), x, weight, bias) <= 2 * 16 * 8


@pytest.mark.usefixtures("kernels")
def test_an_own_result_has_its_gradient_written_over() -> None:
    x, slope = features(4, 16, 2, 6, 6), features(4, 16, 2, 6, 6)
    weight, bias = parameters(16)
    wanted = gradients(ours(True), slope, x, weight, bias)
    over = slope.movedim((1, 2), (-1, -2)).clone().movedim((-1, -2), (1, 2))
    found = gradients(ours(True, own=True), over, x, weight, bias)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(over, found[1])
    assert over.data_ptr() == found[1].data_ptr()


@pytest.mark.usefixtures("kernels")
def test_what_is_not_a_number_stays_so() -> None:
    x = features(2, 16, 1, 4, 4)
    x[1, 3, 0, 2, 2] = torch.nan
    found = native.batch_norm(x, None, None, (None, None), 0.1, EPS, relu=True)
    assert found[:, 3].isnan().all()
    assert not found[:, :3].isnan().any()


def test_results_do_not_depend_on_threads_or_chance(kernels, two_threads: None) -> None:
    x, slope, found = features(16, 24, 8, 14, 14), features(16, 24, 8, 14, 14), []
    weight, bias = parameters(24)
    for threads in (2, 2, 1, 3):
        torch.set_num_threads(threads)
        found.append(gradients(ours(True), slope, x, weight, bias))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("kernels")
def test_other_layouts_are_taken_and_too_few_values_refused() -> None:
    x = torch.randn(2, 5, 3, 4, 4)
    torch.testing.assert_close(ours(True)(x, None, None), plain(x, None, None, True), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(True)(torch.randn(1, 5, 1, 1, 1), None, None)


@pytest.mark.usefixtures("kernels")
def test_second_derivatives_transforms_and_compilers() -> None:
    x, slope = features(2, 4, 2, 3, 3), torch.randn(2, 4, 2, 3, 3)
    weight, bias = parameters(4)

    def loss(run):
        return lambda *leaves: (run(*leaves) * slope).pow(2).sum()

    found = torch.func.grad(loss(ours(True)), (0, 1, 2))(x, weight, bias)
    wanted = torch.func.grad(loss(lambda *a: plain(*a, True)), (0, 1, 2))(x, weight, bias)
    torch.testing.assert_close(found, wanted)
    results = []
    for run in (ours(True), lambda *a: plain(*a, True)):
        leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
        first = torch.autograd.grad(loss(run)(*leaves), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()
    compiled = torch.compile(ours(True), backend="aot_eager", fullgraph=True)
    for a, b in zip(
        gradients(compiled, slope, x, weight, bias), gradients(ours(True), slope, x, weight, bias), strict=True
    ):
        assert torch.equal(a, b)
    flat = x.movedim((1, 2), (-1, -2)).flatten(0, -2).detach().requires_grad_()
    mean, variance = torch.ops.sepgconv.norm_statistics(flat.detach())
    torch.library.opcheck(torch.ops.sepgconv.norm_statistics.default, (flat.detach(),))
    schema = ("test_schema", "test_faketensor")
    arguments = (flat, weight, bias, mean, variance, None, EPS, True, False, False)
    torch.library.opcheck(torch.ops.sepgconv.norm_result.default, arguments, test_utils=schema)
    torch.library.opcheck(
        torch.ops.sepgconv.norm_backward_.default,
        (flat.detach().clone(), flat.detach(), *arguments[1:5], *arguments[6:-1]),
        test_utils=schema,
    )


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("shape", [(4, 32, 8, 7, 7), (3, 6, 4, 5, 5), (2, 17, 1, 9)])
def test_a_sum_behind_the_norm(shape: tuple[int, ...], fixed: bool, vectors: str) -> None:
    """relu(relu(norm) + addend), with the statistics of the batch and with running ones, against float64."""
    x, slope = features(*shape), torch.randn(shape)
    weight, bias = parameters(shape[1])
    addend = torch.where(torch.rand(shape) < 0.5, -10.0, 1.0) * (torch.rand(shape) + 0.1)  # no sum is near zero
    flat = x.double().transpose(0, 1).flatten(1)
    running = (flat.mean(1).float(), flat.var(1, correction=0).float()) if fixed else (None, None)

    def compiled(x: Tensor, w: Tensor, b: Tensor, addend: Tensor) -> Tensor:
        return native.batch_norm(x, w, b, running, 0.1, EPS, batch=not fixed, relu=True, addend=addend)

    def exact(x: Tensor, w: Tensor, b: Tensor, addend: Tensor) -> Tensor:
        rows, statistics = x.movedim((1, 2), (-1, -2)), [None if t is None else t.double() for t in running]
        normal = F.batch_norm(rows.flatten(0, -2), *statistics, w, b, not fixed, 0.0, EPS).reshape(rows.shape)
        return F.relu(F.relu(normal).movedim((-1, -2), (1, 2)) + addend)

    found = gradients(compiled, slope, x, weight, bias, addend)
    wanted = gradients(exact, slope.double(), *(t.double() for t in (x, weight, bias, addend)))
    assert ((found[0] - wanted[0]).abs() <= 8 * UNIT * (wanted[0].abs() + 1)).all()
    assert ((found[1] - wanted[1]).abs() <= 16 * UNIT * (wanted[1].abs() + slope.abs().max() * 2)).all()
    for a, b in zip(found[2:4], wanted[2:4], strict=True):
        assert ((a - b).abs() <= 8 * UNIT * x.numel() / shape[1]).all()
    assert torch.equal(found[4].double(), wanted[4])
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias, addend)]
    first = torch.autograd.grad(compiled(*leaves).pow(2).sum(), leaves, create_graph=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))


def test_a_second_derivative_of_the_addend_alone() -> None:
    """Where features, weight and bias are frozen."""
    x, addend = features(2, 3, 4, 5, 5), torch.randn(2, 3, 4, 5, 5, requires_grad=True)
    weight, bias = parameters(3)
    run = (x, weight, bias, (None, None), 0.1, EPS)
    y = native.batch_norm(*run, relu=True, addend=addend.square())
    expected = F.relu(native.batch_norm(*run, relu=True) + addend.square())
    found = []
    for result in (y, expected):
        (slope,) = torch.autograd.grad(result.square().sum(), addend, create_graph=True)
        found.append([slope, *torch.autograd.grad(slope.square().sum(), addend)])
    torch.testing.assert_close(*found)
