"""The sizes of a convolution, and the ordinary convolution over space that all roads lead to."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.ops import depthwise

CHAINS = 8
"""More of them would cost time: each adds up a whole map."""


@dataclass(frozen=True)
class Geometry:
    """The sizes that a convolution needs besides its kernel.

    `source` and `target` count the elements along each part of H. `periodic` says which parts are circles, and `reach`
    how many elements away a kernel still sees something along each part (None: everywhere, or unequal samplings).
    """

    space: int
    kernel_size: int
    stride: int
    padding: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    periodic: tuple[bool, ...]
    reach: tuple[int | None, ...]

    @property
    def taps(self) -> int:
        """Number of spatial taps."""
        return self.kernel_size**self.space

    def conv(
        self, rows: Tensor, weight: Float[Tensor, "out k in"], bias: Tensor | None = None, groups: int = 1
    ) -> Tensor:
        """An ordinary convolution over space, `b … in -> b … out`; torch sees it as channels-last.

        A channels-last convolution adds up all its terms in one chain. On a group it is split into up to eight chains
        of about 512 terms: they round less, which turns show.
        """
        parts = min(math.ceil(weight[0].numel() / 512), weight.shape[-1], CHAINS) if self.target else 1
        if parts == 1:
            return self._conv(rows, weight, bias, groups)
        pairs = zip(rows.unflatten(-1, (groups, -1)).chunk(parts, -1), weight.chunk(parts, -1), strict=True)
        result: Tensor | None = None
        for part, kernel in pairs:
            found = self._conv(part.flatten(-2).contiguous(), kernel.contiguous(), None, groups)
            result = found if result is None else result.add_(found)
        assert result is not None
        return result if bias is None else result.add_(bias)

    def _conv(self, rows: Tensor, weight: Float[Tensor, "out k in"], bias: Tensor | None, groups: int) -> Tensor:
        weight = weight.unflatten(1, (self.kernel_size,) * self.space).movedim(-1, 1)
        images = rows.movedim(-1, 1)
        if self.space == 2 and bias is None and groups == len(weight) == images.shape[1]:
            return depthwise(images, weight, self.stride, (self.padding, self.padding)).movedim(1, -1)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.space - 1]
        return convolve(images, weight, bias, self.stride, self.padding, 1, groups).movedim(1, -1)
