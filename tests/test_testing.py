import math

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.testing import act, assert_equivariant, equivariance_error, transform_space


def rotation(degrees: float) -> torch.Tensor:
    return sg.groups.SO2().matrix(torch.tensor([math.radians(degrees)], dtype=torch.float64))


def test_transform_is_rot90_for_quarter_turns_and_close_to_the_truth_between() -> None:
    x = torch.randn(2, 3, 6, 6)
    for quarter in range(4):
        assert torch.equal(transform_space(x, rotation(90 * quarter)), torch.rot90(x, quarter, (-2, -1)))
    for degrees in (10.0, 45.0, 130.0):
        turned = transform_space(smooth_image(), rotation(degrees))
        truth = smooth_image(element=rotation(degrees))
        assert (turned - truth).norm() / truth.norm() < 1e-3
    doubled = 2 * torch.eye(2, dtype=torch.float64)
    wide = transform_space(smooth_image(), 0.5 * torch.eye(2, dtype=torch.float64))
    assert (wide - smooth_image(element=0.5 * torch.eye(2))).norm() / wide.norm() < 2e-2
    assert (
        transform_space(smooth_image(), doubled) - smooth_image(element=doubled)
    ).norm() / smooth_image().norm() < 2e-3


def test_transform_in_one_and_three_dimensions() -> None:
    line = torch.linspace(-3, 3, 31, dtype=torch.float64)
    bump = torch.exp(-line.square())[None, None]
    wider = transform_space(bump, torch.tensor([[1.5]], dtype=torch.float64))
    torch.testing.assert_close(wider, torch.exp(-(line / 1.5).square())[None, None], atol=2e-4, rtol=0)
    volume = torch.randn(1, 1, 4, 5, 5)
    quarter = sg.groups.SO2(3).matrix(torch.tensor([math.pi / 2], dtype=torch.float64))
    assert torch.equal(transform_space(volume, quarter), torch.rot90(volume, 1, (-2, -1)))


def test_act_moves_h_and_says_what_truncation_lost() -> None:
    grid = sg.sim2(4, 3)
    x = torch.randn(1, 1, 12, 5, 5)
    step = grid.group.exp(torch.tensor([math.pi / 2, grid.axes[1].cell], dtype=torch.float64))
    moved, valid = act(x, step, grid)
    assert valid is not None
    assert valid.reshape(4, 3).tolist() == [[False, True, True]] * 4
    assert moved.shape == x.shape
    with pytest.raises(ValueError, match="between the grid's"):
        act(x, torch.tensor([0.1, 1.0]).double(), grid)


def test_numbers_per_element() -> None:
    grid = sg.se2(8)
    net = nn.Sequential(sg.LiftingConv(1, 3, 9, grid=grid), nn.ReLU(), sg.GroupConv(3, 3, 9, grid=grid))
    report = equivariance_error(net, smooth_image().float(), grid=grid)
    assert [entry.element for entry in report.exact] == ["rotation 90°", "rotation 180°", "rotation -90°"]
    assert len(report.interpolated) == 4
    assert all(entry.error < 1e-5 for entry in report.exact)
    assert all(0 < entry.interpolation < 1e-2 < entry.error + 1e-2 < 0.3 for entry in report.interpolated)
    assert "rotation 45°" in str(report)
    assert net.training


def test_a_broken_network_is_caught_with_its_numbers() -> None:
    grid = sg.se2(4)
    broken = nn.Sequential(sg.LiftingConv(1, 3, 3, grid=grid), nn.Conv3d(3, 3, (1, 3, 3), padding=(0, 1, 1)))
    x = torch.randn(1, 1, 8, 8)
    assert min(entry.error for entry in equivariance_error(broken, x, grid=grid)) > 0.01
    with pytest.raises(AssertionError, match=r"not equivariant to 1e-05[\s\S]*rotation 90°"):
        assert_equivariant(broken, x, grid=grid)
    assert_equivariant(broken[0], x, grid=grid)


def test_tolerances() -> None:
    grid = sg.se2(8)
    lift = sg.LiftingConv(1, 3, 5, grid=grid)
    x = smooth_image().float()
    assert_equivariant(lift, x, grid=grid, interpolated_tolerance=0.3)
    with pytest.raises(AssertionError, match="interpolated: 1e-06"):
        assert_equivariant(lift, x, grid=grid, interpolated_tolerance=1e-6)
    with pytest.raises(AssertionError, match=r"no element of .* is exact"):
        assert_equivariant(sg.LiftingConv(1, 1, 3, grid=sg.scale2(3)), x, grid=sg.scale2(3))
    nan = nn.Sequential(lift, nn.Threshold(10.0, math.nan))
    with pytest.raises(AssertionError):
        assert_equivariant(nan, x, grid=grid)


def test_trim_must_leave_something() -> None:
    grid = sg.scale2(3)
    lift = sg.LiftingConv(1, 1, 3, grid=grid)
    with pytest.raises(ValueError, match="trim=1 leaves none of 3 scales"):
        equivariance_error(lift, smooth_image().float(), grid=grid, trim=1)
