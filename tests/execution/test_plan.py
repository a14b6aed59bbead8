"""Both executions against each other, and against the definition written out as sums."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.execution import native, plan
from sepgconv.execution.plan import contractions, joined
from sepgconv.execution.ways import WAYS
from sepgconv.kernels import ball


def by_definition(layer: sg.GroupConv, f: Tensor) -> Tensor:
    """Σ_x̃ Σ_h̃ f(x̃, h̃) · k(h⁻¹(x̃ − x), h⁻¹h̃) / |det h|, pair by pair, from nothing but the kernel networks."""
    kernel, group = layer.kernel, layer.grid.group
    size, reach = layer.kernel_size, layer.kernel_size // 2
    h_in, h_out = layer.grid.elements, layer.out_grid.elements
    out = torch.zeros(len(f), layer.out_channels, len(h_out), *f.shape[3:], dtype=f.dtype)
    radius = (size + 1) / 2 / layer.grid.widening
    padded = torch.nn.functional.pad(f, (reach,) * 4)
    for (o, h), (n, g) in itertools.product(enumerate(h_out), enumerate(h_in)):
        relative = group.log(group.product(group.inverse(h), g))
        inside, volume, columns = True, 1.0, []
        for value, axis in zip(relative, layer.grid.axes, strict=True):
            if axis.support is not None:
                inside &= abs(value.item()) <= axis.support * (1 + 1e-5)
            scale = axis.support or math.pi
            value = torch.where(value < -math.pi + 1e-6, value + 2 * math.pi, value) if axis.support is None else value
            volume *= axis.cell / axis.support if axis.support else 1 / axis.count
            columns.append(value / scale)
        if not inside:
            continue
        for dy, dx in itertools.product(range(size), range(size)):
            x = torch.tensor([dx - reach, -(dy - reach)], dtype=f.dtype)
            local = group.matrix(group.inverse(h)) @ x / radius
            weight = ball(local.norm(), min(1 / radius, 1.0))
            if size > 1:
                weight = weight / group.det(h)
            k = torch.ones(layer.in_channels, layer.out_channels, dtype=f.dtype) * weight * volume * kernel.gain
            for factor, network in zip(kernel.factors, kernel.networks, strict=True):
                seen = factor.coordinates.split()
                row = list(local) if "x" in seen else []
                row += [c for c, name in zip(columns, kernel.names, strict=True) if name in seen]
                values = network(torch.stack(row)[None] if row else f.new_zeros(1, 0))
                widths = [
                    layer.in_channels if "i" in factor.channels else 1,
                    layer.out_channels if "j" in factor.channels else 1,
                ]
                k = k * values.reshape(widths)
            patch = padded[:, :, n, dy : dy + f.shape[3], dx : dx + f.shape[4]]
            out[:, :, o] += torch.einsum("bcyx,cd->bdyx", patch, k)
    return out


CASES = {
    "se2": lambda: (sg.se2(4), None),
    "se2 unequal": lambda: (sg.se2(4), sg.se2(6)),
    "scale2": lambda: (sg.scale2(3, 2.0), None),
    "scale2 unequal": lambda: (sg.scale2(3, 2.0), sg.scale2(2, 2.0)),
    "sim2": lambda: (sg.sim2(2, 3, 2.0), None),
    "sim2 unequal": lambda: (sg.sim2(4, 2, 2.0), sg.sim2(2, 3, 2.0)),
    "translation2": lambda: (sg.translation2(), None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 3])
def test_dense_is_the_definition(case: str, size: int) -> None:
    for factorisation in ("nonseparable", "separable", "h_separable", "dgseparable"):
        grid, out_grid = CASES[case]()
        if factorisation == "h_separable" and not case.startswith("sim2"):
            continue
        layer = sg.GroupConv(2, 3, size, grid=grid, out_grid=out_grid, factorisation=factorisation, execution="dense")
        layer.double().eval()
        for g in (layer.grid, layer.out_grid):
            g.resample()  # different shifts on the two grids
        f = torch.randn(1, 2, grid.size, 4, 5, dtype=torch.float64)
        with torch.no_grad():
            assert_close(layer(f), by_definition(layer, f), atol=1e-11, rtol=1e-9)


TABLES = {
    **{name: name for name in sg.FACTORISATIONS},
    "only x": (sg.Factor("x", "ij"),),
    "i then j": (sg.Factor("h", "i"), sg.Factor("x", "j")),
    "i late": (sg.Factor("h", "j"), sg.Factor("x", "ij")),
    "two of h": (sg.Factor("h", "ij"), sg.Factor("h", "j"), sg.Factor("x", "j")),
    "two of x": (sg.Factor("h", "ij"), sg.Factor("x", "j"), sg.Factor("x", "")),
    "no x": (sg.Factor("h", "ij"),),
    "constants": (sg.Factor("", "i"), sg.Factor("", "ij"), sg.Factor("x h", "j")),
    "rotation first": (sg.Factor("rotation", "ij"), sg.Factor("scale", "j"), sg.Factor("x", "j")),
    "x with scale": (sg.Factor("rotation", "ij"), sg.Factor("x scale", "j")),
    "x with rotation": (sg.Factor("scale", "ij"), sg.Factor("x rotation", "j")),
}
GRIDS = {
    "se2": (lambda: sg.se2(8), lambda: sg.se2(4)),
    "scale2": (lambda: sg.scale2(4), lambda: sg.scale2(3)),
    "sim2": (lambda: sg.sim2(4, 3), lambda: sg.sim2(2, 4)),
    "translation2": (sg.translation2, sg.translation2),
    "scale1": (lambda: sg.scale1(4), lambda: sg.scale1(3)),
    "translation3": (lambda: sg.Grid(3), lambda: sg.Grid(3)),
}


@pytest.mark.parametrize("group", GRIDS)
@pytest.mark.parametrize("table", TABLES)
def test_structured_equals_dense_with_gradients(group: str, table: str) -> None:
    make, make_other = GRIDS[group]
    if table == "h_separable" and group != "sim2":
        pytest.skip("needs a product group")
    needs_parts = [f.coordinates for f in TABLES[table]] if not isinstance(TABLES[table], str) else []
    if any("rotation" in c or "scale" in c for c in needs_parts) and group != "sim2":
        pytest.skip("names parts that only a product group has")
    sizes = (1, 3, 5, 7) if group != "translation3" else (1, 3)
    for size, unequal, (dtype, tolerance) in itertools.product(
        sizes, (False, True), ((torch.float32, 1e-5), (torch.float64, 1e-10))
    ):
        grid = make()
        layer = sg.GroupConv(
            3, 9, size, grid=grid, out_grid=make_other() if unequal else None, factorisation=TABLES[table]
        )
        layer.to(dtype).eval()
        layer.grid.resample()
        layer.out_grid.resample()
        x = torch.randn(2, 3, grid.size, *(7, 6, 5)[: grid.space], dtype=dtype)
        results = {}
        for execution in ("dense", "structured"):
            layer.execution = execution
            layer.zero_grad()
            f = x.clone().requires_grad_()
            y = layer(f)
            (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)).sum().backward()
            grads = torch.cat([p.grad.flatten() for p in layer.parameters()])
            results[execution] = [y.detach(), f.grad, grads]
        for a, b in zip(results["dense"], results["structured"], strict=True):
            assert (a - b).abs().max() <= tolerance * a.abs().max(), (size, unequal, dtype)


@pytest.mark.filterwarnings("ignore::sepgconv.EquivarianceWarning")
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_executions_agree_on_stride_padding_and_bias(stride: int, padding) -> None:
    grid = sg.se2(4)
    layer = sg.GroupConv(2, 4, 3, grid=grid, stride=stride, padding=padding, bias=True).double().eval()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(1, 2, 4, 13, 7, dtype=torch.float64)
    layer.execution = "dense"
    dense = layer(x)
    layer.execution = "structured"
    assert_close(layer(x), dense, atol=1e-12, rtol=1e-10)
    pad = {"same": 1, "valid": 0}.get(padding, padding)
    assert dense.shape[3:] == tuple((n + 2 * pad - 3) // stride + 1 for n in (13, 7))


def test_plan_of_the_separable_kernel() -> None:
    layer = sg.GroupConv(2, 4, 3, grid=sg.sim2(4, 3), factorisation="h_separable")
    assert [contraction[1:] for contraction in contractions(layer.kernel.terms)] == [
        ((1,), False, "i", "j"),
        ((0,), False, "j", "j"),
        ((), True, "j", "j"),
    ]


def test_sums_over_the_subgroup_joined() -> None:
    layer = sg.GroupConv(2, 4, 3, grid=sg.sim2(4, 3), factorisation="h_separable")
    apart = contractions(layer.kernel.terms)
    at_once, space = joined(apart)
    assert at_once[1:] == ((0, 1), False, "i", "j")
    assert sorted(at_once.terms) == sorted(apart[0].terms + apart[1].terms)
    assert space == apart[-1]
    whole = contractions(sg.GroupConv(2, 4, 3, grid=sg.se2(4)).kernel.terms)
    assert joined(whole) == whole
    by_pairs = contractions(sg.GroupConv(2, 4, 3, grid=sg.se2(4), factorisation="gseparable").kernel.terms)
    assert joined(by_pairs) == by_pairs  # i is summed over with space


@pytest.mark.parametrize("channels", [(3, 5), (8, 8), (40, 24)])
@pytest.mark.parametrize("table", ["h_separable", "dgseparable", "rotation first"])
def test_every_order_and_way_gives_the_same(channels: tuple[int, int], table: str) -> None:
    layer = sg.GroupConv(*channels, 3, grid=sg.sim2(4, 3), factorisation=TABLES[table], execution="dense").eval()
    x = torch.randn(2, channels[0], 12, 6, 5)
    expected, sizes, values = layer(x), layer.plan.sizes, layer.kernel()
    tried = 0
    for order in {contractions(layer.kernel.terms), joined(contractions(layer.kernel.terms))}:
        choices = [[way(step, sizes) for way in WAYS if way.fits(step, sizes)] for step in order]
        for steps in itertools.product(*choices):
            chosen = plan.Plan(steps, sizes)
            found = chosen.run(x, chosen.prepare(values), native=native.applies(x))
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max(), str(chosen)
            tried += 1
    assert tried >= 4


@pytest.mark.parametrize("factorisation", ["nonseparable", "separable", "gseparable"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_translation_is_the_plain_convolution(factorisation: str, size: int) -> None:
    """With a trivial H the layer is conv2d with the sampled kernel, bit for bit."""
    layer = sg.GroupConv(3, 4, size, grid=sg.translation2(), factorisation=factorisation, execution="dense")
    x = torch.randn(2, 3, 1, 10, 11)
    weight = math.prod(layer.kernel())  # k i j
    weight = weight.reshape(size, size, 3, 4).permute(3, 2, 0, 1)
    expected = torch.nn.functional.conv2d(x[:, :, 0], weight, padding=size // 2)
    if factorisation == "nonseparable":
        layout = torch.channels_last
        same_layout = torch.nn.functional.conv2d(
            x[:, :, 0].contiguous(memory_format=layout),
            weight.contiguous(memory_format=layout),
            padding=size // 2,
        )
        assert torch.equal(layer(x)[:, :, 0], same_layout)
    assert_close(layer(x)[:, :, 0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("grid", [sg.se2(4, sampling="fixed"), sg.sim2(4, 3, sampling="fixed")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_convolving_in_pieces_changes_nothing(
    grid: sg.Grid, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    factorisation = "separable" if len(grid.axes) == 1 else "h_separable"
    conv = sg.GroupConv(3, 4, size, grid=grid, factorisation=factorisation, execution="structured", bias=True).to(dtype)
    torch.nn.init.normal_(conv.bias)
    x = torch.randn(5, 3, grid.size, 6, 6, dtype=dtype, requires_grad=True)
    found = []
    for large, piece in ((1 << 28, 1 << 26), (0, x.nbytes // 3)):
        monkeypatch.setattr(plan, "LARGE", large)
        monkeypatch.setattr(plan, "PIECE", piece)
        y = conv(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, *conv.parameters()])))
    for whole, pieces in zip(*found, strict=True):
        assert (pieces - whole).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-12) * whole.abs().max()


def test_saving_memory_takes_smaller_features_in_pieces() -> None:
    conv = sg.GroupConv(32, 32, 3, grid=sg.se2(8))
    rows = torch.empty(1).expand(64, 28, 28, 8, 48)  # 77 MB, none of which is there
    assert conv.plan._pieces(rows, plan.LARGE) == 1
    assert conv.plan._pieces(rows, plan.SAVING) == 2
