"""Projections that see between the samples."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.nn._projection import circle_maximum


def waves(count: int, shift: float) -> Tensor:
    """Random trigonometric polynomials of degree 2, sampled on a circle that begins at `shift` of a cell."""
    random = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, 3, 1, generator=random, dtype=torch.float64)
    angles = 2 * math.pi * (torch.arange(count, dtype=torch.float64) + shift) / count
    degrees = torch.arange(3)[:, None]
    return (a * torch.cos(degrees * angles) + b * torch.sin(degrees * angles)).sum(1)


@pytest.mark.parametrize("count", [7, 8, 16])
def test_the_peak_of_a_circle_is_found_between_samples(count: int) -> None:
    true = waves(4096, 0.0).amax(-1)
    scale = true.abs().mean()
    for shift in (0.0, 0.3, 0.5):
        found = circle_maximum(waves(count, shift), -1)[:, 0]
        assert (found - true).abs().max() < 5e-3 * scale
        assert (waves(count, shift).amax(-1) - true).abs().max() > 10 * (found - true).abs().max()
    assert_close(circle_maximum(torch.full((2, 8), 3.0), -1), torch.full((2, 1), 3.0))


def test_peaks_are_taken_over_rotations_and_at_every_scale() -> None:
    grid = sg.sim2(8, 3)
    x = torch.randn(2, 4, 24, 3, 5, dtype=torch.float64)
    circles = x.unflatten(2, (8, 3))
    found = sg.GroupPool("peak", space="mean", grid=grid)(x)
    expected = circle_maximum(circles.mean((-2, -1)), 2).amax((2, 3))
    assert_close(found, expected)
    assert (found >= circles.mean((-2, -1)).amax((2, 3))).all()
    assert_close(sg.GroupPool("peak", space="mean", grid=grid)(circles.roll(3, 2).flatten(2, 3)), found)
    assert sg.GroupPool("peak", space=False, grid=grid)(x).shape == (2, 4, 3, 5)
    assert not sg.GroupPool("peak", grid=grid).state_dict()


def test_mirrored_rotations_are_a_circle_of_their_own() -> None:
    grid = sg.e2(8)
    x = torch.randn(2, 3, 16, 2, 2, dtype=torch.float64)
    found = sg.GroupPool("peak", space="mean", grid=grid)(x)
    halves = x.mean((-2, -1)).unflatten(2, (2, 8))
    assert_close(found, circle_maximum(halves, 3).amax((2, 3)))


def test_gradients_of_peaks_are_right_and_finite_where_nothing_varies() -> None:
    x = waves(8, 0.2)[:4].requires_grad_()
    assert torch.autograd.gradcheck(lambda v: circle_maximum(v, -1), x)
    for value, slope in itertools.product((0.0, 1e-38, 1e-30, 1.0), (1.0, 65536.0)):  # the slopes of scaled losses
        flat = torch.full((1, 1, 8, 2, 2), value, requires_grad=True)
        sg.GroupPool("peak", space="mean", grid=sg.se2(8))(flat).mul(slope).sum().backward()
        assert flat.grad is not None
        assert_close(flat.grad.sum(), torch.tensor(slope))


def test_space_can_be_reduced_in_its_own_way() -> None:
    x = torch.randn(2, 3, 4, 5, 6)
    assert_close(sg.GroupPool("max", space="mean")(x), x.mean((-2, -1)).amax(2))
    assert_close(sg.GroupPool("mean", space="max")(x), x.amax((-2, -1)).mean(2))
    assert_close(sg.GroupPool("sum", space="sum")(x), x.sum((-3, -2, -1)))


def test_logsumexp_goes_from_the_mean_to_the_maximum() -> None:
    x = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64)
    found = [sg.GroupPool("logsumexp", sharpness=beta)(x) for beta in (1e-6, 1.0, 10.0, 1e4)]
    assert_close(found[0], x.mean((2, 3, 4)), rtol=0, atol=1e-5)
    assert_close(found[3], x.amax((2, 3, 4)), rtol=0, atol=1e-3)
    assert all((a < b).all() for a, b in itertools.pairwise(found))


def test_logsumexp_of_a_circle_does_not_depend_on_where_samples_lie() -> None:
    pool = sg.GroupPool("logsumexp", sharpness=0.25, space=False)
    here, there = (pool(waves(8, shift)[:, None, :, None]) for shift in (0.0, 0.5))
    jumps = (waves(8, 0.0).amax(-1) - waves(8, 0.5).amax(-1)).abs().max()
    assert (here - there).abs().max() < 0.05 * jumps


def test_bad_input() -> None:
    for grid in (None, sg.scale2(3), sg.translation2(), sg.se3(12)):
        with pytest.raises(ValueError, match="reduce='peak' needs a grid with rotations of the plane"):
            sg.GroupPool("peak", grid=grid)
    with pytest.raises(ValueError, match="length 4 but the grid has 8 elements"):
        sg.GroupPool("peak", grid=sg.se2(8))(torch.randn(1, 1, 4, 2, 2))
    with pytest.raises(ValueError, match="space must be True, False, 'max', 'mean' or 'sum', got 'all'"):
        sg.GroupPool(space="all")
    with pytest.raises(ValueError, match=r"sharpness must be a positive number, got 0\.0"):
        sg.GroupPool("logsumexp", sharpness=0.0)
