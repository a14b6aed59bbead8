"""Groups that do not commute are exact, too: mirrors and quarter turns of the square, all rotations of the cube."""

import itertools
import os
import random

import pytest
import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.actions import pixel_map
from sepgconv.testing import assert_equivariant, equivariance_error

LAYER = {torch.float32: 2e-6, torch.float64: 1e-12}
NET = {torch.float32: 1e-5, torch.float64: 1e-11}
SMALL = sg.KernelConfig(hidden=8, layers=1)
SPOKEN = {"e2": list(sg.FACTORISATIONS), "se3": [name for name in sg.FACTORISATIONS if name != "h_separable"]}
MAKERS = {"e2": sg.e2, "se3": sg.se3}


def exact(grid: sg.Grid) -> list[Tensor]:
    """The grid's elements that map pixels to pixels, without the identity."""
    elements = grid.nominal[1:]
    return [element for element in elements if pixel_map(grid.group.matrix(element)) is not None]


def generators(grid: sg.Grid) -> list[Tensor]:
    """Few elements of which all exact ones are products: a turn and a mirror, or two turns of the cube."""
    found = exact(grid)
    if grid.space == 2:
        return [found[0], next(element for element in found if element[1] < 0)]
    return [found[3], found[-1]] if grid.size == 24 else [found[0], found[-1]]


def worst(
    module: nn.Module, x: Tensor, grid: sg.Grid, out: sg.Grid | None = None, elements: list[Tensor] | None = None
) -> float:
    chosen = generators(grid if out is None or grid.size <= out.size else out) if elements is None else elements
    report = equivariance_error(module, x, grid=grid, out_grid=out, elements=chosen)
    assert len(report.exact) == len(chosen) > 0
    return max(entry.error for entry in report)


def test_how_many_elements_are_exact() -> None:
    counts = {(name, n): len(exact(MAKERS[name](n))) + 1 for name, n in (("e2", 4), ("e2", 8), ("e2", 12), ("e2", 6))}
    counts |= {("se3", n): len(exact(sg.se3(n))) + 1 for n in (12, 24, 60)}
    assert counts == {
        ("e2", 4): 8, ("e2", 8): 8, ("e2", 12): 8, ("e2", 6): 4, ("se3", 12): 12, ("se3", 24): 24, ("se3", 60): 12,
    }  # fmt: skip


CASES = [("e2", 4, 8), ("e2", 8, 4), ("e2", 12, 8), ("se3", 24, 12)]
"""Group, count, and the other count of unequal grids."""
SAMPLE = {"one": 24, "four": 8}
"""How many of all combinations a test takes, the same in every run; `SEPGCONV_FULL=1` takes them all."""


def combinations(group: str, other: int, which: str) -> list[tuple[str, int, str, int | None]]:
    """Factorisation × kernel size × sampling × equal and unequal grids, or a sample with every factorisation in it."""
    sizes = (1, 3, 5, 7) if group == "e2" else (1, 3, 5)
    every: list[tuple[str, int, str, int | None]] = list(
        itertools.product(SPOKEN[group], sizes, ("fixed", "random"), (None, other))
    )
    if os.environ.get("SEPGCONV_FULL") == "1":
        return every
    step, count = len(every) // len(SPOKEN[group]), len(SPOKEN[group])
    draw = random.Random(f"{group} {other} {which}")
    return [
        part for n in range(count) for part in draw.sample(every[n * step : (n + 1) * step], SAMPLE[which] // 6 + 1)
    ]


def report(found: dict, title: str, limit: float) -> None:
    case = max(found, key=lambda key: found[key])
    print(f"\n{title}: {len(found)} of them, worst error {found[case]:.1e} at {case}")
    assert found[case] <= limit, case


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("group", "count", "other"), CASES)
def test_one_layer(group: str, count: int, other: int, dtype: torch.dtype) -> None:
    make, found = MAKERS[group], {}
    for size, sampling in itertools.product((1, 3, 5, 7) if group == "e2" else (1, 3, 5), ("fixed", "random")):
        grid = make(count, sampling=sampling)
        lift = sg.LiftingConv(2, 3, size, grid=grid, bias=True, kernel=SMALL).to(dtype).eval()
        grid.resample()
        x = torch.randn(1, 2, *(max(size, 4),) * grid.space, dtype=dtype)
        found["lifting", size, sampling] = worst(lift, x, grid, elements=exact(grid))
    for factorisation, size, sampling, unequal in combinations(group, other, "one"):
        grid = make(count, sampling=sampling)
        out = None if unequal is None else make(unequal, sampling=sampling)
        conv = sg.GroupConv(3, 2, size, grid=grid, out_grid=out, factorisation=factorisation, kernel=SMALL)
        conv.to(dtype).eval()
        grid.resample()
        conv.out_grid.resample()
        x = torch.randn(1, 3, grid.size, *(max(size, 4),) * grid.space, dtype=dtype)
        found[factorisation, size, sampling, unequal] = worst(conv, x, grid, conv.out_grid)
    report(found, f"{group} {count} {dtype}, layers", LAYER[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("group", "count", "other"), CASES)
def test_a_net_of_four_layers_with_a_residual_block(group: str, count: int, other: int, dtype: torch.dtype) -> None:
    make, found = MAKERS[group], {}
    for factorisation, size, sampling, unequal in combinations(group, other, "four"):
        grid = make(count, sampling=sampling)
        out = grid if unequal is None else make(unequal, sampling=sampling)
        shared = {"factorisation": factorisation, "kernel": SMALL}
        net = nn.Sequential(
            sg.LiftingConv(1, 2, size, grid=grid, kernel=SMALL),
            sg.BatchNorm(2),
            nn.ReLU(),
            sg.ResidualBlock(2, 3, size, grid=grid, out_grid=out, **shared),
            sg.SpatialPool("max", 2),
            sg.GroupConv(3, 2, size, grid=out, **shared),
            sg.BatchNorm(2),
        )
        net.to(dtype).eval()
        grid.resample()
        out.resample()
        x = torch.randn(1, 1, *(6,) * grid.space, dtype=dtype)
        found[factorisation, size, sampling, unequal] = worst(net, x, grid, out)
    report(found, f"{group} {count} {dtype}, nets", NET[dtype])


def test_all_rotations_of_the_cube_and_what_other_solids_share_with_it() -> None:
    for count in (12, 24, 60):
        grid = sg.se3(count)
        net = nn.Sequential(
            sg.LiftingConv(1, 2, 3, grid=grid, kernel=SMALL), sg.GroupConv(2, 2, 3, grid=grid, kernel=SMALL)
        )
        net.double().eval()
        grid.resample()
        assert worst(net, torch.randn(1, 1, 4, 4, 4, dtype=torch.float64), grid, elements=exact(grid)) <= 1e-12


def test_mirroring_the_input_swaps_the_halves_of_the_h_axis() -> None:
    """Spelled out once without the testing module: a left-right flip exchanges R(θ) and R(−θ) after a mirror."""
    grid = sg.e2(4)
    net = nn.Sequential(sg.LiftingConv(1, 2, 5, grid=grid), sg.GroupConv(2, 3, 5, grid=grid)).double().eval()
    x = torch.randn(1, 1, 7, 9, dtype=torch.float64)
    order = [4, 7, 6, 5, 0, 3, 2, 1]  # M·R(θ) = R(−θ)·M
    torch.testing.assert_close(net(x.flip(-1)), net(x)[:, :, order].flip(-1), atol=1e-12, rtol=0)


def test_it_would_be_noticed() -> None:
    """A shift on the left, or a mirrored half that shifts the same way, is far outside of the tolerance."""
    grid = sg.e2(4)
    conv = sg.GroupConv(2, 2, 3, grid=grid).double().eval()
    x = torch.randn(2, 2, 8, 5, 5, dtype=torch.float64)
    grid.resample()
    assert worst(conv, x, grid) <= 1e-12
    order = torch.arange(8).reshape(2, 4).flip(1).flatten()
    conv.kernel.points.copy_(conv.kernel.points[order])
    with pytest.raises(AssertionError, match="after a mirror"):
        assert_equivariant(conv, x, grid=grid)


def test_shifts_are_even_on_all_rotations_of_space() -> None:
    """The mean of an evenly drawn matrix is 0, of its trace's square 1."""
    group = sg.groups.SO3()
    matrices = group.matrix(group.exp(group.draw(torch.rand(20000, 3, dtype=torch.float64), 0.0)))
    assert matrices.mean(0).abs().max() < 4 / 3**0.5 / 20000**0.5
    traces = matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert traces.square().mean().item() == pytest.approx(1, abs=0.04)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(20000, 3, 3))


def test_a_random_grid_is_shifted_on_the_right() -> None:
    for grid in (sg.e2(4).double(), sg.se3(12).double()):
        grid.resample()
        group, ends = grid.group, grid.elements
        shift = group.product(group.inverse(grid.nominal), ends)
        torch.testing.assert_close(group.matrix(shift), group.matrix(shift[:1]).expand(grid.size, -1, -1))
        for element in exact(grid):  # maps the shifted grid to itself
            moved = group.matrix(group.product(element, ends)).flatten(1)
            assert torch.cdist(moved, group.matrix(ends).flatten(1)).amin(1).max() < 1e-7


def test_networks_are_invariant_under_mirrors_and_cube_rotations() -> None:
    net = sg.models.resnet(sg.e2(4), width=0.1, kernel=SMALL).double()
    report = assert_equivariant(net, torch.randn(2, 1, 28, 28, dtype=torch.float64), grid=sg.e2(4))
    assert len(report.exact) == 7
    assert "rotation 90° after a mirror" in str(report)
