"""What a kernel's factors are made of: features of coordinates, and a linear read-out."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.groups import Coordinate


class Domain(NamedTuple):
    """Where a factor lives: the coordinates that it sees, each scaled to [−1, 1].

    Args:
        space: number of spatial coordinates, which come first; 0 for a factor that does not see x.
        coordinates: those of H, with their names, columns and periods.
        radius: where the window ends, in pixels at the smallest scale; 0 for a kernel of one tap.
        edge: how wide the window's edge is, relative to that.
    """

    space: int = 0
    coordinates: tuple[Coordinate, ...] = ()
    radius: float = 1.0
    edge: float = 1.0

    @property
    def columns(self) -> int:
        """How many numbers a point has."""
        return self.space + sum(coordinate.columns for coordinate in self.coordinates)


class Parametrisation(nn.Module):
    """A function from coordinates in [−1, 1]^n to kernel values; without coordinates, a plain learned vector.

    A subclass says what its features are, how they are drawn, and which of its parameters learn more slowly, and
    stands in `PARAMETRISATIONS`. The read-out, which is scaled for unit variance, is the same for all.

    Shapes:
        coordinates `(rows, n)` → values `(rows, out)`
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features

    def read_out(self, units: int, *, bias: bool = True) -> None:
        """Adds the linear map from so many features to values: the last thing that a subclass is made of."""
        if self.in_features == 0:
            self.value = nn.Parameter(torch.empty(1, self.out_features))
        else:
            self.out = nn.Linear(units, self.out_features, bias=bias)

    def features(self, coordinates: Float[Tensor, "rows n"]) -> Float[Tensor, "rows units"]:
        """What values are linear combinations of."""
        raise NotImplementedError

    def reset_features(self) -> None:
        """Draws what the features depend on; nothing by default."""

    def wake(self, coordinates: Float[Tensor, "rows n"]) -> None:
        """Mends features that are zero at all of these coordinates; nothing by default."""

    def slower(self) -> dict[nn.Parameter, float]:
        """Parameters whose learning rate is divided, and by what."""
        return {}

    @torch.no_grad()
    def reset_out(self, std: float) -> None:
        """Draws the read-out with the given standard deviation."""
        if self.in_features == 0:
            self.value.normal_(std=std)
        else:
            self.out.weight.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std)
            if self.out.bias is not None:
                self.out.bias.zero_()

    @property
    def last(self) -> nn.Parameter:
        """The weights of which values are linear: the read-out's, or the values themselves."""
        last = self.out.weight if self.in_features else self.value
        assert isinstance(last, nn.Parameter)
        return last

    @torch.no_grad()
    def scale_out(self, factor: float) -> None:
        """Multiplies all values."""
        self.last.mul_(factor)

    def forward(self, coordinates: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out"]:
        """Kernel values at the given coordinates."""
        if self.in_features == 0:
            return self.value.expand(coordinates.shape[0], -1)
        if "quantized" in type(self.out).__module__:
            raise ValueError(
                "kernel networks are functions of real coordinates and cannot be quantised: run the model under "
                "torch.autocast, or quantise what torch.export makes of it"
            )
        return self.out(self.features(coordinates))
