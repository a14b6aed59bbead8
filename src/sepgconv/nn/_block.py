"""The residual block of the paper's ResNet."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.grids import Grid
from sepgconv.kernels import Factor, KernelConfig
from sepgconv.nn._conv import GroupConv
from sepgconv.nn._fused import conv_norm_relu
from sepgconv.nn._norm import BatchNorm
from sepgconv.nn._recompute import recompute


class ResidualBlock(nn.Module):
    """Two group convolutions with a shortcut: relu(relu(bn(conv(relu(bn(conv(f)))))) + shortcut(f)).

    Where channels or grids differ, the shortcut is a 1×1 group convolution of the same factorisation whose kernel
    networks have half the width; otherwise it is the identity (paper, appendix B.1).

    Args:
        in_channels: channels of the input and of the first convolution's output.
        out_channels: channels of the output.
        kernel_size: odd width of the kernels in pixels.
        grid: where the input lives.
        out_grid: where the output lives, if elsewhere.
        factorisation: as in `GroupConv`.
        kernel: settings of the kernel networks.
        recompute: whether to compute activations again in the backward pass instead of keeping them: about half
            of the memory for a fifth more time, and the same numbers.

    Shapes:
        `(b, in_channels, h, y, x)` → `(b, out_channels, h, y, x)`
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        grid: Grid,
        out_grid: Grid | None = None,
        factorisation: str | Sequence[Factor] = "separable",
        kernel: KernelConfig = KernelConfig(),
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        target = grid if out_grid is None else out_grid
        shared = {"grid": grid, "factorisation": factorisation}
        self.conv1 = GroupConv(in_channels, in_channels, kernel_size, kernel=kernel, **shared)
        self.norm1 = BatchNorm(in_channels)
        self.conv2 = GroupConv(in_channels, out_channels, kernel_size, kernel=kernel, out_grid=target, **shared)
        self.norm2 = BatchNorm(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or target is not grid:
            narrow = replace(kernel, hidden=max(kernel.hidden // 2, 1))
            shortcut = GroupConv(in_channels, out_channels, 1, kernel=narrow, out_grid=target, **shared)
            shortcut.redraws = False  # conv2 has just moved the grid on which the two are added
            self.shortcut = shortcut
        for conv in self.children() if recompute else ():
            if isinstance(conv, GroupConv):
                conv.save_memory()

    def forward(self, features: Float[Tensor, "b i h *space"]) -> Float[Tensor, "b j o *space"]:
        """Adds the block's output to the shortcut's."""
        begin = partial(self.begin, reader=self.conv2) if self.as_made else self.begin
        if not self.recompute:
            return self.finish(features, begin(features))
        return self.finish(features, _segment(begin, features, self.conv1, self.norm1))

    @property
    def as_made(self) -> bool:
        """Whether `finish` is ours, so that nobody but the second convolution reads what `begin` makes."""
        return type(self) is ResidualBlock and not vars(self).keys() & {"begin", "finish"}

    def begin(
        self, features: Float[Tensor, "b i h *space"], *, reader: nn.Module | None = None
    ) -> Float[Tensor, "b i h *space"]:
        """What the second convolution takes; with a reader, as in `conv_norm_relu`, it is for that one alone."""
        return conv_norm_relu(self.conv1, self.norm1, features, reader=reader)

    def finish(
        self, features: Float[Tensor, "b i h *space"], hidden: Float[Tensor, "b i h *space"]
    ) -> Float[Tensor, "b j o *space"]:
        """The block's output from its input and what `begin` has made of it."""
        if not self.recompute:
            return conv_norm_relu(self.conv2, self.norm2, hidden, shortcut=(self.shortcut, features))
        # The sum is outside of the segments: its gradient needs nothing but its result, which the next layer keeps.
        hidden = _segment(partial(conv_norm_relu, self.conv2, self.norm2), hidden, self.conv2, self.norm2)
        return F.relu(hidden + _segment(self.shortcut, features, self.shortcut), inplace=True)

    def extra_repr(self) -> str:
        """Whether activations are computed again."""
        return "recompute=True" if self.recompute else ""


def _segment(function: Callable[[Tensor], Tensor], features: Tensor, *modules: nn.Module) -> Tensor:
    """`function(features)`, which runs these modules: what is computed again at a time, so the less the better."""
    return function(features) if isinstance(function, nn.Identity) else recompute(function, modules, features)
