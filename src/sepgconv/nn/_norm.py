"""Batch normalisation of features on a group."""

from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.execution.native import batch_norm, followed


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with one mean and variance per channel, over batch, subgroup and space: equivariant.

    Shapes:
        `(b, c, h, y, x)` → the same; any number of spatial axes.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if not input.is_floating_point():
            raise ValueError(f"BatchNorm takes real floating-point input, got {input.dtype}")
        if input.ndim != 2 and not 4 <= input.ndim <= 6:
            raise ValueError(f"BatchNorm takes (b, c, h, ...) with 1 to 3 spatial axes, got {tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"BatchNorm has {self.num_features} channels, got {input.shape[1]}: {tuple(input.shape)}")

    def forward(self, input: Float[Tensor, "b c h *space"]) -> Float[Tensor, "b c h *space"]:
        """Normalises; in the memory layout of the convolutions, without a copy."""
        return self.normalise(input)

    def folded(self) -> tuple[Float[Tensor, "c"], Float[Tensor, "c"]]:
        """What a norm that does not look at the batch multiplies channels by, and what it adds."""
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = (self.running_var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        return scale, shift if self.bias is None else shift + self.bias

    def normalise(
        self,
        input: Tensor,
        *,
        relu: bool = False,
        addend: Tensor | None = None,
        own: bool = False,
        remade: bool = False,
        native: bool | None = None,
    ) -> Tensor:
        """Normalises and, in the same operation, rectifies and adds: `relu(relu(norm) + addend)`.

        With `own`, the gradient that comes back belongs to this operation alone, and may be written over. With
        `remade`, whoever reads the result may make it again instead of keeping it. `native` says whether compiled
        kernels may be used, if that was asked.
        """
        self._check_input_dim(input)
        if input.ndim < 4 or input.numel() == self.num_features:
            normal = super().forward(input)  # which has a message for a single value per channel
            return followed(normal, None, relu=relu, addend=addend)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        kept = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if kept else (None, None)
        batch = self.training or self.running_mean is None
        given = (input, self.weight, self.bias, running, momentum, self.eps)
        return batch_norm(*given, batch=batch, relu=relu, addend=addend, own=own, remade=remade, native=native)
