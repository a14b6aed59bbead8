import math

import pytest
import torch

import sepgconv as sg
from sepgconv.actions import act, shift_space, transform_space
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.grids._between import move_between


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


@pytest.mark.parametrize("count", [7, 8])
def test_act_interpolates_waves_between_rotations_exactly(count: int) -> None:
    """Features c(h) that the grid can hold: turned by any angle they are c(h − angle)."""
    grid = sg.se2(count)
    angles = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    for degrees in (10.0, 22.5, 200.0):
        turn = math.radians(degrees)
        wave = [(torch.cos(2 * (angles - t)) + torch.sin(3 * (angles - t))) for t in (0.0, turn)]
        features, expected = (w[None, None, :, None, None].expand(1, 1, -1, 1, 1) for w in wave)
        moved, valid = act(features, torch.tensor([turn], dtype=torch.float64), grid)
        assert valid is not None
        assert valid.all()
        torch.testing.assert_close(moved, expected)


def test_act_interpolates_cubics_between_scales_and_says_what_is_lost() -> None:
    grid = sg.scale2(6, max_scale=2.0)
    places = torch.arange(6, dtype=torch.float64)
    cubic = [(0.1 * (places - s) ** 3 - (places - s) ** 2)[None, None, :, None, None] for s in (0.0, 1.4)]
    element = grid.group.exp(torch.tensor([1.4 * grid.axes[0].cell], dtype=torch.float64))
    moved, valid = move_between(cubic[0], element, grid)
    assert valid.tolist() == [False, False, True, True, True, True]
    torch.testing.assert_close(moved[:, :, valid], cubic[1][:, :, valid])
    assert move_between(cubic[0], element, grid, trim=1)[1].tolist() == [False, False, False, True, True, False]


def test_shifts_move_whole_pixels_exactly_and_read_between_them() -> None:
    x = torch.randn(2, 3, 6, 7)
    moved = shift_space(x, (1, -2))
    torch.testing.assert_close(moved[..., 1:, :-2], x[..., :-1, 2:])
    assert not moved[..., 0, :].any()
    assert not moved[..., -2:].any()
    line = torch.arange(33, dtype=torch.float64) - 16
    here, there = (torch.exp(-((line - t) / 5).square())[None, None] for t in (0.0, 0.5))
    torch.testing.assert_close(shift_space(here, (0.5,)), there, atol=1e-4, rtol=0)
