"""Projections over scales: which of them are read, left out and copied."""

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.nn._scale_pool import line_maximum


def test_peaks_of_parabolas_are_found_between_samples() -> None:
    places = torch.arange(6.0, dtype=torch.float64)
    peaks = torch.linspace(1, 4, 13, dtype=torch.float64)[:, None]
    values = 2.0 - (places - peaks).square()
    assert torch.allclose(line_maximum(values), torch.full((13,), 2.0, dtype=torch.float64))
    rising = places[None] * 1.0
    assert line_maximum(rising).item() == 5.0
    assert torch.equal(line_maximum(values[:, :2]), values[:, :2].amax(-1))
    assert torch.isfinite(line_maximum(torch.zeros(3, 5))).all()


def test_a_scale_pool_reads_what_it_says() -> None:
    grid = sg.sim2(2, 5, 2.0)
    features = torch.randn(2, 3, 10, 4, 4)
    split = features.unflatten(2, (2, 5))
    assert torch.equal(sg.ScalePool("max", grid=grid)(features), split.amax(3))
    assert torch.equal(sg.ScalePool("mean", grid=grid, margin=1)(features), split[:, :, :, 1:4].mean(3))
    assert torch.equal(sg.ScalePool("none", grid=grid, margin=2)(features), split[:, :, :, 2:3].flatten(2, 3))
    alone = sg.ScalePool("max", grid=sg.scale2(5, 2.0), margin=1)
    assert torch.equal(alone(features[:, :, :5]), features[:, :, 1:4].amax(2, keepdim=True))


@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_scales_are_dropped_in_training_and_one_is_always_read(reduce: str) -> None:
    torch.manual_seed(0)
    grid = sg.sim2(2, 5, 2.0)
    pool = sg.ScalePool(reduce, grid=grid, margin=1, dropout=0.5)
    levels = torch.tensor([-100.0, -1.0, -2.0, -4.0, 100.0])  # the first and the last are in the margin
    features = levels.expand(4000, 1, 2, 5).flatten(2, 3)[..., None, None]
    found = pool(features)
    assert found.shape == (4000, 1, 2, 1, 1)
    assert torch.equal(found[:, :, 0], found[:, :, 1])  # all rotations read the same scales
    subsets = [[-1.0], [-2.0], [-4.0], [-1.0, -2.0], [-1.0, -4.0], [-2.0, -4.0], [-1.0, -2.0, -4.0]]
    allowed = {max(s) if reduce == "max" else sum(s) / len(s) for s in subsets}
    assert {round(v, 4) for v in found.flatten().tolist()} == {round(v, 4) for v in allowed}
    shares = [(found[:, 0, 0] == v).double().mean().item() for v in (-1.0, -4.0)]
    expected = (0.5 + 1 / 24, 1 / 8 + 1 / 24) if reduce == "max" else (1 / 8 + 1 / 24,) * 2
    assert shares == pytest.approx(expected, abs=0.03)
    assert torch.equal(pool.eval()(features), sg.ScalePool(reduce, grid=grid, margin=1)(features))


def test_dropping_all_scales_reads_a_single_one() -> None:
    torch.manual_seed(0)
    pool = sg.ScalePool("max", grid=sg.scale2(4, 2.0), dropout=1.0)
    found = pool(torch.arange(4.0).expand(4000, 1, 4)[..., None, None]).flatten()
    assert torch.bincount(found.long(), minlength=4).tolist() == pytest.approx([1000] * 4, abs=120)


def test_ends_may_be_copies_of_what_is_read() -> None:
    features = torch.randn(2, 3, 10, 4, 4)
    split = features.unflatten(2, (2, 5))
    wanted = split[:, :, :, [1, 1, 2, 3, 3]].flatten(2, 3)
    assert torch.equal(sg.ScalePool("copy", grid=sg.sim2(2, 5, 2.0), margin=1)(features), wanted)
    alone = sg.ScalePool("copy", grid=sg.scale2(5, 2.0), margin=2)
    assert torch.equal(alone(features[:, :, :5]), features[:, :, 2:3].expand(2, 3, 5, 4, 4))


def test_copied_ends_keep_the_spoilt_scales_from_growing_in_number() -> None:
    """Three group convolutions, one scale at each end unread: copies before each of them leave a third of the error."""
    torch.manual_seed(0)
    grid, kernel = sg.scale2(8, 3**0.5), sg.KernelConfig(cutoff=0.4)
    convs = [sg.GroupConv(4, 4, 15, grid=grid, kernel=kernel) for _ in range(3)]
    lift = nn.Sequential(sg.LiftingConv(1, 4, 15, grid=grid, kernel=kernel), nn.ReLU())
    found = {}
    for name in ("none", "copy"):
        pool = [sg.ScalePool("copy", grid=grid, margin=1)] if name == "copy" else []
        net = nn.Sequential(lift, *(nn.Sequential(*pool, conv, nn.ReLU()) for conv in convs)).double().eval()
        found[name] = sg.testing.equivariance_error(net, smooth_image(49), grid=grid, trim=1)[0].error
    assert found["copy"] < found["none"] / 3


def test_scales_that_are_not_read_are_the_spoilt_ones() -> None:
    """Without the ends a step of the grid changes features by less than a tenth; with them by far more."""
    torch.manual_seed(0)
    grid = sg.scale2(8, 3**0.5)
    kernel = sg.KernelConfig(cutoff=0.4)
    conv = sg.GroupConv(4, 4, 15, grid=grid, kernel=kernel)
    net = nn.Sequential(sg.LiftingConv(1, 4, 15, grid=grid, kernel=kernel), nn.ReLU(), conv).double().eval()
    found = {trim: sg.testing.equivariance_error(net, smooth_image(), grid=grid, trim=trim)[0].error for trim in (0, 1)}
    assert found[1] < 0.1 < found[0]
