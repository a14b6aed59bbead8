"""A sequence of layers that keeps few activations for the backward pass."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from sepgconv.nn import GroupConv, GroupPool, LiftingConv, ResidualBlock
from sepgconv.nn._checkpoint import recompute

STARTS = (LiftingConv, GroupConv, ResidualBlock, GroupPool)
AS_IS = (ResidualBlock, GroupPool, nn.Dropout)


class Recomputed(nn.Sequential):
    """As `nn.Sequential`, with the same names of parameters, but only the inputs of segments are kept for backward.

    A segment is a convolution with what follows it, or what follows a residual block. Blocks look after themselves,
    and layers from the projection over the group on are run as they are: their activations are small.
    """

    def segments(self) -> list[list[nn.Module]]:
        """The layers, segment by segment."""
        result: list[list[nn.Module]] = []
        for layer in self:
            if not result or isinstance(layer, STARTS) or isinstance(result[-1][-1], ResidualBlock):
                result.append([])
            result[-1].append(layer)
        return result

    def forward(self, input: Tensor) -> Tensor:
        """Runs the segments one after the other."""
        for segment in self.segments():
            as_is = isinstance(segment[0], AS_IS)
            input = _run(segment, input) if as_is else recompute(partial(_run, segment), segment, input)
        return input


def _run(layers: Sequence[nn.Module], input: Tensor) -> Tensor:
    for layer in layers:
        input = layer(input)
    return input
