"""The mean of a network's answers over shifts of its random grid."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.models import average

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def network(grid: sg.Grid) -> nn.Module:
    torch.manual_seed(0)
    return sg.models.resnet(grid, width=0.1, kernel=KERNEL).double().eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def change(model: nn.Module, x: Tensor) -> float:
    """By a quarter turn, relative to how much answers differ."""
    answers = model(x)
    return ((model(x.rot90(1, (-2, -1))) - answers).abs().max() / answers.std(0).max()).item()


@pytest.mark.parametrize(("grid", "shifts"), [(sg.se2(1), 4), (sg.se2(2), 2), (sg.se2(1), 8), (sg.sim2(2, 2), 2)])
def test_shifts_stand_for_the_rotations_that_a_grid_lacks(grid: sg.Grid, shifts: int) -> None:
    """One rotation at four shifts sees a digit from all four sides: exactly, where it is not by itself."""
    model = network(grid)
    with torch.no_grad():
        assert change(model, images()) > 1e-2
        assert change(average(model, shifts), images()) < 1e-12


@pytest.mark.parametrize("shifts", [1, 3, 4])
def test_quarter_turns_stay_exact(shifts: int) -> None:
    with torch.no_grad():
        assert change(average(network(sg.se2(4)), shifts), images()) < 1e-12


def test_it_is_the_mean_over_shifted_grids() -> None:
    model = network(sg.se2(4))
    grid = next(part for part in model.modules() if isinstance(part, sg.Grid))
    answers = []
    with torch.no_grad():
        for angle in (0.0, torch.pi / 8, -torch.pi / 4, -torch.pi / 8):
            grid.offset.fill_(angle)
            answers.append(model(images()))
        assert (answers[0] - answers[1]).abs().max() > 1e-3
        grid.offset.zero_()
        assert_close(average(model, 4)(images()), torch.stack(answers).mean(0), atol=1e-12, rtol=0)
        assert_close(model(images()), answers[0], atol=0, rtol=0)  # which is as it was


def test_weights_are_shared() -> None:
    model = network(sg.se2(2))
    mean = average(model, 3)
    assert list(map(id, mean.parameters())) == list(map(id, model.parameters()))
    with torch.no_grad():
        before = mean(images())
        next(model.parameters()).mul_(2)
        assert (mean(images()) - before).abs().max() > 1e-6


def through_bytes(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def there_and_back(model: nn.Module) -> nn.Module:
    return model.float().double().train().eval()


@pytest.mark.parametrize("way", [copy.deepcopy, through_bytes, there_and_back, sg.fold])
def test_a_shift_stays(way) -> None:
    model = average(network(sg.se2(2)), 2)
    with torch.no_grad():
        expected = model(images())
        assert_close(way(model)(images()), expected, atol=2e-6, rtol=0)  # single precision on the way


def test_training_leaves_the_shift_and_comes_back() -> None:
    grid = sg.se2(4)
    grid.stand(0.75)
    place = grid.offset.clone()
    assert_close(place, torch.tensor([torch.pi / 8]))
    model = sg.models.resnet(grid, width=0.1, kernel=KERNEL).train()
    inside = next(part for part in model.modules() if isinstance(part, sg.Grid))
    model(images().float())
    assert (inside.offset - place).abs() > 1e-4
    model.eval()
    assert_close(inside.offset, place)
    lift = sg.LiftingConv(1, 1, 3, grid=grid, kernel=KERNEL)
    lift(images().float())
    lift.training = False  # the layer alone: its grid is not told
    lift(images().float())
    assert_close(grid.offset, place)
    grid.set_resolution(rotations=8)
    assert not grid.offset.any()


def test_further_dimensions_get_places_of_their_own() -> None:
    model = nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.se3(24), kernel=KERNEL), sg.GroupPool("max")).double()
    mean = average(model, 3)
    places = torch.stack([part.offset for part in mean.modules() if isinstance(part, sg.Grid)])
    assert torch.cdist(places, places).add(torch.eye(3)).min() > 0.1
    x = torch.randn(1, 1, 5, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        assert_close(mean(x.rot90(1, (-3, -1))), mean(x), atol=1e-12, rtol=0)


def test_only_the_axis_that_is_sampled_at_random_is_shifted() -> None:
    mean = average(network(sg.sim2(2, 2)), 2)
    places = [part.offset.tolist() for part in mean.modules() if isinstance(part, sg.Grid)]
    assert places == [[0, 0], [pytest.approx(-torch.pi / 2), 0]]


def test_errors() -> None:
    for grid in (sg.se2(4, sampling="fixed"), sg.translation2(), sg.scale2(2)):
        with pytest.raises(ValueError, match="shifts need a grid that is sampled at random"):
            average(network(grid), 2)
    with pytest.raises(ValueError, match="shifts must be a whole number of at least 1, got 0"):
        average(network(sg.se2(2)), 0)
    with pytest.raises(ValueError, match=r"takes 1 numbers in \[0, 1\), got \(1.0,\)"):
        sg.se2(4).stand(1.0)
    with pytest.raises(ValueError, match="takes 3 numbers"):
        sg.se3(24).stand(0.5)
