"""Strided convolutions with a low-pass: exact at quarter turns for every size, and better between the pixels."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.testing import assert_equivariant, equivariance_error

GRID = sg.se2(4)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "stride"), [(12, 2), (13, 2), (12, 3), (13, 3), (14, 3), (16, 4)])
def test_quarter_turns_are_exact_at_every_size(size: int, stride: int, padding: str) -> None:
    layers = torch.nn.Sequential(
        sg.strided(sg.LiftingConv(1, 2, 3, grid=GRID, padding=padding), size, stride), sg.BatchNorm(2), torch.nn.ReLU()
    ).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.EquivarianceWarning)
        assert_equivariant(layers, torch.randn(2, 1, size, size, dtype=torch.float64), grid=GRID)


@pytest.mark.parametrize("grid", [sg.scale1(2), sg.se3(12)], ids=str)
def test_signals_and_volumes(grid: sg.Grid) -> None:
    layers = sg.strided(sg.GroupConv(2, 3, 3, grid=grid, kernel=sg.KernelConfig(hidden=8, layers=0)), 6).double()
    x = torch.randn(1, 2, grid.size, *(6,) * grid.space, dtype=torch.float64)
    assert layers(x).shape == (1, 3, grid.size, *(3,) * grid.space)
    if grid.space == 3:
        assert_equivariant(layers, x, grid=grid)


def test_a_shift_by_one_pixel_is_half_a_pixel_after_it() -> None:
    """What a stride of two alone makes of fine structure depends on which pixels it happens to keep."""
    torch.manual_seed(0)
    images = smooth_image(33) + 0.3 * torch.randn(1, 1, 33, 33, dtype=torch.float64)
    plain = sg.LiftingConv(1, 4, 7, grid=GRID, stride=2).double().eval()
    conv = sg.LiftingConv(1, 4, 7, grid=GRID).double().eval()
    conv.load_state_dict(plain.state_dict())
    before, after = (
        equivariance_error(layer, images, grid=GRID, shifts=((0, 1),))[0].error
        for layer in (plain, sg.strided(conv, 33))
    )
    assert after < before / 4, (before, after)


def test_it_folds_to_the_same_numbers() -> None:
    net = torch.nn.Sequential(
        sg.strided(sg.LiftingConv(1, 2, 3, grid=GRID), 8), sg.BatchNorm(2), torch.nn.ReLU(), sg.GroupPool("max")
    ).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert_close(sg.fold(net)(x), net(x), rtol=1e-5, atol=1e-6)


def test_another_parity_warns_with_the_sizes_that_fit() -> None:
    layers = sg.strided(sg.LiftingConv(1, 2, 3, grid=GRID), 8)
    with pytest.warns(sg.EquivarianceWarning, match="input of size 9.*sees 8 or 10"):
        layers(torch.randn(1, 1, 9, 9))


def test_bad_input() -> None:
    conv = sg.LiftingConv(1, 2, 5, grid=GRID, padding="valid")
    with pytest.raises(
        ValueError, match="no filter samples 4 pixels symmetrically at stride 5; strides that fit: 2, 3, 4"
    ):
        sg.strided(conv, 8, 5)
    with pytest.raises(ValueError, match="at stride 1; strides that fit: 2, 3"):
        sg.strided(conv, 8, 1)
    with pytest.raises(ValueError, match=r"size must be at least 5 for LiftingConv\(.*\), got 4"):
        sg.strided(conv, 4)
    with pytest.raises(ValueError, match=r"size must be a whole number of at least 1, got 8\.5"):
        sg.strided(conv, 8.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"conv must have stride 1.*stride=2"):
        sg.strided(sg.LiftingConv(1, 2, 5, grid=GRID, stride=2), 8)
    with pytest.raises(ValueError, match="conv must be a LiftingConv or a GroupConv, got Conv2d"):
        sg.strided(torch.nn.Conv2d(1, 2, 3), 8)  # pyright: ignore[reportArgumentType]
