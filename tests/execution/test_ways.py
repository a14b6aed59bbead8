"""Every way to take a stage, against the dense oracle; and whether the cheapest one is chosen."""

import itertools
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.execution import native, plan
from sepgconv.execution.plan import cheapest
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways import WAYS, Along, Band, Dihedral, Einsum, Fourier, Product, Space, general
from sepgconv.execution.ways.dihedral import dihedral_waves
from sepgconv.execution.ways.product import real_fourier
from sepgconv.grids import relative_elements

LAYERS = {
    "SE(2) 8": (lambda: sg.se2(8), "separable", {Product, Fourier, Einsum}),
    "SE(2) 5": (lambda: sg.se2(5), "separable", {Product, Fourier, Einsum}),
    "SE(2) 3": (lambda: sg.se2(3), "separable", {Product, Fourier, Einsum}),
    "SE(2) 6, per channel": (lambda: sg.se2(6), "dgseparable", {Product, Along, Einsum}),
    "SE(2) 2, x and H at once": (lambda: sg.se2(2), "dseparable", {Product, Space}),
    "scales 3, x and H at once": (lambda: sg.scale2(3), "dseparable", {Product, Space}),
    "scales 5": (lambda: sg.scale2(5), "separable", {Product, Band, Einsum}),
    "scales 6, two neighbours": (lambda: sg.scale2(6, scale_support=2), "separable", {Product, Band}),
    "scales 5, per channel": (lambda: sg.scale2(5), "dgseparable", {Product, Along, Einsum}),
    "scales 1-D": (lambda: sg.scale1(4), "separable", {Product, Band, Einsum}),
    "Sim(2) 4x3": (lambda: sg.sim2(4, 3), "separable", {Product, Fourier, Einsum}),
    "E(2) 5": (lambda: sg.e2(5), "separable", {Product, Dihedral, Einsum}),
    "E(2) 4": (lambda: sg.e2(4), "h_separable", {Product, Dihedral, Einsum}),
    "E(2) 3, per channel": (lambda: sg.e2(3), "dgseparable", {Product, Einsum}),
    "SE(3) 12": (lambda: sg.se3(12), "separable", {Product, Einsum}),
    "Sim(2) 5x4, h": (lambda: sg.sim2(5, 4), "h_separable", {Product, Band, Along, Einsum}),
}


def prefer(way: type):
    """A chooser that takes one way wherever it fits, factor by factor."""

    def choose(contraction: Contraction, sizes: Sizes, kind: str):
        return way(contraction, sizes) if way.fits(contraction, sizes) else cheapest(contraction, sizes, kind)

    return mock.patch.multiple(plan, cheapest=choose, joined=lambda steps: steps)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("two_grids", [False, True], ids=["one shift", "two shifts"])
def test_every_way_gives_the_dense_result_and_gradients(name: str, two_grids: bool) -> None:
    make, factorisation, expected = LAYERS[name]
    seen: set[type] = set()
    for (dtype, tolerance), size in itertools.product(((torch.float32, 1e-5), (torch.float64, 1e-10)), (1, 5)):
        grid = make()
        layer = sg.GroupConv(
            3, 4, size, grid=grid, out_grid=make() if two_grids else None, factorisation=factorisation, bias=True
        ).to(dtype)
        nn.init.normal_(layer.bias)
        layer.eval()
        for g in (layer.grid, layer.out_grid):
            g.offset.uniform_(0, 0.3)
        x = torch.randn(2, 3, grid.size, *(7, 6, 5)[: grid.space], dtype=dtype, requires_grad=True)

        def run(execution: str, layer=layer, x=x) -> list[Tensor]:
            layer.execution = execution
            y = layer(x)
            direction = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
            return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], direction)]

        oracle = run("dense")
        for way in WAYS:
            with prefer(way):
                layer.execution, layer._planned = "structured", ()
                if not any(type(step) is way for step in layer.plan.steps):
                    continue
                seen.add(way)
                for a, b in zip(run("structured"), oracle, strict=True):
                    assert (a - b).abs().max() <= tolerance * b.abs().max().clamp_min(1e-3), (way, dtype, size)
    assert expected <= seen


@pytest.mark.skipif(not native.status().active, reason="for compiled kernels only")
@pytest.mark.parametrize("elements", [2, 3])
@pytest.mark.parametrize(("stride", "padding"), [(1, "same"), (2, "same"), (1, "valid")])
def test_groups_of_few_channels_are_convolved_by_offset(elements: int, stride: int, padding: str) -> None:
    """Depthwise convolutions of shifted elements give what one grouped convolution gives."""
    settings = {"factorisation": "dseparable", "stride": stride, "padding": padding, "execution": "structured"}
    layer = sg.GroupConv(3, 4, 5, grid=sg.se2(elements), bias=True, **settings).eval()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 3, elements, 9, 7, requires_grad=True)

    def run() -> list[Tensor]:
        y = layer(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    with mock.patch.object(general, "by_offset", wraps=general.by_offset) as called:
        found = run()
    assert called.call_count == 1
    with mock.patch.object(general, "FEW", 0):
        grouped = run()
    for a, b in zip(found, grouped, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 12, 16])
def test_real_fourier_basis_is_orthonormal_and_makes_blocks_of_circulants(count: int) -> None:
    basis = torch.tensor(real_fourier(count), dtype=torch.float64)
    assert len(basis) == count + count % 2
    torch.testing.assert_close(basis.t() @ basis, torch.eye(count, dtype=torch.float64))
    values = torch.randn(count, dtype=torch.float64)
    circulant = torch.stack([values.roll(shift) for shift in range(count)])
    blocks = (basis @ circulant @ basis.t()).reshape(len(basis) // 2, 2, len(basis) // 2, 2)
    for a, b in itertools.permutations(range(len(blocks)), 2):
        assert blocks[a, :, b].abs().max() < 1e-12


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_the_dihedral_basis_is_orthonormal_and_makes_blocks_of_the_table(count: int) -> None:
    basis = torch.tensor(dihedral_waves(count), dtype=torch.float64)
    basis = basis / basis.norm(dim=1, keepdim=True)
    torch.testing.assert_close(basis @ basis.t(), torch.eye(2 * count, dtype=torch.float64))
    axis = sg.e2(count).axes[0]
    table = torch.randn(2 * count, dtype=torch.float64)[relative_elements(axis, axis).index]
    blocks = (basis @ table @ basis.t()).reshape(count, 2, count, 2)
    for a, b in itertools.permutations(range(count), 2):
        assert blocks[a, :, b].abs().max() < 1e-12


def ways(layer: sg.GroupConv) -> list[type]:
    return [type(step) for step in layer.plan.steps]


def test_what_is_chosen_for_the_papers_layers() -> None:
    assert ways(sg.GroupConv(32, 32, 7, grid=sg.se2(8))) == [Fourier, Space]
    assert ways(sg.GroupConv(32, 32, 7, grid=sg.scale2(8))) == [Band, Space]
    assert ways(sg.GroupConv(32, 32, 7, grid=sg.e2(8))) == [Dihedral, Space]
    sim2 = sg.GroupConv(32, 32, 7, grid=sg.sim2(8, 8), factorisation="h_separable")
    assert ways(sim2) == [Band, Along, Space]
    one_tap = sg.GroupConv(32, 64, 1, grid=sg.se2(8))  # nothing is left for space
    assert ways(one_tap) == ([Fourier] if native.status().active else [Space])


@pytest.mark.parametrize("n", [8, 16, 32])
def test_multiply_adds_over_rotations(n: int) -> None:
    """The n² products i×j of k_H become n/2 blocks 2i×2j, and two transforms that do not mix channels."""
    layer = sg.GroupConv(32, 64, 7, grid=sg.se2(n))
    space, blocks, transforms = n * 49 * 64, n / 2 * 4 * 32 * 64, n * n * (32 + 64)
    assert layer.plan.multiply_adds() == blocks + transforms + space
    assert Product(layer.plan.steps[0].contraction, layer.plan.sizes).work == n * n * 32 * 64
    mirrored = sg.GroupConv(32, 64, 7, grid=sg.e2(n // 2))  # as many elements, as much work
    assert mirrored.plan.multiply_adds() == layer.plan.multiply_adds()


TABLE = [
    # in, out, kernel, grid, factorisation, image, and what was within 15 % of the quicker one when both were timed
    (16, 16, 5, lambda: sg.se2(8), "separable", 20, "structured"),
    (32, 32, 7, lambda: sg.se2(4), "separable", 14, "structured"),
    (16, 32, 3, lambda: sg.scale2(8), "separable", 20, "structured"),
    (8, 8, 3, lambda: sg.se2(4), "nonseparable", 14, "dense"),
    (16, 16, 5, lambda: sg.sim2(4, 3), "h_separable", 14, "structured"),
    (16, 16, 1, lambda: sg.se2(8), "separable", 20, "structured" if native.status().active else "dense"),
    (4, 4, 3, lambda: sg.se2(2), "separable", 14, "dense"),
    (8, 8, 5, lambda: sg.se2(4), "gseparable", 14, "dense"),
    (16, 16, 5, lambda: sg.se2(4), "dseparable", 14, "structured"),
    (32, 32, 5, lambda: sg.translation2(), "nonseparable", 14, "dense"),
    (32, 32, 5, lambda: sg.translation2(), "separable", 14, "structured"),
]


@pytest.mark.parametrize("row", TABLE, ids=[f"{r[4]}-{r[0]}-{r[1]}-{r[2]}-{r[3]().size}" for r in TABLE])
def test_the_quicker_execution_is_chosen(row) -> None:
    """By counting; `sepgconv bench` measures."""
    i, j, size, make, factorisation, _, quicker = row
    layer = sg.GroupConv(i, j, size, grid=make(), factorisation=factorisation)
    assert layer.plan.execution == quicker
