"""The compiled depthwise convolution against torch's in float64, with error bounds instead of tolerances.

A float32 sum of n products in whatever order is off by at most n·u·Σ|product| to first order, where u = 2⁻²⁴. The
bounds below are that, with n + 2 for the higher orders and the last rounding.
"""

import os
import signal
import time

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.nn import functional as F

from sepgconv.execution import native

UNIT = 2.0**-24
SHAPES = {  # batch, channels, image, kernel, stride, padding
    "same 7": ((2, 32, 28, 28), (7, 7), 1, (3, 3)),
    "same 3": ((3, 16, 14, 14), (3, 3), 1, (1, 1)),
    "same 5, tail of 1": ((2, 17, 9, 11), (5, 5), 1, (2, 2)),
    "few channels": ((3, 6, 7, 7), (7, 7), 1, (3, 3)),
    "one channel": ((2, 1, 10, 6), (3, 3), 1, (1, 1)),
    "valid": ((2, 20, 9, 9), (3, 3), 1, (0, 0)),
    "wide padding": ((1, 18, 5, 4), (3, 3), 1, (4, 5)),
    "9": ((1, 8, 12, 13), (9, 9), 1, (4, 4)),
    "11": ((1, 24, 12, 22), (11, 11), 1, (5, 5)),
    "13": ((1, 16, 13, 6), (13, 13), 1, (6, 6)),
    "15": ((2, 16, 16, 16), (15, 15), 1, (7, 7)),
    "even kernel": ((2, 16, 8, 8), (4, 2), 1, (1, 1)),
    "one tap": ((2, 16, 6, 5), (1, 1), 1, (0, 0)),
    "along 8 rotations": ((2, 32, 30, 8), (1, 15), 1, (0, 7)),
    "along 12 rotations": ((2, 5, 7, 12), (1, 23), 1, (0, 11)),
    "along 32 rotations": ((1, 33, 9, 32), (1, 63), 1, (0, 31)),
    "stride 2": ((2, 17, 14, 14), (7, 7), 2, (3, 3)),
    "stride 2, odd image": ((2, 32, 15, 9), (3, 3), 2, (1, 1)),
    "stride 2, one tap": ((2, 16, 6, 5), (1, 1), 2, (0, 0)),
    "stride 3": ((1, 16, 11, 10), (5, 5), 3, (2, 2)),
    "stride over the image": ((1, 16, 4, 3), (3, 3), 5, (1, 1)),
    "smallest": ((1, 16, 4, 4), (3, 3), 1, (1, 1)),
    "large: bands of rows": ((1, 16, 224, 224), (3, 3), 1, (1, 1)),
    "large, stride 2": ((1, 3, 131, 130), (7, 7), 2, (3, 3)),
}


@pytest.fixture(params=SHAPES.values(), ids=list(SHAPES))
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, int, tuple[int, int]]:
    shape, kernel, stride, padding = request.param
    b, c, *space = shape
    return torch.randn(b, *space, c).movedim(-1, 1), torch.randn(c, 1, *kernel), stride, padding


def stock(x: Tensor, weight: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
    return F.conv2d(x, weight, None, stride, padding, 1, len(weight))


def gradients(run, x: Tensor, weight: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = run(x, weight)
    return y.detach(), *torch.autograd.grad(y, (x, weight), slope)


def test_values_and_gradients_are_those_of_torch_in_float64(case, vectors: str) -> None:
    x, weight, stride, padding = case
    y = native.depthwise(x, weight, stride, padding)
    slope = torch.randn_like(y)
    found = gradients(lambda a, w: native.depthwise(a, w, stride, padding), x, weight, slope)
    wanted = gradients(lambda a, w: stock(a, w, stride, padding), x.double(), weight.double(), slope.double())
    sizes = gradients(
        lambda a, w: stock(a, w, stride, padding), x.abs().double(), weight.abs().double(), slope.abs().double()
    )
    terms = (weight[0].numel(), weight[0].numel(), y[:, 0].numel())
    for result, exact, size, count in zip(found, wanted, sizes, terms, strict=True):
        assert result.shape == exact.shape
        assert ((result - exact).abs() <= (count + 2) * UNIT * size).all()
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert native.depthwise(x, weight, stride, padding).grad_fn is None


def test_widths_of_vectors_differ_by_rounding_only(kernels) -> None:
    x, weight = torch.randn(2, 20, 20, 12, 12)[0], torch.randn(20, 1, 7, 7)
    best, found = kernels.sepgconv_vectors(), {}
    for name in ("base", "avx2", "avx512"):
        if not kernels.sepgconv_use_vectors(name.encode()):
            found[name] = native.depthwise(x, weight, 1, (3, 3))
    kernels.sepgconv_use_vectors(best)
    bound = 2 * 51 * UNIT * stock(x.abs(), weight.abs(), 1, (3, 3))
    for result in found.values():
        assert ((result - found["base"]).abs() <= bound).all()
    if {"avx2", "avx512"} <= found.keys():
        assert torch.equal(found["avx2"], found["avx512"])  # same order of sums, same fused products


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", ["planes", "every other pixel", "turned kernel", "expanded"])
def test_any_layout_is_taken(layout: str) -> None:
    x, weight = torch.randn(2, 18, 10, 12), torch.randn(18, 1, 5, 5)
    if layout == "every other pixel":
        x = torch.randn(2, 20, 12, 36).movedim(-1, 1)[:, ::2, ::2]
    if layout == "turned kernel":
        weight = torch.randn(5, 5, 1, 18).permute(3, 2, 1, 0)
    if layout == "expanded":
        x, weight = torch.randn(1, 1, 10, 12).expand(2, 18, -1, -1), torch.randn(1, 1, 5, 5).expand(18, -1, -1, -1)
    slope = torch.randn(2, 18, 12, 10).mT
    slope = slope[..., : x.shape[2], : x.shape[3]]
    found = gradients(lambda a, w: native.depthwise(a, w, 1, (2, 2)), x, weight, slope)
    wanted = gradients(lambda a, w: stock(a, w, 1, (2, 2)), x.double(), weight.double(), slope.double())
    for result, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_an_empty_batch_has_an_empty_result_and_no_gradient_of_the_kernel() -> None:
    x, weight = torch.randn(0, 16, 6, 6), torch.randn(16, 1, 3, 3)
    slope = torch.randn(0, 16, 6, 6)
    y, dx, dw = gradients(lambda a, w: native.depthwise(a, w, 1, (1, 1)), x, weight, slope)
    assert y.shape == dx.shape == (0, 16, 6, 6)
    assert torch.equal(dw, torch.zeros_like(weight))


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.randn(1, 16, 9, 9), torch.randn(16, 1, 5, 5)
    wrong = {
        "kernel larger than the image": lambda: native.depthwise(x[..., :3], weight),
        "other channels": lambda: native.depthwise(x[:, :15], weight),
        "no stride": lambda: native.depthwise(x, weight, 0),
        "padding": lambda: native.depthwise(x, weight, 1, (-1, 0)),
        "bias": lambda: native.depthwise(x, weight, bias=torch.randn(15)),
        "addend": lambda: native.depthwise(x, weight, addend=x),
    }
    for name, call in wrong.items():
        with torch.no_grad(), pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):
            pytest.fail(f"{name}: {call().shape}")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("channels", [16, 35])
@pytest.mark.parametrize("grads", [True, False])
def test_bias_relu_and_addend_follow(channels: int, grads: bool, vectors: str) -> None:
    x, weight = torch.randn(2, channels, 9, 10), torch.randn(channels, 1, 3, 3)
    bias, addend = torch.randn(channels), torch.randn(2, channels, 9, 10)
    weight.requires_grad_(grads)
    convolved = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1, groups=channels)
    for relu, more in ((False, None), (True, None), (True, addend), (False, addend)):
        wanted = convolved.relu() if relu else convolved
        wanted = wanted if more is None else (wanted + more).relu()
        with torch.set_grad_enabled(grads):
            found = native.depthwise(x, weight, 1, (1, 1), bias, relu=relu, addend=more)
        assert (found - wanted).abs().max() < 4e-6
        assert found.requires_grad == grads


@pytest.mark.usefixtures("kernels")
def test_an_infinite_pixel_reaches_its_neighbours_only() -> None:
    x, weight = torch.randn(1, 16, 12, 30), torch.randn(16, 1, 1, 15)
    x[0, 3, 5, 20] = torch.inf
    y = native.depthwise(x, weight, 1, (0, 7))
    reached = torch.zeros(1, 16, 12, 30, dtype=torch.bool)
    reached[0, 3, 5, 13:28] = True
    assert torch.equal(y.isinf(), reached)
    assert not y.isnan().any()


def test_results_do_not_depend_on_threads_or_chance(kernels, two_threads: None) -> None:
    x, weight = torch.randn(5, 40, 28, 28), torch.randn(40, 1, 7, 7)
    slope, found = torch.randn(5, 40, 28, 28), []
    for threads in (2, 2, 1, 3):
        torch.set_num_threads(threads)
        found.append(gradients(lambda a, w: native.depthwise(a, w, 1, (3, 3)), x, weight, slope))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_computes_the_same(kernels, two_threads: None) -> None:
    x, weight = torch.randn(4, 32, 14, 14), torch.randn(32, 1, 5, 5)
    wanted = native.depthwise(x, weight, 1, (2, 2))
    child = os.fork()
    if not child:  # a pool of threads is lost in a fork: whoever waits for it waits for ever
        os._exit(0 if torch.equal(native.depthwise(x, weight, 1, (2, 2)), wanted) else 1)
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("kernels")
def test_second_derivatives_and_transforms_take_the_plain_way() -> None:
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(3, 1, 3, 3)
    slope = torch.randn(2, 3, 5, 5)

    def loss(run):
        return lambda a, w: (run(a, w, 1, (1, 1)) * slope).pow(2).sum()

    found = torch.func.grad(loss(native.depthwise), (0, 1))(x, weight)
    wanted = torch.func.grad(loss(stock), (0, 1))(x, weight)
    torch.testing.assert_close(found, wanted)
    several = torch.func.vmap(lambda w: native.depthwise(x, w, 1, (1, 1)))(weight.expand(2, -1, -1, -1, -1))
    torch.testing.assert_close(several[1], stock(x, weight, 1, (1, 1)))
    along = torch.func.jvp(lambda a: native.depthwise(a, weight, 1, (1, 1)), (x,), (slope,))[1]
    torch.testing.assert_close(along, stock(slope, weight, 1, (1, 1)))
    found, wanted = ([], [])
    for run, dtype, into in ((native.depthwise, torch.float32, found), (stock, torch.float64, wanted)):
        leaves = [t.to(dtype).detach().requires_grad_() for t in (x, weight)]
        slope = slope.to(dtype)
        first = torch.autograd.grad(loss(run)(*leaves), leaves, create_graph=True)
        into.extend(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    doubles = x.detach()[:1, :2].double().requires_grad_(), weight.detach()[:2].double().requires_grad_()
    assert gradgradcheck(lambda a, w: native.depthwise(a, w, 1, (1, 1)), doubles)


@pytest.mark.usefixtures("kernels")
def test_a_compiler_sees_one_operator_with_a_gradient() -> None:
    x, weight = torch.randn(2, 16, 8, 8), torch.randn(16, 1, 3, 3)
    slope, seen = torch.randn(2, 16, 4, 4), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def run(a: Tensor, w: Tensor) -> Tensor:
        return native.depthwise(a, w, 2, (1, 1))

    torch.compile(run, backend=backend, fullgraph=True)(x, weight)
    assert seen == ["sepgconv.depthwise.default"]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(compiled, x, weight, slope), gradients(run, x, weight, slope), strict=True):
        assert torch.equal(a, b)
    slopes = torch.compile(torch.func.grad(lambda a: run(a, weight).pow(2).sum()), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(slopes(x), torch.func.grad(lambda a: stock(a, weight, 2, (1, 1)).pow(2).sum())(x))
    arguments = (x.requires_grad_(), weight.requires_grad_(), None, None, 2, 1, 1, False)
    torch.library.opcheck(torch.ops.sepgconv.depthwise.default, arguments)


@pytest.mark.usefixtures("kernels")
def test_an_exported_program_holds_stock_operations() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return native.depthwise(x, torch.ones(16, 1, 3, 3), 1, (1, 1))

    program = torch.export.export(Layer(), (torch.randn(1, 16, 6, 6),))
    assert not [node for node in program.graph.nodes if "sepgconv" in str(node.target)]


@pytest.mark.usefixtures("kernels")
def test_autocast_has_its_own_way() -> None:
    x, weight = torch.randn(1, 16, 6, 6), torch.randn(16, 1, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert native.depthwise(x, weight, 1, (1, 1)).dtype == torch.bfloat16
