"""One-parameter groups of linear maps: rotations and dilations."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups._base import Algebra, Columns, Coordinate, Element, Elements, Group, Matrix


@dataclass(frozen=True)
class OneParameter(Group):
    """A group with an exponential map from a line onto it: sampled equidistantly there, seen through its logarithm.

    With a `period` it is a circle. Without one, grids are truncated to an interval of the line, which begins at
    `start` times its length.
    """

    dim = dimension = numbers = 1
    commutes = True
    period: ClassVar[float | None] = None
    """Length of the interval that covers the group once; None where exp is injective."""
    start: ClassVar[float] = 0.0

    @property
    def compact(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it is a circle."""
        return self.period is not None

    @property
    def seen(self) -> tuple[Coordinate, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The logarithm."""
        return (Coordinate(self.name, 1, self.period and self.period / 2, self.period),)

    def log(self, a: Element) -> Algebra:
        """The principal logarithm, continuous at the identity."""
        raise NotImplementedError

    def coordinates(self, a: Element) -> Columns:
        """The logarithm."""
        return self.log(a)

    def sample(self, count: int, extent: float) -> Elements:
        """Equidistant points."""
        line = torch.arange(count, dtype=torch.float64, device="cpu") * self.cell(count, extent)
        return self.exp((line + self.start * extent * (self.period is None))[:, None])

    def cell(self, count: int, extent: float) -> float:
        """Distance between neighbours on the line."""
        return self.period / count if self.period else extent / max(count - 1, 1)

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """Equidistant between −`farthest` and `farthest`, or just within the period."""
        return self.exp((uniform * 2 - 1) * (self.period / 2 * (1 - 1e-5) if self.period else farthest))


@dataclass(frozen=True)
class SO2(OneParameter):
    """Rotations of the plane by an angle in (−π, π]; in more dimensions they turn the (x, y) plane."""

    space: int = 2

    name = "rotation"
    period = 2 * math.pi
    circles = 1

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
        """Wraps to (−π, π]; what rounding has left at −π takes the positive side."""
        rounding = torch.finfo(v.dtype).eps
        return v - 2 * math.pi * torch.ceil((v - math.pi) / (2 * math.pi) - 8 * rounding)

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

    def describe(self, a: Element) -> str:
        """In degrees."""
        return f"rotation {math.degrees(a[0].item()):g}°"


@dataclass(frozen=True)
class Dilation(OneParameter):
    """Isotropic dilations of R^d by a factor s > 0: the multiplicative group R⁺."""

    name = "scale"

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

    def describe(self, a: Element) -> str:
        """As a factor."""
        return f"scale ×{a[0].item():.4g}"
