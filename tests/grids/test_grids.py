import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sepgconv as sg

GRIDS = {
    "se2": lambda: sg.se2(6),
    "scale2": lambda: sg.scale2(4, 2.0),
    "sim2": lambda: sg.sim2(4, 3),
    "translation2": sg.translation2,
    "scale1": lambda: sg.scale1(3, 2.0),
}
every_grid = pytest.mark.parametrize("make", GRIDS.values(), ids=GRIDS)


def test_elements_are_equidistant_in_the_algebra() -> None:
    assert_close(sg.se2(4).elements[:, 0], torch.tensor([0, math.pi / 2, math.pi, -math.pi / 2]))
    assert_close(sg.scale2(3, 4.0).elements[:, 0], torch.tensor([1.0, 2.0, 4.0]))
    assert sg.translation2().elements.shape == (1, 0)
    assert sg.scale1(3, 4.0).space == 1
    sim = sg.sim2(2, 2, 3.0).elements
    assert_close(sim, torch.tensor([[0, 1.0], [0, 3.0], [math.pi, 1.0], [math.pi, 3.0]]))


@every_grid
def test_size_and_repr(make) -> None:
    grid = make()
    assert len(grid.elements) == grid.size == math.prod(grid.shape)
    assert "Grid" in repr(grid)


def test_a_grid_with_mirrors_is_told_from_one_without() -> None:
    assert repr(sg.se2(4)) == "Grid(space=2, rotations=4 (random))"
    assert repr(sg.e2(4, sampling="fixed")) == "Grid(space=2, rotations=4 (fixed, 8 elements))"


def test_random_grid_covers_rotations_uniformly() -> None:
    """Kolmogorov–Smirnov distance of all angles of many draws from the uniform law on the circle."""
    grid = sg.se2(5)
    draws = []
    for _ in range(4000):
        grid.resample()
        draws.append(grid.elements[:, 0].clone())
    angles = torch.stack(draws)
    first = (angles[:, 0] / (2 * math.pi) * 5 + 0.5).sort().values  # one element covers one cell
    everything = (angles.flatten().double() / (2 * math.pi) + 0.5).sort().values
    for sample in (first.double(), everything):
        n = len(sample)
        distance = (sample - (torch.arange(n) + 0.5) / n).abs().max().item()
        assert distance < 1.95 / math.sqrt(4000)  # 0.1 % level for the 4000 independent draws
    gaps = torch.remainder(angles.roll(-1, 1) - angles, 2 * math.pi)
    assert_close(gaps, torch.full_like(gaps, 2 * math.pi / 5), atol=1e-5, rtol=0)


def test_random_sampling_is_unbiased_where_a_fixed_grid_is_biased() -> None:
    """∫ f(h) k(h) dh over SO(2) for a product with frequencies that a grid of four elements aliases."""

    def f(angle: Tensor) -> Tensor:
        return 1 + torch.cos(angle - 0.4) + 0.7 * torch.cos(2 * angle + 0.3)

    def k(angle: Tensor) -> Tensor:
        return torch.exp(torch.cos(angle)) * torch.cos(3 * angle - 0.2)

    fine = torch.arange(20000, dtype=torch.float64) * 2 * math.pi / 20000
    truth = (f(fine) * k(fine)).mean().item()
    grid = sg.se2(4).double()
    fixed = (f(grid.elements) * k(grid.elements)).mean().item()
    estimates = []
    for _ in range(4000):
        grid.resample()
        estimates.append((f(grid.elements) * k(grid.elements)).mean().item())
    samples = torch.tensor(estimates, dtype=torch.float64)
    standard_error = (samples.std() / math.sqrt(len(samples))).item()
    random = f"{samples.mean():.4f} ± {standard_error:.4f}"
    print(f"∫fk = {truth:.4f}; fixed grid of 4: {fixed:.4f}; 4000 random grids of 4: {random}")
    assert abs(samples.mean().item() - truth) < 4 * standard_error
    assert abs(fixed - truth) > 20 * standard_error


def test_fixed_grids_and_dilations_do_not_move() -> None:
    for grid in (sg.se2(8, sampling="fixed"), sg.scale2(4), sg.translation2()):
        before = grid.elements.clone()
        grid.resample()
        assert torch.equal(grid.elements, before)
    grid = sg.sim2(4, 3)
    grid.resample()
    assert grid.offset[0] != 0
    assert grid.offset[1] == 0
    moving = sg.scale2(4, sampling="random")
    moving.resample()
    assert moving.offset.abs() <= moving.axes[0].cell / 2


def test_who_moves_the_grid() -> None:
    a, b = sg.se2(4), sg.se2(8)
    lift = sg.LiftingConv(1, 2, 3, grid=a)
    same = sg.GroupConv(2, 2, 3, grid=a)
    cross = sg.GroupConv(2, 2, 3, grid=a, out_grid=b)
    net = nn.Sequential(lift, same, cross)
    x = torch.randn(1, 1, 7, 7)
    net(x)
    first = a.offset.clone(), b.offset.clone()
    assert first[0] != 0
    assert first[1] != 0
    features = lift(x)
    moved = a.offset.clone()
    assert moved != first[0]
    same(features)
    assert a.offset == moved  # a layer that stays on its grid leaves it where it is
    cross(features)
    assert a.offset == moved
    assert b.offset != first[1]
    net.eval()
    assert a.offset == b.offset == 0
    assert torch.equal(net(x), net(x))
    assert a.offset == b.offset == 0


def test_training_is_random_and_eval_deterministic() -> None:
    net = nn.Sequential(sg.LiftingConv(1, 2, 5, grid=sg.se2(4)), sg.GroupPool("max"))
    x = torch.randn(2, 1, 9, 9)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@every_grid
def test_grids_copy_and_pickle(make) -> None:
    grid = make()
    grid.resample()
    for twin in (copy.deepcopy(grid), pickle.loads(pickle.dumps(grid))):
        assert twin.shape == grid.shape
        assert twin.group == grid.group
        assert torch.equal(twin.offset, grid.offset)
    assert not grid.state_dict()


def test_set_resolution_changes_all_grids_of_a_model() -> None:
    net = nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.sim2(4, 3)), nn.ReLU())
    sg.set_resolution(net, rotations=8)
    assert net[0].grid.shape == (8, 3)
    sg.set_resolution(net, rotations=12, scales=2)
    assert net(torch.randn(1, 1, 7, 7)).shape == (1, 2, 24, 7, 7)
    with pytest.raises(ValueError, match=r"rotations.*scales.*flips"):
        sg.set_resolution(net, flips=2)
    with pytest.raises(ValueError, match="no grid"):
        sg.set_resolution(nn.ReLU(), rotations=2)
    with pytest.raises(ValueError, match=r"rotations must be a whole number of at least 1, got 0"):
        sg.set_resolution(net, rotations=0)
    with pytest.raises(ValueError, match=r"\['rotations'\].*\['scales'\]"):
        sg.se2(4).set_resolution(scales=3)


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "4"])
def test_bad_counts(count) -> None:
    with pytest.raises(ValueError, match=r"rotations must be a whole number of at least 1"):
        sg.se2(count)
    with pytest.raises(ValueError, match=r"scales must be a whole number of at least 1"):
        sg.scale2(count)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "2"])
def test_max_scale_must_be_finite(value) -> None:
    for make in (sg.scale2, sg.scale1):
        with pytest.raises(ValueError, match=r"max_scale must be a finite number"):
            make(3, value)


@pytest.mark.parametrize("value", [1.0, 1, 0.5, 0.0, -2.0])
def test_max_scale_must_exceed_one_for_several_scales(value) -> None:
    with pytest.raises(ValueError, match=r"max_scale must be .*greater than 1"):
        sg.sim2(4, 3, value)


def test_one_scale_needs_no_extent() -> None:
    assert_close(sg.scale2(1, 1.0).elements, torch.ones(1, 1))


def test_other_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"sampling must be one of fixed, random; got 'sobol'"):
        sg.se2(4, sampling="sobol")
    with pytest.raises(ValueError, match=r"scale_support must be a whole number"):
        sg.scale2(4, scale_support=0)
    with pytest.raises(ValueError, match=r"space must be 1, 2 or 3"):
        sg.Grid(4)


@pytest.mark.parametrize("factorisation", ["separable", "nonseparable"])
def test_one_scale_without_extent_is_a_plain_convolution(factorisation: str) -> None:
    grid = sg.scale2(1, 1.0)
    features = sg.GroupConv(2, 3, 5, grid=grid, factorisation=factorisation)(torch.randn(2, 2, 1, 9, 9))
    assert features.isfinite().all()
    assert 0.1 < features.std() < 10
