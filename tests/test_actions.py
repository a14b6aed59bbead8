import math

import pytest
import torch

import sepgconv as sg
from sepgconv.actions import act, transform_space
from sepgconv.analysis.equivariance import smooth_image


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
