"""Lie groups H acting on R^d, as data: product, inverse, exp, log, matrix and determinant.

An element is a vector of coordinates `(..., dim)`: the angle of a rotation, the factor of a dilation. An algebra vector
has the same shape. Everything else in the library is derived from these six facts.
"""

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
