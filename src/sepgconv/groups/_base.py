"""Groups H acting on R^d, as data: a few facts of which everything else in the library is derived.

An element is a vector `(..., dim)`: the angle of a rotation, the factor of a dilation, the entries of a matrix.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Element = Float[Tensor, "*#batch dim"]
Algebra = Float[Tensor, "*batch n"]
Matrix = Float[Tensor, "*batch d d"]
Columns = Float[Tensor, "*batch c"]
Elements = Float[Tensor, "h dim"]


class Coordinate(NamedTuple):
    """What a kernel sees of an element, under a name that factors use.

    `columns` numbers between −`range` and `range`; None where how far a kernel sees is up to the grid. `period` is the
    length after which values repeat.
    """

    name: str
    columns: int = 1
    range: float | None = 1.0
    period: float | None = None


@dataclass(frozen=True)
class Group:
    """A group that acts linearly and faithfully on R^d, where d is `space`; a grid samples it as one part of H.

    A group states: `product`, `inverse`, `matrix`; `coordinates`, what a kernel sees; `sample`, its elements on a grid;
    `exp`, which makes shifts of vectors with `dimension` numbers, and `draw`, which makes these of uniform numbers;
    `spread`, which maps the cube [0, 1]^`numbers` evenly onto what a kernel sees.
    """

    space: int

    name: ClassVar[str] = "group"
    dim: ClassVar[int] = 0
    """Numbers in an element."""
    dimension: ClassVar[int] = 0
    """That of the group as a manifold."""
    numbers: ClassVar[int] = 0
    seen: ClassVar[tuple[Coordinate, ...]] = ()
    """What `coordinates` returns, in order."""
    compact: ClassVar[bool] = True
    """Whether a grid covers all of it; otherwise grids are truncated."""
    commutes: ClassVar[bool] = False
    """Whether a·b = b·a for all elements."""
    circles: ClassVar[int] = 0
    """Into how many circles of equidistant rotations its grids fall, one after the other."""
    counts: ClassVar[tuple[int, ...]] = ()
    """The counts in which it can be sampled, where not all are possible."""

    @property
    def keyword(self) -> str:
        """The name by which users set the count: `rotations`, `scales`."""
        return f"{self.name}s"

    @property
    def parts(self) -> tuple["Group", ...]:
        """The groups of which this one is the direct product."""
        return (self,)

    def identity(self, like: Tensor | None = None) -> Element:
        """The neutral element, `(dim,)`."""
        return self.exp(torch.zeros(self.dimension) if like is None else like.new_zeros(self.dimension))

    def product(self, a: Element, b: Element) -> Element:
        """a·b."""
        raise NotImplementedError

    def inverse(self, a: Element) -> Element:
        """a⁻¹."""
        raise NotImplementedError

    def matrix(self, a: Element) -> Matrix:
        """The matrix by which an element acts on R^d, in the coordinates (x, y, z) with y pointing up."""
        raise NotImplementedError

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """Determinant of that matrix: how an element changes volumes."""
        return torch.linalg.det(self.matrix(a))

    def coordinates(self, a: Element) -> Columns:
        """What kernels see of an element: the columns that `seen` names, side by side."""
        raise NotImplementedError

    def exp(self, v: Algebra) -> Element:
        """The element of a shift; zero is the identity."""
        raise NotImplementedError

    def sample(self, count: int, extent: float) -> Elements:
        """The unshifted elements of a grid, in float64; a truncated grid has the length `extent`."""
        raise NotImplementedError

    def cell(self, count: int, extent: float) -> float:
        """Distance between neighbouring elements, where they lie on a line or a circle."""
        return extent / max(count - 1, 1)

    def draw(self, uniform: Algebra, cell: float) -> Algebra:
        """A shift, evenly over one cell of a grid, from numbers evenly in [0, 1)."""
        return (uniform - 0.5) * cell

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """Elements that cover evenly what a kernel sees."""
        raise NotImplementedError

    def describe(self, a: Element) -> str:
        """One element in a report."""
        return f"{self.name} {', '.join(f'{value:.4g}' for value in a.tolist())}"


@dataclass(frozen=True)
class Trivial(Group):
    """The group of one element: R^d ⋊ {e} is the translation group, and its networks are plain CNNs."""

    name = "trivial"
    commutes = True

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

    def coordinates(self, a: Element) -> Columns:
        """Nothing to see."""
        return a

    def sample(self, count: int, extent: float) -> Elements:
        """The identity."""
        return torch.zeros(1, 0, dtype=torch.float64, device="cpu")

    def spread(self, uniform: Float[Tensor, "rows n"], farthest: float) -> Float[Tensor, "rows dim"]:
        """The identity, over and over."""
        return uniform

    def matrix(self, a: Element) -> Matrix:
        """The identity matrix."""
        return torch.eye(self.space, dtype=a.dtype, device=a.device).expand(*a.shape[:-1], -1, -1)

    def det(self, a: Element) -> Float[Tensor, "*batch"]:
        """One."""
        return a.new_ones(a.shape[:-1])
