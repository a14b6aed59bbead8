"""Pooling over windows of space."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.execution.native import max_pool
from sepgconv.nn._check import floating, symmetric_sampling, whole
from sepgconv.nn._lowpass import subsample
from sepgconv.nn._projection import reduction

POOLS = {
    "max": (F.max_pool1d, F.max_pool2d, F.max_pool3d),
    "mean": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
}


class SpatialPool(nn.Module):
    """Pools over windows of space at every element of the subgroup.

    With `antialias` features are low-passed before they are subsampled: a mean becomes a round filter about 3.5 strides
    wide, a maximum is taken around every pixel and then filtered. The result has the size and the centres of the plain
    pool's. Like its windows the filter is symmetric about the image's centre for sizes of one parity only; a layer that
    sees another one warns. `SpatialPool.fitting` makes the pool for a size.

    Args:
        reduce: `max` or `mean`.
        kernel_size: width of the window.
        stride: distance between windows; by default they touch.
        padding: pixels added on every side.
        antialias: whether to low-pass before subsampling.

    Shapes:
        `(b, c, h, y, x)` → `(b, c, h, y', x')`
    """

    def __init__(
        self,
        reduce: str = "max",
        kernel_size: int = 2,
        *,
        stride: int | None = None,
        padding: int = 0,
        antialias: bool = False,
    ) -> None:
        super().__init__()
        self.reduce = reduction(reduce, ("max", "mean"))
        self.kernel_size = whole("kernel_size", kernel_size, 1)
        self.stride = whole("stride", kernel_size if stride is None else stride, 1)
        self.padding, self.antialias = whole("padding", padding, 0), antialias
        if 2 * padding > kernel_size:
            raise ValueError(f"padding must be at most half of kernel_size={kernel_size}, got {padding}")
        if antialias and self.stride == 1:
            raise ValueError("stride must be at least 2 with antialias=True, got 1: nothing is subsampled")

    @classmethod
    def fitting(cls, reduce: str, size: int, stride: int = 2) -> "SpatialPool":
        """The anti-aliased pool that samples an image of this size symmetrically about its centre."""
        whole("size", size, 1)
        if found := _window(size, whole("stride", stride, 1)):
            return cls(reduce, found[0], stride=stride, padding=found[1], antialias=True)
        fits = ", ".join(str(n) for n in range(2, size + 1) if _window(size, n))
        raise ValueError(
            f"no filter samples {size} pixels symmetrically at stride {stride}; strides that fit: {fits or 'none'}"
        )

    def out_size(self, size: int) -> int:
        """How many pixels are left of so many."""
        return (size + 2 * self.padding - self.kernel_size) // self.stride + 1

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
        if not self.antialias:
            pooled = _pool(self.reduce, merged, self.kernel_size, self.stride, self.padding)
        else:
            if self.reduce == "max":  # around every pixel: over an odd window, which has a pixel for its centre
                around = self.kernel_size // 2
                merged = _pool("max", merged, 2 * around + 1, 1, around)
            pooled = subsample(merged, self.kernel_size, self.stride, self.padding)
        return rearrange(pooled, "b (h c) ... -> b c h ...", h=features.shape[2])

    def extra_repr(self) -> str:
        """Reduction, window and stride."""
        text = f"{self.reduce!r}, kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return text + (", antialias=True" if self.antialias else "")


def _pool(reduce: str, images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Stock pooling, or the faster one where there is one."""
    if reduce == "max" and images.ndim == 4:
        return max_pool(images, size, stride, padding)
    return POOLS[reduce][images.ndim - 3](images, size, stride, padding)


def _window(size: int, stride: int) -> tuple[int, int] | None:
    """Width and padding of windows that touch or just overlap and lie symmetrically in an image, if there are any."""
    if not 1 < stride <= size:
        return None
    for window in (stride, stride + 1):
        for padding in range(window // 2 + 1):
            if (size + 2 * padding - window) % stride == 0 and window <= size + 2 * padding:
                return window, padding
    return None
