"""Anti-aliased subsampling: symmetric, round, and better between the pixels than what it replaces."""

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.nn._lowpass import filter_taps, low_pass


def response(weights: Tensor, frequency: float, degrees: float) -> float:
    """What a filter leaves of a plane wave."""
    line = torch.arange(len(weights), dtype=torch.float64) - (len(weights) - 1) / 2
    along = line[:, None] * math.sin(math.radians(degrees)) + line * math.cos(math.radians(degrees))
    return (weights * torch.cos(2 * math.pi * frequency * along)).sum().item()


@pytest.mark.parametrize(("window", "taps"), [(2, 6), (3, 7)])
def test_the_filter_is_round_and_stops_what_coarser_pixels_do_not_hold(window: int, taps: int) -> None:
    weights = low_pass(window, 2, 2)
    assert weights.shape == (taps, taps)
    assert filter_taps(window, 2) == taps
    for frequency, most in ((0.25, 0.12), (0.35, 0.025), (0.5, 0.02)):
        found = [response(weights, frequency, degrees) for degrees in (0, 15, 30, 45)]
        assert max(map(abs, found)) < most
        assert max(found) - min(found) < 0.01  # a binomial filter of six taps: 0.02
    assert response(weights, 0.06, 0) > 0.85


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize(("size", "stride"), [(8, 2), (9, 2), (10, 3), (11, 3), (12, 4), (14, 4)])
def test_it_has_the_plain_pools_size_and_commutes_with_turns(reduce: str, size: int, stride: int) -> None:
    pool = sg.SpatialPool.fitting(reduce, size, stride)
    plain = sg.SpatialPool(reduce, pool.kernel_size, stride=stride, padding=pool.padding)
    x = torch.randn(2, 3, 4, size, size, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = pool(x)
    assert y.shape == plain(x).shape
    assert y.shape[-1] == pool.out_size(size)
    for quarter in (1, 2, 3):
        assert_close(pool(x.rot90(quarter, (-2, -1))), y.rot90(quarter, (-2, -1)), rtol=0, atol=1e-14)
    assert_close(pool(x.flip(-1)), y.flip(-1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("space", [1, 2, 3])
def test_every_dimension_takes_the_same_weighted_mean(space: int) -> None:
    pool = sg.SpatialPool("mean", 2, antialias=True)
    x = torch.randn(1, 2, 3, *(8,) * space, dtype=torch.float64)
    y = pool(x)
    weights = low_pass(2, 2, space)
    for place in itertools.product((0, 1, 3), repeat=space):
        total, covered = torch.zeros(2, 3, dtype=torch.float64), 0.0
        for taps in itertools.product(range(6), repeat=space):
            pixel = tuple(2 * p - 2 + t for p, t in zip(place, taps, strict=True))
            if min(pixel) >= 0 and max(pixel) < 8:
                total += weights[taps] * x[(0, slice(None), slice(None), *pixel)]
                covered += weights[taps].item()
        assert_close(y[(0, slice(None), slice(None), *place)], total / covered)
    assert_close(pool(torch.full_like(x, 2.5)), torch.full_like(y, 2.5))  # up to the border


@pytest.mark.parametrize("space", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 3])
def test_a_maximum_is_taken_around_every_pixel_and_then_filtered(space: int, window: int) -> None:
    size = 6 + window  # symmetric at a stride of two
    x = torch.randn(2, 2, 3, *(size,) * space, dtype=torch.float64)
    around = torch.full_like(x, -torch.inf)
    padded = torch.nn.functional.pad(x, (1, 1) * space, value=-torch.inf)
    for step in itertools.product(range(3), repeat=space):
        around = torch.maximum(around, padded[(..., *(slice(n, n + size) for n in step))])
    maximum, mean = (sg.SpatialPool(reduce, window, stride=2, antialias=True) for reduce in ("max", "mean"))
    assert_close(maximum(x), mean(around))
    for dim in range(3, 3 + space):
        assert_close(maximum(x.flip(dim)), maximum(x).flip(dim))


def test_layouts_and_precisions_give_the_same_numbers_and_gradients() -> None:
    pool = sg.SpatialPool("mean", 2, antialias=True)
    x = torch.randn(2, 16, 4, 8, 8, dtype=torch.float64, requires_grad=True)
    y = pool(x)
    (slope,) = torch.autograd.grad(y.square().sum(), x)
    rows = x.detach().float().permute(0, 3, 4, 2, 1).contiguous().permute(0, 4, 3, 1, 2).requires_grad_()
    assert_close(pool(rows), y.float(), rtol=1e-5, atol=1e-6)
    (found,) = torch.autograd.grad(pool(rows).square().sum(), rows)
    assert_close(found, slope.float(), rtol=1e-5, atol=1e-6)
    assert torch.autograd.gradcheck(sg.SpatialPool("max", 3, stride=2, antialias=True), x[:1, :1, :1, :5, :5])


def test_a_shift_by_one_pixel_before_a_stride_of_two_is_half_a_pixel_after_it() -> None:
    x = smooth_image(32).unsqueeze(2)
    noise = torch.randn(1, 1, 1, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = []
    for antialias in (False, True):
        pool = sg.SpatialPool("max", 2, antialias=antialias)
        y = [pool((x + 0.3 * noise).roll(-n, -1))[..., 4:12, 4:12] for n in (0, 1, 2)]
        errors.append(((y[1] - (y[0] + y[2]) / 2).norm() / y[0].norm()).item())
    assert errors[1] < errors[0] / 4


def test_a_convolution_and_a_pool_subsample_even_sizes_where_a_strided_one_cannot() -> None:
    grid = sg.se2(4)
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with pytest.warns(sg.EquivarianceWarning, match="stride 2"):
        sg.LiftingConv(1, 2, 3, grid=grid, stride=2).double().eval()(x)
    lift = sg.LiftingConv(1, 2, 3, grid=grid)
    net = torch.nn.Sequential(lift, sg.SpatialPool.fitting("mean", 8)).double()
    sg.testing.assert_equivariant(net, x, grid=grid)


def test_another_parity_warns_with_the_sizes_that_fit() -> None:
    with pytest.warns(sg.EquivarianceWarning, match=r"antialias=True\) loses equivariance.*size 7.*sees 6 or 8"):
        sg.SpatialPool("mean", 2, antialias=True)(torch.randn(1, 1, 1, 7, 7))


def test_bad_strides_name_those_that_fit() -> None:
    with pytest.raises(ValueError, match=r"4 pixels symmetrically at stride 5; strides that fit: 2, 3, 4"):
        sg.SpatialPool.fitting("mean", 4, 5)
    with pytest.raises(ValueError, match="1 pixels symmetrically at stride 2; strides that fit: none"):
        sg.SpatialPool.fitting("mean", 1)
    with pytest.raises(ValueError, match="stride must be at least 2 with antialias=True, got 1"):
        sg.SpatialPool("max", 2, stride=1, antialias=True)
