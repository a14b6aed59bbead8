"""Pooling over the subgroup and over space."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.execution.native import max_pool
from sepgconv.nn._check import floating, symmetric_sampling, whole

REDUCTIONS = ("max", "mean", "sum")


def _reduction(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"reduce must be one of {', '.join(allowed)}; got {value!r}")
    return value


class GroupPool(nn.Module):
    """Projects over the subgroup and, by default, over space: what remains is invariant.

    Args:
        reduce: `max`, `mean` or `sum`.
        space: whether to project over space as well; without it features become an ordinary image `(b, c, y, x)`.

    Shapes:
        `(b, c, h, y, x)` → `(b, c)`, or `(b, c, y, x)` with `space=False`
    """

    def __init__(self, reduce: str = "max", *, space: bool = True) -> None:
        super().__init__()
        self.reduce, self.space = _reduction(reduce, REDUCTIONS), space

    def forward(self, features: Float[Tensor, "b c h *space"]) -> Tensor:
        """Reduces the axes after the channel."""
        floating(features, self)
        if features.ndim < 4:
            raise ValueError(f"GroupPool takes (b, c, h, ...), got {features.ndim} axes: {tuple(features.shape)}")
        dims = tuple(range(2, features.ndim)) if self.space else (2,)
        return {"max": features.amax, "mean": features.mean, "sum": features.sum}[self.reduce](dim=dims)

    def extra_repr(self) -> str:
        """Reduction and range."""
        return f"{self.reduce!r}, space={self.space}"


class SpatialPool(nn.Module):
    """Pools over windows of space at every element of the subgroup.

    Args:
        reduce: `max` or `mean`.
        kernel_size: width of the window.
        stride: distance between windows; by default they touch.
        padding: pixels added on every side.

    Shapes:
        `(b, c, h, y, x)` → `(b, c, h, y', x')`
    """

    def __init__(
        self, reduce: str = "max", kernel_size: int = 2, *, stride: int | None = None, padding: int = 0
    ) -> None:
        super().__init__()
        self.reduce = _reduction(reduce, ("max", "mean"))
        self.kernel_size = whole("kernel_size", kernel_size, 1)
        self.stride = whole("stride", kernel_size if stride is None else stride, 1)
        self.padding = whole("padding", padding, 0)
        if 2 * padding > kernel_size:
            raise ValueError(f"padding must be at most half of kernel_size={kernel_size}, got {padding}")

    def forward(self, features: Float[Tensor, "b c h *space"]) -> Float[Tensor, "b c h *pooled"]:
        """Pools; warns once if the windows cannot cover the input symmetrically."""
        floating(features, self)
        dims = features.ndim - 3
        if not 1 <= dims <= 3:
            raise ValueError(f"SpatialPool takes (b, c, h, ...), got {features.ndim} axes: {tuple(features.shape)}")
        if min(features.shape[3:]) + 2 * self.padding < self.kernel_size:
            raise ValueError(f"a window of {self.kernel_size} does not fit an input of shape {tuple(features.shape)}")
        symmetric_sampling(self, tuple(features.shape[3:]), self.kernel_size, self.stride, self.padding)
        merged = rearrange(features, "b c h ... -> b (h c) ...")
        pools = {
            "max": (F.max_pool1d, F.max_pool2d, F.max_pool3d),
            "mean": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
        }
        if self.reduce == "max" and dims == 2:
            pooled = max_pool(merged, self.kernel_size, self.stride, self.padding)
        else:
            pooled = pools[self.reduce][dims - 1](merged, self.kernel_size, self.stride, self.padding)
        return rearrange(pooled, "b (h c) ... -> b c h ...", h=features.shape[2])

    def extra_repr(self) -> str:
        """Reduction, window and stride."""
        return f"{self.reduce!r}, kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
