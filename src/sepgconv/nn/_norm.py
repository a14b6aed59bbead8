"""Batch normalisation of features on a group."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.lean import batch_norm, in_rows
from sepgconv.nn._check import floating, hooked


def affine(norm: nn.modules.batchnorm._BatchNorm) -> tuple[Float[Tensor, "c"], Float[Tensor, "c"]]:
    """What a norm in eval multiplies channels by, and what it adds."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with one mean and variance per channel, over batch, subgroup and space: equivariant.

    Shapes:
        `(b, c, h, y, x)` → the same; any number of spatial axes.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        floating(input, self)
        if input.ndim != 2 and not 4 <= input.ndim <= 6:
            raise ValueError(f"BatchNorm takes (b, c, h, ...) with 1 to 3 spatial axes, got {tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"BatchNorm has {self.num_features} channels, got {input.shape[1]}: {tuple(input.shape)}")

    def forward(self, input: Float[Tensor, "b c h *space"]) -> Float[Tensor, "b c h *space"]:
        """Normalises; in the memory layout of the convolutions, without a copy."""
        self._check_input_dim(input)
        if input.ndim >= 4 and input.movedim(1, -1).is_contiguous() and not in_rows(input):
            # Channels-last: any order of the other axes will do, and torch's sums over such rows are not exact.
            return self.forward(input.movedim(-1, 2)).movedim(2, -1)
        if not self._ours(input):
            return super().forward(input)
        return self._norm(input, relu=False)

    def rectified(
        self, input: Float[Tensor, "b c h *space"], *, private: bool = False
    ) -> Float[Tensor, "b c h *space"]:
        """`relu(self(input))`; in training it keeps nothing but the input for the backward pass.

        `private` is as in `lean.batch_norm`.
        """
        if hooked(self) or not (self.training and self._ours(input)):
            return F.relu(self(input))
        self._check_input_dim(input)
        return self._norm(input, relu=True, private=private)

    def _ours(self, input: Tensor) -> bool:
        """Whether the features lie in our layout, and are more than one, for which stock batch norm has a message."""
        return input.ndim >= 4 and input.numel() != self.num_features and in_rows(input)

    def _norm(self, input: Tensor, *, relu: bool, private: bool = False) -> Tensor:
        """Normalises by the statistics of the batch, which the running ones follow, or in eval by the running ones."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        kept = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if kept else (None, None)
        return batch_norm(
            input,
            self.weight,
            self.bias,
            running,
            momentum,
            self.eps,
            relu=relu,
            private=private,
            batch=self.training or self.running_mean is None,
        )


def rectify(features: Tensor, norm: nn.modules.batchnorm._BatchNorm, *, private: bool = False) -> Tensor:
    """`relu(norm(features))`, in one operation if nobody has made another norm of ours, as SyncBatchNorm does."""
    if isinstance(norm, BatchNorm) and type(norm).forward is BatchNorm.forward:
        return norm.rectified(features, private=private)
    return F.relu(norm(features))
