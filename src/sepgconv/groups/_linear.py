"""One-parameter groups of linear maps: rotations and dilations."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups._base import Algebra, Element, Group, Matrix


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
