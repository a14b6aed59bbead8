"""Features between the elements of a grid: interpolated along h by waves and by cubics."""

import math

import pytest
import torch
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.actions import act
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.grids._between import circle_matrix, line_matrix, move_between
from sepgconv.testing import elements_at, equivariance_error


@pytest.mark.parametrize(
    ("grid", "name", "value"),
    [
        (sg.se2(5), "rotation", 72),
        (sg.se2(8), "rotation", 45),
        (sg.e2(8), "rotation", 135),
        (sg.sim2(8, 3), "rotation", 90),
        (sg.scale2(4, 8.0), "scale", 2.0),
    ],
    ids=str,
)
def test_the_grids_own_elements_permute_the_features(grid: sg.Grid, name: str, value: float) -> None:
    """Features that do not vary over space show the h axis alone."""
    x = torch.randn(2, 3, grid.size, 1, 1, dtype=torch.float64).expand(2, 3, grid.size, 9, 9)
    (element,) = elements_at(grid, name, [value])
    moved, valid = act(x, element, grid)
    found, also = move_between(x, element, grid)
    assert valid is not None
    assert torch.equal(valid, also)
    assert_close(found[:, :, valid, 4, 4], moved[:, :, valid, 4, 4])


def test_waves_are_exact_for_what_a_circle_can_hold() -> None:
    cells = torch.arange(8, dtype=torch.float64)
    places = torch.tensor([0.3, 2.5, 7.9], dtype=torch.float64)
    for wave in range(4):
        values = torch.cos(2 * math.pi * wave * cells / 8 + 0.7)
        assert_close(circle_matrix(8, places) @ values, torch.cos(2 * math.pi * wave * places / 8 + 0.7))


def test_cubics_are_exact_for_cubics_and_nothing_is_known_outside() -> None:
    cells = torch.arange(6, dtype=torch.float64)
    places = torch.tensor([0.0, 0.4, 2.5, 4.9, -0.5, 5.5], dtype=torch.float64)
    found = line_matrix(6, places) @ (cells**3 - 2 * cells)
    assert_close(found[:4], (places**3 - 2 * places)[:4])
    assert (found[4:] == 0).all()


def test_two_half_turns_of_features_are_a_whole_one() -> None:
    """Where features hold no wave that the grid cannot, moves between its elements compose like the group."""
    grid = sg.se2(8)
    random = torch.Generator().manual_seed(0)
    angles = 2 * math.pi * torch.arange(8, dtype=torch.float64) / 8
    x = sum(
        torch.randn(2, 3, 1, 1, 1, generator=random, dtype=torch.float64) * torch.cos(m * angles + m)[:, None, None]
        for m in range(4)
    )
    half, whole = elements_at(grid, "rotation", [11.25, 22.5])
    twice = move_between(move_between(x, half, grid)[0], half, grid)[0]
    assert_close(twice, move_between(x, whole, grid)[0])


def test_a_group_convolution_commutes_with_turns_between_its_rotations() -> None:
    """From features to features, both of them read between the rotations."""
    torch.manual_seed(0)
    grid = sg.se2(16, sampling="fixed")
    kernel = sg.KernelConfig(omega0=2.0, cutoff=0.3)
    lift = sg.LiftingConv(1, 2, 9, grid=grid, kernel=kernel).double().eval()
    conv = sg.GroupConv(2, 2, 9, grid=grid, kernel=kernel).double().eval()
    with torch.no_grad():
        features = lift(smooth_image())
    between, on = equivariance_error(conv, features, grid=grid, angles=(11.25, 22.5))
    assert between.error < 1e-2
    assert on.error < 1e-2
    with torch.no_grad():  # as if 11.25° were the nearest rotation of the grid
        expected = act(conv(features), elements_at(grid, "rotation", [11.25])[0], grid)[0]
        nearest = act(conv(features), elements_at(grid, "rotation", [22.5])[0], grid)[0]
    assert (nearest - expected).norm() / expected.norm() > 5 * between.error


def test_the_cube_has_nothing_between_its_rotations() -> None:
    grid = sg.se3(24)
    tilt = grid.group.exp(torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="cannot be moved by an element between the grid's"):
        move_between(torch.randn(1, 1, 24, 3, 3, 3), tilt, grid)
