"""Groups that do not commute: rotations and mirrors of the plane, rotations of space."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups._base import Algebra, Columns, Coordinate, Element, Elements, Group, Matrix


@dataclass(frozen=True)
class O2(Group):
    """Rotations and reflections of the plane: R(θ)·M^f, where M mirrors left and right; elements are (θ, ±1).

    The mirrored half turns the other way: (θ, f)·(φ, g) = (θ + (−1)^f φ, f + g). Its grids have two elements per
    rotation: first all rotations, then all of them after a mirror.
    """

    space: int = 2

    name = "orthogonal"
    dim, dimension, numbers, circles = 2, 1, 2, 2
    seen = (Coordinate("rotation", 2), Coordinate("mirror"))

    def __post_init__(self) -> None:
        if self.space != 2:
            raise ValueError(f"O2 acts on the plane, got space={self.space}")

    @property
    def keyword(self) -> str:
        """Rotations are counted, not elements."""
        return "rotations"

    def product(self, a: Element, b: Element) -> Element:
        """Angles add, or subtract after a mirror."""
        a, b = torch.broadcast_tensors(a, b)
        return torch.stack([_wrap(a[..., 0] + a[..., 1] * b[..., 0]), a[..., 1] * b[..., 1]], -1)

    def inverse(self, a: Element) -> Element:
        """The opposite angle; a reflection is its own inverse."""
        return torch.stack([_wrap(-a[..., 1] * a[..., 0]), a[..., 1]], -1)

    def matrix(self, a: Element) -> Matrix:
        """R(θ), its first column times −1 after a mirror."""
        cos, sin, sign = torch.cos(a[..., 0]), torch.sin(a[..., 0]), a[..., 1]
        return torch.stack([torch.stack([sign * cos, -sin], -1), torch.stack([sign * sin, cos], -1)], -2)

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """−1 for reflections."""
        return a[..., 1]

    def coordinates(self, a: Element) -> Columns:
        """cos θ, sin θ and the sign: the angle itself would have a cut."""
        return torch.stack([torch.cos(a[..., 0]), torch.sin(a[..., 0]), a[..., 1]], -1)

    def exp(self, v: Algebra) -> Element:
        """A rotation."""
        return torch.cat([_wrap(v), torch.ones_like(v)], -1)

    def sample(self, count: int, extent: float) -> Elements:
        """Equidistant rotations, then their mirror images."""
        angles = _wrap(torch.arange(count, dtype=torch.float64, device="cpu") * self.cell(count, extent))
        signs = torch.ones_like(angles)
        return torch.stack([angles.repeat(2), torch.cat([signs, -signs])], -1)

    def cell(self, count: int, extent: float) -> float:
        """The angle between neighbouring rotations."""
        return 2 * math.pi / count

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """All angles, one half mirrored."""
        sign = torch.where(uniform[:, 1:] < 0.5, 1.0, -1.0).to(uniform)
        return torch.cat([(uniform[:, :1] * 2 - 1) * math.pi, sign], -1)

    def describe(self, a: Element) -> str:
        """In degrees."""
        return f"rotation {math.degrees(a[0].item()):g}°" + (" after a mirror" if a[1] < 0 else "")


def _wrap(angle: Tensor) -> Tensor:
    """To (−π, π], what rounding has left at −π on the positive side."""
    return angle - 2 * math.pi * torch.ceil((angle - math.pi) / (2 * math.pi) - 8 * torch.finfo(angle.dtype).eps)


@dataclass(frozen=True)
class SO3(Group):
    """Rotations of space; an element holds the nine entries of its matrix, row by row, which kernels see as they are.

    Its grids are the rotations of a tetrahedron (12), a cube (24) or an icosahedron (60), shifted by any rotation.
    """

    space: int = 3

    name = "rotation"
    dim, dimension, numbers = 9, 3, 3
    seen = (Coordinate("rotation", 9),)
    counts = (12, 24, 60)

    def __post_init__(self) -> None:
        if self.space != 3:
            raise ValueError(f"SO3 acts on R^3, got space={self.space}")

    def product(self, a: Element, b: Element) -> Element:
        """Of the matrices."""
        return (self.matrix(a) @ self.matrix(b)).flatten(-2)

    def inverse(self, a: Element) -> Element:
        """The transposed matrix."""
        return self.matrix(a).mT.flatten(-2)

    def matrix(self, a: Element) -> Matrix:
        """The element itself."""
        return a.unflatten(-1, (3, 3))

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """One: rotations keep volumes."""
        return torch.ones_like(a[..., 0])

    def coordinates(self, a: Element) -> Columns:
        """The entries: the logarithm has a cut at half turns, and nine of the cube's rotations are half turns."""
        return a

    def exp(self, v: Algebra) -> Element:
        """The rotation about an axis v by the angle |v|, of its quaternion."""
        angle = v.norm(dim=-1, keepdim=True)
        axis = v * torch.sinc(angle / (2 * math.pi)) / 2
        return _of_quaternions(torch.cat([torch.cos(angle / 2), axis], -1))

    def sample(self, count: int, extent: float) -> Elements:
        """The rotations of a Platonic solid."""
        return torch.tensor(_solid(count), dtype=torch.float64, device="cpu")

    def draw(self, uniform: Algebra, cell: float) -> Algebra:
        """Evenly over all of SO(3): no cell of a finite subgroup is simpler."""
        w, axis = _even_quaternions(uniform).split((1, 3), -1)
        return axis / axis.norm(dim=-1, keepdim=True).clamp_min(1e-12) * 2 * torch.acos(w.clamp(-1, 1))

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """Even in volume."""
        return _of_quaternions(_even_quaternions(uniform))

    def describe(self, a: Element) -> str:
        """The angle and the axis."""
        matrix = self.matrix(a).double()
        angle = math.degrees(math.acos(min(max((matrix.trace().item() - 1) / 2, -1), 1)))
        _, vectors = torch.linalg.eigh(matrix + matrix.mT)
        axis = vectors[:, -1]
        turn = matrix - matrix.mT
        if turn.abs().max() > 1e-9:  # otherwise a half turn, about either end of the axis
            axis = torch.stack([turn[2, 1], turn[0, 2], turn[1, 0]])
        ends = ", ".join(f"{value:.3g}" for value in (axis / axis.abs().max() + 0.0).tolist())
        return f"rotation {angle:.4g}° about ({ends})"


def _even_quaternions(uniform: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
    """Quaternions that are even on the sphere, from numbers that are even in [0, 1]³ (Shoemake 1992)."""
    u, v, w = uniform[..., 0], 2 * math.pi * uniform[..., 1], 2 * math.pi * uniform[..., 2]
    a, b = (1 - u).sqrt(), u.sqrt()
    return torch.stack([b * torch.cos(w), a * torch.sin(v), a * torch.cos(v), b * torch.sin(w)], -1)


def _of_quaternions(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 9"]:
    w, x, y, z = q.unbind(-1)
    entries = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(entries, -1)


@cache
def _solid(count: int) -> tuple[tuple[float, ...], ...]:
    """The rotations of a tetrahedron, a cube or an icosahedron, the identity first; those they share are equal.

    Plain numbers: a tensor that is kept for the whole process would belong to a device and a mode.
    """
    eye = torch.eye(3, dtype=torch.float64, device="cpu")
    found = []
    for places in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            matrix = eye[list(places)] * torch.tensor(signs, dtype=torch.float64, device="cpu")
            if torch.linalg.det(matrix) > 0 and (count == 24 or torch.linalg.det(eye[list(places)]) > 0):
                found.append(matrix)
    if count == 60:  # the tetrahedron's, after a fifth of a turn about (0, 1, φ), none to four times
        golden = (1 + math.sqrt(5)) / 2
        axis = torch.tensor([0.0, 1.0, golden], dtype=torch.float64, device="cpu")
        fifth = SO3().exp(axis / axis.norm() * (2 * math.pi / 5)).unflatten(-1, (3, 3))
        turns = [torch.linalg.matrix_power(fifth, n) for n in range(5)]
        found = [turn @ matrix for turn in turns for matrix in found]
    return tuple(map(tuple, torch.stack(found).flatten(1).tolist()))
