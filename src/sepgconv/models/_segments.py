"""Sequences of layers: fused where that is the same, and with few activations kept for the backward pass."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from sepgconv.nn import GroupConv, GroupPool, LiftingConv, ResidualBlock
from sepgconv.nn._fused import HOOKS, run_layers
from sepgconv.nn._recompute import recompute

STARTS = (LiftingConv, GroupConv, ResidualBlock, GroupPool)
AS_IS = (ResidualBlock, GroupPool, nn.Dropout)


class Layers(nn.Sequential):
    """As `nn.Sequential`, but convolution, norm and ReLU that follow each other are one where that is the same."""

    def forward(self, input: Tensor) -> Tensor:
        """Runs the layers one after the other."""
        return run_layers(list(self), input)


class Recomputed(nn.Sequential):
    """As `nn.Sequential`, with the same names of parameters, but only the inputs of segments are kept for backward.

    A segment is a convolution with what follows it, or what follows a residual block. Blocks look after themselves,
    and layers from the projection over the group on are run as they are: their activations are small. Lifted images
    are not kept as the input of a block: they are large, and lifting them again is cheap.
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
        segments = self.segments()
        while segments:
            segment = segments.pop(0)
            after = segments[0][0] if segments else None
            if isinstance(segment[0], LiftingConv) and _as_made(after):
                assert isinstance(after, ResidualBlock)
                input = _on_lifted(after, segment, input)
                segments.pop(0)
            elif isinstance(segment[0], AS_IS):
                input = run_layers(segment, input)
            else:
                input = recompute(partial(run_layers, segment), segment, input)
        return input


def _on_lifted(block: ResidualBlock, lifting: Sequence[nn.Module], images: Tensor) -> Tensor:
    """A block on lifted images, the first half of which is computed again from the images themselves."""

    def begin(images: Tensor) -> tuple[Tensor, Tensor]:
        lifted = recompute(partial(run_layers, lifting), lifting, images)
        return lifted, block.begin(lifted, reader=block.conv2)

    return block.finish(*recompute(begin, [*lifting, block.conv1, block.norm1], images))


def _as_made(layer: nn.Module | None) -> bool:
    """Whether a layer is a residual block that nobody looks at or has changed."""
    ours = isinstance(layer, ResidualBlock) and layer.as_made and "forward" not in vars(layer)
    return ours and not any(vars(layer)[name] for name in HOOKS)
