"""The public check of a group's laws: every group here passes, and a wrong fact is named with its elements."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import sepgconv as sg
from sepgconv.grids import GRIDS
from sepgconv.groups import O2, SO2, SO3, Dilation, Trivial
from sepgconv.testing import assert_group

GROUPS = [SO2(), SO2(3), O2(), SO3(), Dilation(1), Dilation(2), Dilation(3), Trivial(2)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.name}{group.space}")
def test_every_group_obeys_the_laws(group) -> None:
    for seed in range(3):
        assert_group(group, count=5, extent=1.3, seed=seed)


def test_products_obey_the_laws() -> None:
    assert_group(sg.groups.direct_product(SO2(2), Dilation(2)))
    assert_group(sg.groups.direct_product(O2(2), Dilation(2)))


@pytest.mark.parametrize("name", GRIDS)
def test_grids_by_name_are_of_groups_that_obey_the_laws(name: str) -> None:
    for axis in GRIDS[name].make().axes:
        assert_group(axis.group, count=axis.count, extent=axis.extent or 1.0)


@dataclass(frozen=True)
class WrongInverse(O2):
    def inverse(self, a: Tensor) -> Tensor:
        return torch.stack([-a[..., 0], a[..., 1]], -1)  # right for rotations, wrong for reflections


@dataclass(frozen=True)
class WrongProduct(O2):
    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([a[..., 0] + b[..., 0], a[..., 1] * b[..., 1]], -1)


@dataclass(frozen=True)
class SaysItCommutes(SO3):
    commutes = True


@dataclass(frozen=True)
class NoSubgroup(SO2):
    def sample(self, count: int, extent: float) -> Tensor:
        return super().sample(count, extent) * 0.9


@dataclass(frozen=True)
class WrongDeterminant(Dilation):
    def det(self, a: Tensor) -> Tensor:
        return a[..., 0]


@dataclass(frozen=True)
class TooManyColumns(SO2):
    def coordinates(self, a: Tensor) -> Tensor:
        return torch.cat([a, a], -1)


@dataclass(frozen=True)
class OutOfRange(SO2):
    def coordinates(self, a: Tensor) -> Tensor:
        return 2 * a


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (WrongInverse(), r"orthogonal breaks the law a·a⁻¹ = e by .* at a = \[.*, -1.0\]"),
        (WrongProduct(), r"orthogonal breaks the law .*a.*b"),
        (SaysItCommutes(), r"breaks the law a·b = b·a by .* at a = \[.*\], b = \["),
        (NoSubgroup(), r"sample\(4\) is no subgroup: \[.*\]·\[.*\] is not in it"),
        (WrongDeterminant(2), r"breaks the law det is that of the matrix"),
        (TooManyColumns(), r"seen has 1 columns, coordinates gives 2"),
        (OutOfRange(), r"coordinates leave their ranges"),
    ],
)
def test_a_wrong_fact_is_named(group, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_group(group)


def test_counts_that_a_group_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"rotations must be one of 12, 24, 60, got 7"):
        sg.se3(7)
    net = torch.nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.se3(12)), torch.nn.ReLU())
    sg.set_resolution(net, rotations=24)
    assert net(torch.randn(1, 1, 4, 4, 4)).shape == (1, 2, 24, 4, 4, 4)
    with pytest.raises(ValueError, match=r"rotations must be one of 12, 24, 60, got 30"):
        sg.set_resolution(net, rotations=30)
    sg.set_resolution(mirrors := torch.nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.e2(4))), rotations=6)
    assert mirrors(torch.randn(1, 1, 5, 5)).shape == (1, 2, 12, 5, 5)


def test_a_network_of_volumes_at_all_counts_of_its_group() -> None:
    """The same weights at 12, 24 and 60 rotations; back at 12 it computes what it did."""
    grid, small = sg.se3(12, sampling="fixed"), sg.KernelConfig(hidden=8, layers=1)
    lift, conv = sg.LiftingConv(1, 2, 3, grid=grid, kernel=small), sg.GroupConv(2, 2, 3, grid=grid, kernel=small)
    net, x = torch.nn.Sequential(lift, conv).double().eval(), torch.randn(1, 1, 4, 4, 4, dtype=torch.float64)
    before = net(x)
    for count in (24, 60, 12):
        sg.set_resolution(net, rotations=count)
        assert net(x).shape == (1, 2, count, 4, 4, 4)
    torch.testing.assert_close(net(x), before)


def test_groups_that_act_elsewhere() -> None:
    for make, message in ((lambda: O2(3), "plane, got space=3"), (lambda: SO3(2), r"R\^3, got space=2")):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(ValueError, match=r"acts on R\^3, but the grid's space is R\^2"):
        sg.Grid(2, (sg.Axis(SO3(), 24),))
