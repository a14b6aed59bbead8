import math

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.testing import assert_equivariant, equivariance_error


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
