"""Projection over dilations: which of them are read, and the maximum between them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.grids import Grid
from sepgconv.groups import Dilation
from sepgconv.nn._check import floating, whole

DROPPING = ("max", "mean")
REDUCTIONS = ("max", "mean", "peak", "none", "copy")


def dilations(grid: Grid, layer: nn.Module) -> int:
    """Which axis of a grid holds its dilations, or a ValueError."""
    found = [part for part, axis in enumerate(grid.axes) if isinstance(axis.group, Dilation)]
    if not found:
        raise ValueError(f"{type(layer).__name__} needs a grid with dilations, such as scale2 or sim2; got {grid}")
    return found[0]


class ScalePool(nn.Module):
    """Projects over the scales of a grid, without those at its ends, or leaves these out and nothing else.

    A truncated grid has ends: there the next convolution misses neighbours, and what it makes is not what it would make
    of the same object elsewhere. With n convolutions that see one neighbour on either side, n scales at each end are
    spoilt. They are computed all the same, since the scales further in need them, but they need not be read.

    Args:
        reduce: `max`, `mean`, or `peak`, the maximum of the parabola through the highest scale and its neighbours;
            `none` keeps the scales that are read; `copy` keeps all, with copies of the nearest that is read for those
            that are not. Put before every group convolution, `copy` keeps spoilt scales from growing in number with
            every layer.
        grid: where the features live.
        margin: how many scales at each end are not read.
        dropout: probability of not reading a scale, in training, drawn for every image and scale; one is always read.
            Else a network learns to combine fine scales with coarse ones, and of an object that is much smaller or
            larger it has one of the two only. For `max` and `mean`.

    Shapes:
        `(b, c, h, y, x)` → `(b, c, r, y, x)`, r the elements of the other axes; with `none` times the scales read, with
        `copy` times all.
    """

    def __init__(self, reduce: str = "max", *, grid: Grid, margin: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        if reduce not in REDUCTIONS:
            raise ValueError(f"reduce must be one of {', '.join(REDUCTIONS)}; got {reduce!r}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must lie between 0 and 1, got {dropout!r}")
        if dropout and reduce not in DROPPING:
            raise ValueError(f"dropout is for reduce {' and '.join(DROPPING)}, got {dropout!r} with {reduce!r}")
        self.reduce, self.grid, self.margin, self.dropout = reduce, grid, whole("margin", margin, 0), dropout
        self.read()

    def read(self) -> tuple[int, slice]:
        """The axis of dilations, and which of its elements are read."""
        part = dilations(self.grid, self)
        count = self.grid.axes[part].count
        if 2 * self.margin >= count:
            raise ValueError(f"margin={self.margin} leaves none of {count} scales; take {(count - 1) // 2} at most")
        return part, slice(self.margin, count - self.margin)

    def forward(self, features: Float[Tensor, "b c h *space"]) -> Float[Tensor, "b c r *space"]:
        """Reduces the scales that are read."""
        floating(features, self)
        if features.ndim < 3 or features.shape[2] != self.grid.size:
            raise ValueError(
                f"ScalePool takes (b, c, h, ...) with {self.grid.size} elements of {self.grid}, "
                f"got {tuple(features.shape)}"
            )
        part, read = self.read()
        if self.training and self.dropout:
            return over_some_scales(features, self.grid.shape, part, read, self.reduce, self.dropout)
        return over_scales(features, self.grid.shape, part, read, self.reduce)

    def extra_repr(self) -> str:
        """Reduction, margin and dropout."""
        return f"{self.reduce!r}, margin={self.margin}" + (f", dropout={self.dropout:g}" if self.dropout else "")


def over_scales(
    features: Float[Tensor, "b c h *space"], shape: tuple[int, ...], part: int, read: slice, reduce: str
) -> Float[Tensor, "b c r *space"]:
    """Reduces some elements of one of the axes, of these lengths, that h is made of."""
    scales = features.unflatten(2, shape).movedim(2 + part, -1)[..., read]
    if reduce == "copy":
        ends = (scales[..., :1], scales[..., -1:])
        missing = (read.start, shape[part] - read.stop)
        low, high = (end.expand(*end.shape[:-1], count) for end, count in zip(ends, missing, strict=True))
        scales = torch.cat([low, scales, high], -1)
    if reduce in ("none", "copy"):
        return scales.movedim(-1, 2 + part).flatten(2, 1 + len(shape))
    found = {"max": lambda x: x.amax(-1), "mean": lambda x: x.mean(-1), "peak": line_maximum}[reduce](scales)
    return found.unsqueeze(2) if len(shape) == 1 else found.flatten(2, len(shape))


def over_some_scales(
    features: Float[Tensor, "b c h *space"],
    shape: tuple[int, ...],
    part: int,
    read: slice,
    reduce: str,
    dropout: float,
) -> Float[Tensor, "b c r *space"]:
    """As `over_scales` by `max` or `mean`, of at least one scale of each image, drawn at random."""
    scales = features.unflatten(2, shape).movedim(2 + part, 0)[read]
    drawn = torch.rand(scales.shape[:2], device=features.device)
    kept = (drawn >= dropout) | (drawn == drawn.amax(0))
    kept = kept[(...,) + (None,) * (scales.ndim - 2)]
    mean = reduce == "mean"
    found = (scales * kept).sum(0) / kept.sum(0) if mean else scales.masked_fill(~kept, -torch.inf).amax(0)
    return found.unsqueeze(2) if len(shape) == 1 else found.flatten(2, len(shape))


def line_maximum(values: Float[Tensor, "*s n"]) -> Float[Tensor, "*s"]:
    """The maximum of the parabola through the highest of equidistant samples and its neighbours; an end as it is."""
    top, place = values.max(-1, keepdim=True)
    if values.shape[-1] < 3:
        return top.squeeze(-1)
    inner = place.clamp(1, values.shape[-1] - 2)
    left, right = values.gather(-1, inner - 1), values.gather(-1, inner + 1)
    bend = (2 * top - left - right).clamp_min(torch.finfo(values.dtype).tiny)
    higher = top + (left - right).square() / (8 * bend)
    return torch.where(place == inner, higher, top).squeeze(-1)
