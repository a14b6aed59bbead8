"""Quarter turns are exact: every group × factorisation × kernel size × sampling × equal and unequal grids."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.kernels import taps
from sepgconv.testing import assert_equivariant, equivariance_error

LAYER = {torch.float32: 2e-6, torch.float64: 1e-12}
NET = {torch.float32: 1e-5, torch.float64: 1e-11}
SIZES = (1, 3, 5, 7)
GROUPS = {"se2": lambda n, s: sg.se2(n, sampling=s), "sim2": lambda n, s: sg.sim2(n, 3, sampling=s)}


def turns(grid: sg.Grid) -> list[Tensor]:
    """The three quarter turns as elements of the grid's group."""
    elements = []
    for quarter in (1, 2, 3):
        vector = torch.zeros(len(grid.axes), dtype=torch.float64)
        vector[0] = quarter * torch.pi / 2
        elements.append(grid.group.exp(vector))
    return elements


def worst(module: nn.Module, x: Tensor, grid: sg.Grid, out_grid: sg.Grid | None = None) -> float:
    report = equivariance_error(module, x, grid=grid, out_grid=out_grid, elements=turns(grid))
    assert len(report.exact) == 3
    return max(entry.error for entry in report)


def cases(group: str) -> list[str]:
    return [name for name in sg.FACTORISATIONS if name != "h_separable" or group == "sim2"]


def both(module: nn.Module, x: Tensor, grid: sg.Grid, out_grid: sg.Grid | None = None) -> dict[torch.dtype, float]:
    """The worst errors in both precisions, of the same weights, each with a shift of its own."""
    errors = {}
    for dtype in (torch.float32, torch.float64):
        module.to(dtype)
        for each in (grid, out_grid or grid):
            each.resample()
        errors[dtype] = worst(module, x.to(dtype), grid, out_grid)
    return errors


@pytest.mark.parametrize("rotations", [4, 8, 12])
@pytest.mark.parametrize("group", GROUPS)
def test_one_layer(group: str, rotations: int) -> None:
    make, found = GROUPS[group], {}
    for size, sampling in itertools.product(SIZES, ("fixed", "random")):
        grid = make(rotations, sampling)
        lift = sg.LiftingConv(2, 3, size, grid=grid, bias=True).eval()
        found["lifting", size, sampling] = both(lift, torch.randn(1, 2, 9, 9), grid)
        for factorisation, other in itertools.product(cases(group), (None, 4, 8)):
            grid, out = make(rotations, sampling), None if other is None else make(other, sampling)
            conv = sg.GroupConv(3, 2, size, grid=grid, out_grid=out, factorisation=factorisation).eval()
            x = torch.randn(1, 3, grid.size, 7, 7)
            found[factorisation, size, sampling, other] = both(conv, x, grid, conv.out_grid)
    for dtype, limit in LAYER.items():
        case = max(found, key=lambda key: found[key][dtype])
        print(
            f"\n{group} {rotations} {dtype}: {len(found)} layers, worst rot90 error {found[case][dtype]:.1e} at {case}"
        )
        assert found[case][dtype] <= limit, case


def small_net(grid: sg.Grid, out: sg.Grid, size: int, factorisation: str) -> nn.Sequential:
    """Four convolutions deep, with a residual block that changes the grid."""
    return nn.Sequential(
        sg.LiftingConv(1, 3, size, grid=grid),
        sg.BatchNorm(3),
        nn.ReLU(),
        sg.ResidualBlock(3, 4, size, grid=grid, out_grid=out, factorisation=factorisation),
        sg.SpatialPool("max", 2),
        sg.GroupConv(4, 4, size, grid=out, factorisation=factorisation),
        sg.BatchNorm(4),
    )


@pytest.mark.parametrize("rotations", [4, 8, 12])
@pytest.mark.parametrize("group", GROUPS)
def test_a_net_of_four_layers_with_a_residual_block(group: str, rotations: int) -> None:
    make, found = GROUPS[group], {}
    for factorisation, size, sampling in itertools.product(cases(group), SIZES, ("fixed", "random")):
        for other in (None, 4):
            grid = make(rotations, sampling)
            out = grid if other is None else make(other, sampling)
            net = small_net(grid, out, size, factorisation).eval()
            found[factorisation, size, sampling, other] = both(net, torch.randn(2, 1, 10, 10), grid, out)
    for dtype, limit in NET.items():
        case = max(found, key=lambda key: found[key][dtype])
        print(f"\n{group} {rotations} {dtype}: {len(found)} nets, worst rot90 error {found[case][dtype]:.1e} at {case}")
        assert found[case][dtype] <= limit, case


@pytest.mark.parametrize("group", GROUPS)
def test_rectangles_turn_into_rectangles(group: str) -> None:
    grid = GROUPS[group](8, "random")
    net = small_net(grid, grid, 5, "separable").double().eval()
    grid.resample()
    assert worst(net, torch.randn(1, 1, 8, 14, dtype=torch.float64), grid) <= 1e-11
    invariant = nn.Sequential(net, sg.GroupPool("max"))
    assert_equivariant(invariant, torch.randn(1, 1, 12, 6, dtype=torch.float64), grid=grid)


def test_turning_the_input_rolls_the_h_axis() -> None:
    """Spelled out once without the testing module: rot90 of the image is rot90 of the features, rolled by n/4."""
    net = nn.Sequential(sg.LiftingConv(1, 2, 5, grid=(grid := sg.se2(8))), sg.GroupConv(2, 3, 5, grid=grid)).eval()
    x = torch.randn(1, 1, 9, 9)
    expected = torch.rot90(net(x).roll(2, dims=2), 1, (-2, -1))
    torch.testing.assert_close(net(torch.rot90(x, 1, (-2, -1))), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("factorisation", cases("sim2"))
def test_it_would_be_noticed(factorisation: str) -> None:
    """Swapping the two grids, or turning lifting and group kernels in opposite ways, is far outside the tolerance."""
    a, b = sg.sim2(4, 2), sg.sim2(8, 2)
    conv = sg.GroupConv(2, 2, 3, grid=a, out_grid=b, factorisation=factorisation).double().eval()
    with torch.no_grad():
        flipped = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        for element, points in enumerate(conv.kernel.points):  # h instead of h⁻¹: θ becomes −θ
            mirrored = taps(3, 2) * flipped
            order = [(taps(3, 2) == tap).all(-1).nonzero().item() for tap in mirrored]
            conv.kernel.points[element] = points[order] * flipped
    x = torch.randn(1, 2, a.size, 7, 7, dtype=torch.float64)
    assert worst(conv, x, a, b) > 1e-2
    with pytest.raises(AssertionError, match="rotation 90°"):
        assert_equivariant(conv, x, grid=a, out_grid=b, elements=turns(a))


@pytest.mark.parametrize("make", [sg.scale2, sg.scale1], ids=["scale2", "scale1"])
def test_point_kernels_commute_with_dilations_exactly(make) -> None:
    """A 1×1 group convolution does not see space, so moving the h axis by one scale is exact away from the ends."""
    grid = make(5, 2.0)
    conv = sg.GroupConv(2, 3, 1, grid=grid).double().eval()
    x = torch.randn(1, 2, 5, *(6, 6)[: grid.space], dtype=torch.float64)
    torch.testing.assert_close(conv(x.roll(1, 2))[:, :, 2:4], conv(x)[:, :, 1:3], atol=1e-12, rtol=1e-9)


def test_whole_models_are_invariant() -> None:
    for name, channels in (("resnet", 1), ("allcnnc", 3)):
        grid = sg.sim2(4, 2)
        model = sg.models.create(name, grid, in_channels=channels, factorisation="h_separable", width=0.25).double()
        report = assert_equivariant(model, torch.randn(2, channels, 28, 28, dtype=torch.float64), grid=grid)
        assert len(report.exact) == 3
        assert model.training
