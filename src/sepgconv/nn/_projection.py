"""Projections over the subgroup and over space: what remains is invariant."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.grids import Grid
from sepgconv.grids._between import circle_matrix
from sepgconv.nn._check import floating

REDUCTIONS = ("max", "mean", "sum", "logsumexp", "peak")
FINER = 4
"""How much more finely a circle is sampled before the parabola through its three highest points is taken."""


def reduction(value: str, allowed: tuple[str, ...]) -> str:
    """A reduction out of those allowed, or a ValueError."""
    if value not in allowed:
        raise ValueError(f"reduce must be one of {', '.join(allowed)}; got {value!r}")
    return value


class GroupPool(nn.Module):
    """Projects over the subgroup and, by default, over space: what remains is invariant.

    A maximum over samples misses what lies between them. A mean does not: over pixels it is the integral of whatever
    they can hold. `logsumexp` is the continuous choice between both, (1/β)·log mean exp(βf). `peak` is a maximum
    *between* the samples of a circle: of the trigonometric polynomial through the features at all rotations.

    Args:
        reduce: `max`, `mean`, `sum`, `logsumexp` or `peak`.
        space: True to reduce space in the same way, `max`, `mean` or `sum` to reduce it so before the subgroup, or
            False to keep it; features then become an ordinary image `(b, c, y, x)`.
        sharpness: β of `logsumexp`: close to 0 it is the mean, and the maximum for large β.
        grid: where the features live; `peak` has to know which axes are circles. Other axes get their maximum.

    Shapes:
        `(b, c, h, y, x)` → `(b, c)`, or `(b, c, y, x)` with `space=False`
    """

    def __init__(
        self, reduce: str = "max", *, space: bool | str = True, sharpness: float = 1.0, grid: Grid | None = None
    ) -> None:
        super().__init__()
        self.reduce, self.space, self.sharpness = reduction(reduce, REDUCTIONS), space, sharpness
        if not isinstance(space, bool) and space not in ("max", "mean", "sum"):
            raise ValueError(f"space must be True, False, 'max', 'mean' or 'sum', got {space!r}")
        if not (math.isfinite(sharpness) and sharpness > 0):
            raise ValueError(f"sharpness must be a positive number, got {sharpness!r}")
        self.grid = None
        if reduce == "peak":
            if grid is None or not _circles(grid):
                raise ValueError(
                    f"reduce='peak' needs a grid with rotations of the plane, whose h axis is a circle; got {grid}"
                )
            self.grid = grid

    def forward(self, features: Float[Tensor, "b c h *space"]) -> Tensor:
        """Reduces the axes after the channel."""
        floating(features, self)
        if features.ndim < 4:
            raise ValueError(f"GroupPool takes (b, c, h, ...), got {features.ndim} axes: {tuple(features.shape)}")
        if isinstance(self.space, str):
            features = _reduce(features, self.space, tuple(range(3, features.ndim)))
        if self.grid is not None:
            features = _peaks(features, self.grid)
        dims = tuple(range(2, features.ndim)) if self.space else (2,)
        if self.reduce == "logsumexp":
            count = math.prod(features.shape[dim] for dim in dims)
            return (torch.logsumexp(self.sharpness * features, dims) - math.log(count)) / self.sharpness
        return _reduce(features, "max" if self.reduce == "peak" else self.reduce, dims)

    def extra_repr(self) -> str:
        """Reduction and range."""
        sharpness = f", sharpness={self.sharpness:g}" if self.reduce == "logsumexp" else ""
        return f"{self.reduce!r}, space={self.space!r}{sharpness}"


def _reduce(features: Tensor, reduce: str, dims: tuple[int, ...]) -> Tensor:
    return {"max": features.amax, "mean": features.mean, "sum": features.sum}[reduce](dim=dims)


def _circles(grid: Grid) -> list[int]:
    """Which axes of a grid are circles, or several of them."""
    return [part for part, axis in enumerate(grid.axes) if axis.group.circles]


def _peaks(features: Float[Tensor, "b c h *space"], grid: Grid) -> Float[Tensor, "b c rest *space"]:
    """The maximum over every circle of the grid, at each element of its other axes."""
    if features.shape[2] != grid.size:
        raise ValueError(
            f"the h axis has length {features.shape[2]} but the grid has {grid.size} elements: "
            f"input {tuple(features.shape)}, {grid}"
        )
    split = features.unflatten(2, grid.shape)
    for part in _circles(grid):
        circles = split.unflatten(2 + part, (grid.axes[part].group.circles, grid.axes[part].count))
        split = circle_maximum(circles, 3 + part).squeeze(3 + part)
    return split.flatten(2, 1 + len(grid.axes))


def circle_maximum(features: Tensor, dim: int) -> Tensor:
    """The maximum of the trigonometric polynomial through equidistant samples of a circle; the axis is kept.

    It is sampled four times as finely, where a parabola through the highest point and its neighbours is close.
    """
    values = features.movedim(dim, -1)
    count = values.shape[-1]
    if count > 2:
        places = torch.arange(FINER * count, dtype=torch.float64, device="cpu") / FINER
        fine = values @ circle_matrix(count, places).to(values).mT
        place = fine.argmax(-1, keepdim=True)
        left, top, right = (fine.gather(-1, (place + step) % fine.shape[-1]) for step in (-1, 0, 1))
        bend = (2 * top - left - right).clamp_min(torch.finfo(values.dtype).tiny)
        # A product of two bounded numbers: the gradient of a square over the bend has 1/bend, which overflows.
        values = top + (left - right) / 8 * ((left - right) / bend)
    return values.amax(-1, keepdim=True).movedim(-1, dim)
