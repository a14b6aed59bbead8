"""Direct products of groups whose actions commute."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups._base import Algebra, Columns, Coordinate, Element, Group, Matrix
from sepgconv.groups._linear import OneParameter


@dataclass(frozen=True)
class Product(Group):
    """The direct product of groups whose actions on R^d commute; coordinates are concatenated."""

    factors: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        spaces = [factor.space for factor in self.factors]
        if any(space != self.space for space in spaces):
            raise ValueError(f"all factors must act on R^{self.space}, got factors acting on R^d with d = {spaces}")

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The factors' names, joined."""
        return " × ".join(factor.name for factor in self.factors)

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Sum of the factors' dimensions."""
        return sum(factor.dim for factor in self.factors)

    @property
    def dimension(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Sum of the factors' dimensions as manifolds."""
        return sum(factor.dimension for factor in self.factors)

    @property
    def numbers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Sum of what the factors need."""
        return sum(factor.numbers for factor in self.factors)

    @property
    def seen(self) -> tuple[Coordinate, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The factors' coordinates, in order."""
        return tuple(coordinate for factor in self.factors for coordinate in factor.seen)

    @property
    def commutes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all factors do."""
        return all(factor.commutes for factor in self.factors)

    @property
    def parts(self) -> tuple[Group, ...]:
        """The factors' parts, in order."""
        return tuple(part for factor in self.factors for part in factor.parts)

    def split(self, a: Tensor) -> tuple[Tensor, ...]:
        """The coordinates that belong to each factor."""
        return torch.split(a, [factor.dim for factor in self.factors], dim=-1)

    def product(self, a: Element, b: Element) -> Element:
        """Factor by factor."""
        pairs = zip(self.factors, self.split(a), self.split(b), strict=True)
        return torch.cat([factor.product(x, y) for factor, x, y in pairs], dim=-1)

    def inverse(self, a: Element) -> Element:
        """Factor by factor."""
        return torch.cat([f.inverse(x) for f, x in zip(self.factors, self.split(a), strict=True)], dim=-1)

    def exp(self, v: Algebra) -> Element:
        """Factor by factor."""
        vectors = torch.split(v, [factor.dimension for factor in self.factors], dim=-1)
        return torch.cat([f.exp(x) for f, x in zip(self.factors, vectors, strict=True)], dim=-1)

    def coordinates(self, a: Element) -> Columns:
        """Factor by factor."""
        return torch.cat([f.coordinates(x) for f, x in zip(self.factors, self.split(a), strict=True)], dim=-1)

    def log(self, a: Element) -> Algebra:
        """Factor by factor, where all are one-parameter groups."""
        return torch.cat([_log(f, x) for f, x in zip(self.factors, self.split(a), strict=True)], dim=-1)

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """Factor by factor."""
        numbers = torch.split(uniform, [factor.numbers for factor in self.factors], dim=-1)
        return torch.cat([f.spread(x, farthest) for f, x in zip(self.factors, numbers, strict=True)], dim=-1)

    def describe(self, a: Element) -> str:
        """Factor by factor."""
        return ", ".join(f.describe(x) for f, x in zip(self.factors, self.split(a), strict=True))

    def matrix(self, a: Element) -> Matrix:
        """The product of the factors' matrices, which commute."""
        first, *rest = (f.matrix(x) for f, x in zip(self.factors, self.split(a), strict=True))
        for matrix in rest:
            first = first @ matrix
        return first

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """The product of the factors' determinants."""
        dets = [f.det(x) for f, x in zip(self.factors, self.split(a), strict=True)]
        return torch.stack(dets).prod(dim=0)


def _log(group: Group, a: Element) -> Algebra:
    if not isinstance(group, OneParameter):
        raise ValueError(f"{group.name} has no logarithm that is continuous: use its coordinates")
    return group.log(a)


def direct_product(*groups: Group) -> Group:
    """The direct product of groups acting on the same space; a single group is returned as it is."""
    if not groups:
        raise ValueError("a direct product needs at least one group; use Trivial(space) for the group of one element")
    parts = tuple(part for group in groups for part in group.parts)
    if len(parts) <= 1:
        return parts[0] if parts else groups[0]
    names = [coordinate.name for part in parts for coordinate in part.seen]
    if len(set(names)) < len(names):
        raise ValueError(f"the parts of a product must differ, got {names}")
    return Product(groups[0].space, parts)
