"""Dilations as a pyramid of images: a wide kernel on an image is the kernel itself on the image made smaller."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.grids import Grid
from sepgconv.nn._block import ResidualBlock
from sepgconv.nn._check import AXES, floating, whole
from sepgconv.nn._fused import fusable
from sepgconv.nn._norm import BatchNorm
from sepgconv.nn._sampled import _Conv
from sepgconv.nn._scale_pool import dilations


class ScalePyramid(nn.Module):
    """Runs layers on an image at every scale of a grid: R^d⋊R⁺, each scale on pixels of its own.

    Σ_x̃ f(x̃)·k(s⁻¹(x̃ − x))/s^d is, at every s-th pixel, a convolution of the image shrunk by s with k as it is. That
    costs s^d times less than a window wide enough for s, and the kernel has as many taps at every scale. Scales do not
    mix before they are projected. Norms, those of a `ResidualBlock` as well, take their statistics over all scales
    together, or else they would undo the difference between them. A grid sampled at random moves once for all scales.

    Beyond its border an image goes on as it ends there. Zeros would be an edge of their own wherever the ground is not
    zero, closer to the picture at every scale.

    Args:
        layers: from images `(b, c, y, x)` of any size to features `(b, c', r, y, x)` on a grid without dilations, or to
            images; applied one after the other to all scales. Signals and volumes likewise.
        grid: whose dilations are taken, `scale2` or the like; the largest shrinks the image most.
        padding: pixels that are added around the image at every scale, for layers that do not pad by themselves.
        finest: the first scale: 0.5 begins with an image enlarged by two.
        space: `max` or `mean`, how features of a scale are projected over space.
        centred: whether the images of the pyramid all have as many pixels as the image itself, about its centre: the
            finest shows a part of it, the coarsest more than there is. Layers are applied to all of them at once. It
            costs as much as the image itself times the number of scales, for objects that stand in the middle.

    Shapes:
        `(b, c, y, x)` → `(b, c', h, 1, 1)`; h runs over the elements of the layers and, fastest, over the scales.
        Signals and volumes have one or three axes of space.
    """

    def __init__(
        self,
        layers: nn.Sequential,
        *,
        grid: Grid,
        padding: int = 0,
        finest: float = 1.0,
        space: str = "max",
        centred: bool = False,
    ) -> None:
        super().__init__()
        self.layers, self.grid, self.padding = layers, grid, whole("padding", padding, 0)
        if dilations(grid, self) != len(grid.axes) - 1:
            raise ValueError(f"ScalePyramid takes a grid whose last axis are dilations, got {grid}")
        if not finest > 0:
            raise ValueError(f"finest must be positive, got {finest!r}")
        if space not in ("max", "mean"):
            raise ValueError(f"space must be 'max' or 'mean', got {space!r}")
        self.finest, self.space, self.centred = finest, space, centred

    @property
    def scales(self) -> list[float]:
        """By how much the image is shrunk, from the finest to the coarsest."""
        axis = self.grid.axes[dilations(self.grid, self)]
        return [self.finest * scale for scale in axis.group.matrix(axis.elements)[:, 0, 0].tolist()]

    def forward(self, images: Float[Tensor, "b c *space"]) -> Float[Tensor, "b k h *ones"]:
        """The layers' features at all scales."""
        floating(images, self)
        if images.ndim != 2 + self.grid.space:
            axes = AXES[self.grid.space]
            raise ValueError(f"ScalePyramid takes (b, c, {axes}), got {images.ndim} axes: {tuple(images.shape)}")
        least = min(images.shape[2:])
        if least / self.scales[-1] < 2:
            raise ValueError(
                f"max_scale={self.scales[-1]:g} leaves {least / self.scales[-1]:.2g} pixels of images of {least}; "
                f"take one of {least / 2:g} at most"
            )
        levels = [shrink(images, scale, self.padding, self.centred) for scale in self.scales]
        if self.centred:
            levels = list(self.layers(torch.cat(levels)).chunk(len(levels)))
            return side_by_side(levels, self.space, self.grid.space)
        layers = list(self.layers)
        while layers:
            layer = layers.pop(0)
            relu = bool(layers) and type(layers[0]) is nn.ReLU and fusable(layer, layers[0])
            if relu and isinstance(layer, BatchNorm):
                levels = _together(layer, levels, self.grid.space, relu=layers.pop(0))
            else:
                levels = _run(layer, levels, self.grid.space)
        return side_by_side(levels, self.space, self.grid.space)

    def extra_repr(self) -> str:
        """Scales and padding."""
        text = f"scales={[round(s, 2) for s in self.scales]}, padding={self.padding}, space={self.space!r}"
        return text + (", centred=True" if self.centred else "")


def side_by_side(levels: list[Tensor], reduce: str, space: int) -> Float[Tensor, "b k h *ones"]:
    """Features of all scales, each projected over its axes of space by `max` or `mean`."""
    dims = tuple(range(-space, 0))
    found = [level.amax(dims) if reduce == "max" else level.mean(dims) for level in levels]
    scales = torch.stack(found, -1).flatten(2)
    return scales.reshape(*scales.shape, *[1] * space)


def shrink(
    images: Float[Tensor, "b c *space"], scale: float, padding: int = 0, centred: bool = False
) -> Float[Tensor, "b c *smaller"]:
    """Images smaller by a factor about their centre, averaged over what a pixel covers, with a border that goes on.

    `centred` images have as many pixels as before: parts of the border more, or, if they are enlarged, their middle.
    """
    for axis in range(2, images.ndim):
        n = images.shape[axis]
        matrix = shrinking(n, scale, padding, n if centred else None).to(images)
        images = (images.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)
    return images


def shrinking(n: int, scale: float, padding: int = 0, count: int | None = None) -> Float[Tensor, "m n"]:
    """The matrix that shrinks a line of n pixels by exactly a factor: cubics, widened where pixels are dropped.

    Pixels are placed evenly about the middle: `count` of them, or as many as fit, or one more to be even or odd as n,
    which strides behind them count on; and `padding` more at both ends.
    """
    if count is None:
        count = max(int(n / scale + 1e-6), 1)
        count += (count - n) % 2
    line = torch.arange(-padding, count + padding, dtype=torch.float64, device="cpu")
    centres = (line - (count - 1) / 2) * scale + (n - 1) / 2
    wide = max(scale, 1.0)
    reach = int(2 * wide) + 1
    taps = centres.floor()[:, None] + torch.arange(-reach, reach + 2, dtype=torch.float64, device="cpu")
    t = ((taps - centres[:, None]) / wide).abs()
    near, far = t.clamp(max=1), t.clamp(1, 2)  # Keys' kernel in two pieces, each 0 at its ends beyond
    weights = (1.5 * near - 2.5) * near * near + 1 - 0.5 * (((far - 5) * far + 8) * far - 4)
    matrix = torch.zeros(len(centres), n, dtype=torch.float64, device="cpu")
    return matrix.scatter_add_(1, taps.long().clamp(0, n - 1), weights / weights.sum(1, keepdim=True))


def _run(layer: nn.Module, levels: list[Tensor], space: int) -> list[Tensor]:
    """A layer on all levels; norms, also those in a residual block as we made it, see them together."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return _together(layer, levels, space)
    if not isinstance(layer, ResidualBlock) or not _in_parts(layer):
        return _each(layer, levels)
    hidden = levels
    for conv, norm in ((layer.conv1, layer.norm1), (layer.conv2, layer.norm2)):
        hidden = _together(norm, _each(conv, hidden), space, relu=nn.ReLU())
    return [F.relu(after + before) for after, before in zip(hidden, _each(layer.shortcut, levels), strict=True)]


def _each(layer: nn.Module, levels: list[Tensor]) -> list[Tensor]:
    """A layer on every level; a grid that is sampled at random is moved for the first, and stays for the others."""
    first = layer(levels[0])
    moving = [part for part in layer.modules() if isinstance(part, _Conv) and part.redraws]
    for part in moving:
        part.redraws = False
    try:
        return [first, *(layer(level) for level in levels[1:])]
    finally:
        for part in moving:
            part.redraws = True


def _in_parts(block: ResidualBlock) -> bool:
    """Whether a block is as we made it, and has batch norms that take their statistics from what they are given."""
    norms = [n for n in (block.norm1, block.norm2) if isinstance(n, nn.modules.batchnorm._BatchNorm)]
    by_batch = any(norm.training or norm.running_mean is None for norm in norms)
    return by_batch and len(norms) == 2 and block.as_made and "forward" not in vars(block)


def _together(norm: nn.Module, levels: list[Tensor], space: int, relu: nn.Module | None = None) -> list[Tensor]:
    """A norm with the statistics of all levels, and perhaps a ReLU.

    All pixels of all levels are put into one line, channels last, as convolutions keep them: where they do, nothing is
    copied but the line itself.
    """
    ndim, channels = levels[0].ndim, levels[0].shape[1]
    order = (0, *range(ndim - space, ndim), *range(2, ndim - space), 1)
    last = [level.permute(order) for level in levels]
    lines = [level.reshape(-1, channels) for level in last]
    joined = torch.cat(lines).T.reshape(1, channels, -1, *[1] * (ndim - 3))
    if relu is not None and isinstance(norm, BatchNorm) and fusable(norm):
        joined = norm.normalise(joined, relu=True)
    else:
        joined = norm(joined) if relu is None else relu(norm(joined))
    parts = joined.reshape(channels, -1).T.split([len(line) for line in lines])
    back = [order.index(axis) for axis in range(ndim)]
    return [part.reshape(level.shape).permute(back) for part, level in zip(parts, last, strict=True)]
