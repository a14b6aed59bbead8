"""Lie groups H acting on R^d, as data: product, inverse, exp, log, matrix and determinant.

An element is a vector of coordinates `(..., dim)`: the angle of a rotation, the factor of a dilation. An algebra vector
has the same shape. Everything else in the library is derived from these six facts.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

Element = Float[Tensor, "*batch dim"]
Algebra = Float[Tensor, "*batch dim"]
Matrix = Float[Tensor, "*batch d d"]


@dataclass(frozen=True)
class Group:
    """A Lie group acting linearly on R^d, where d is `space`."""

    space: int

    name: ClassVar[str] = "group"
    dim: ClassVar[int] = 0
    period: ClassVar[float | None] = None
    """Length of the algebra interval that covers the group once; None where exp is injective."""

    @property
    def parts(self) -> tuple["Group", ...]:
        """The one-parameter groups of which this one is the direct product."""
        return (self,)

    def identity(self, like: Tensor | None = None) -> Element:
        """The neutral element, `(dim,)`."""
        return self.exp(torch.zeros(self.dim) if like is None else like.new_zeros(self.dim))

    def product(self, a: Element, b: Element) -> Element:
        """a·b."""
        raise NotImplementedError

    def inverse(self, a: Element) -> Element:
        """a⁻¹."""
        raise NotImplementedError

    def exp(self, v: Algebra) -> Element:
        """From the algebra to the group."""
        raise NotImplementedError

    def log(self, a: Element) -> Algebra:
        """The principal logarithm, continuous at the identity."""
        raise NotImplementedError

    def matrix(self, a: Element) -> Matrix:
        """The matrix by which an element acts on R^d, in the coordinates (x, y, z) with y pointing up."""
        raise NotImplementedError

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """Determinant of that matrix: how an element changes volumes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Trivial(Group):
    """The group of one element: R^d ⋊ {e} is the translation group, and its networks are plain CNNs."""

    name = "trivial"

    @property
    def parts(self) -> tuple[Group, ...]:
        """No parts: nothing to sample."""
        return ()

    def product(self, a: Element, b: Element) -> Element:
        """e·e = e."""
        return torch.broadcast_tensors(a, b)[0]

    def inverse(self, a: Element) -> Element:
        """e⁻¹ = e."""
        return a

    def exp(self, v: Algebra) -> Element:
        """The empty vector stays empty."""
        return v

    def log(self, a: Element) -> Algebra:
        """The empty vector stays empty."""
        return a

    def matrix(self, a: Element) -> Matrix:
        """The identity matrix."""
        return torch.eye(self.space, dtype=a.dtype, device=a.device).expand(*a.shape[:-1], -1, -1)

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """One."""
        return a.new_ones(a.shape[:-1])


@dataclass(frozen=True)
class SO2(Group):
    """Rotations of the plane by an angle in (−π, π]; in more dimensions they turn the (x, y) plane."""

    space: int = 2

    name = "rotation"
    dim = 1
    period = 2 * math.pi

    def __post_init__(self) -> None:
        if self.space < 2:
            raise ValueError(f"rotations need a space of at least 2 dimensions, got space={self.space}")

    def product(self, a: Element, b: Element) -> Element:
        """Angles add."""
        return self.exp(a + b)

    def inverse(self, a: Element) -> Element:
        """The opposite angle; π is its own inverse."""
        return self.exp(-a)

    def exp(self, v: Algebra) -> Element:
        """Wraps to (−π, π]."""
        return v - 2 * math.pi * torch.ceil((v - math.pi) / (2 * math.pi))

    def log(self, a: Element) -> Algebra:
        """The principal angle."""
        return self.exp(a)

    def matrix(self, a: Element) -> Matrix:
        """[[cos, −sin], [sin, cos]], counter-clockwise."""
        cos, sin = torch.cos(a[..., 0]), torch.sin(a[..., 0])
        matrix = torch.eye(self.space, dtype=a.dtype, device=a.device).repeat(*a.shape[:-1], 1, 1)
        matrix[..., 0, 0], matrix[..., 0, 1] = cos, -sin
        matrix[..., 1, 0], matrix[..., 1, 1] = sin, cos
        return matrix

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """One: rotations keep volumes."""
        return torch.ones_like(a[..., 0])


@dataclass(frozen=True)
class Dilation(Group):
    """Isotropic dilations of R^d by a factor s > 0: the multiplicative group R⁺."""

    name = "scale"
    dim = 1

    def product(self, a: Element, b: Element) -> Element:
        """Factors multiply."""
        return a * b

    def inverse(self, a: Element) -> Element:
        """1/s."""
        return 1 / a

    def exp(self, v: Algebra) -> Element:
        """e^v."""
        return torch.exp(v)

    def log(self, a: Element) -> Algebra:
        """The natural logarithm of the factor."""
        return torch.log(a)

    def matrix(self, a: Element) -> Matrix:
        """s·1."""
        return a[..., None] * torch.eye(self.space, dtype=a.dtype, device=a.device)

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """s^d."""
        return a[..., 0] ** self.space


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
        return torch.cat([f.exp(x) for f, x in zip(self.factors, self.split(v), strict=True)], dim=-1)

    def log(self, a: Element) -> Algebra:
        """Factor by factor."""
        return torch.cat([f.log(x) for f, x in zip(self.factors, self.split(a), strict=True)], dim=-1)

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


def direct_product(*groups: Group) -> Group:
    """The direct product of one-parameter groups acting on the same space; a single group is returned as it is."""
    if not groups:
        raise ValueError("a direct product needs at least one group; use Trivial(space) for the group of one element")
    parts = tuple(part for group in groups for part in group.parts)
    if len(parts) <= 1:
        return parts[0] if parts else groups[0]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"the parts of a product must differ, got {names}")
    return Product(groups[0].space, parts)
