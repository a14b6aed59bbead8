"""Small modules of stock operations that folded networks are made of, besides torch's own layers.

Features `(b, c, h, y, x)` are kept as ordinary images `(b, h·c, y, x)` between them.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from sepgconv.nn._fused import HOOKS
from sepgconv.nn._pyramid import shrink, side_by_side
from sepgconv.nn._scale_pool import over_scales

PIECE = 1_000_000
"""Numbers of a feature map that are treated at a time: 4 MB of float32, which a core's caches hold (docs/deploy.md)."""


class Merge(nn.Module):
    """Features `(b, c, h, …)` as images `(b, h·c, …)`."""

    def forward(self, features: Tensor) -> Tensor:
        """One copy at most."""
        return features.transpose(1, 2).flatten(1, 2)


class Split(nn.Module):
    """Images `(b, h·c, …)` as features `(b, c, h, …)`.

    Args:
        elements: the length of h.
    """

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements

    def forward(self, images: Tensor) -> Tensor:
        """A view."""
        return images.unflatten(1, (self.elements, images.shape[1] // self.elements)).transpose(1, 2)


class Regroup(nn.Module):
    """Images `(b, m·n, …)` as `(b, n·m, …)`: the other of two axes outermost.

    Args:
        outer: m.
    """

    def __init__(self, outer: int) -> None:
        super().__init__()
        self.outer = outer

    def forward(self, images: Tensor) -> Tensor:
        """One copy."""
        return images.unflatten(1, (self.outer, images.shape[1] // self.outer)).transpose(1, 2).flatten(1, 2)


class Waves(nn.Module):
    """A 1×1 convolution that is circulant along the outermost part of h: transform, blocks, transform back.

    Args:
        basis: the orthonormal waves, one a row.
        blocks: a grouped 1×1 convolution of pairs of waves.
    """

    basis: Tensor

    def __init__(self, basis: Tensor, blocks: nn.Module) -> None:
        super().__init__()
        self.register_buffer("basis", basis)
        self.blocks = blocks

    def forward(self, images: Tensor) -> Tensor:
        """`(b, n·i, …)` → `(b, n·j, …)`."""
        mixed = self.blocks(_along(self.basis, images))
        return _along(self.basis.T, mixed)


def _along(matrix: Tensor, images: Tensor) -> Tensor:
    """A matrix applied to the outermost of the channels' axes."""
    after, before = matrix.shape
    rows = torch.matmul(matrix, images.reshape(images.shape[0], before, -1))
    return rows.reshape(images.shape[0], after * (images.shape[1] // before), *images.shape[2:])


class Each(nn.Module):
    """A layer for features that treats every element of h alike and by itself, on images `(b, h·c, …)`.

    Args:
        layer: takes `(b, c, h, …)`.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """All elements as channels of one."""
        return self.layer(images.unsqueeze(2)).squeeze(2)


class Project(nn.Module):
    """Reduces `(b, h·c, …)` over h and, with `space`, over space.

    Args:
        reduce: `max`, `mean` or `sum`.
        elements: the length of h.
        space: whether to reduce over space, too; or how to, before h is.
    """

    def __init__(self, reduce: str, elements: int, *, space: bool | str) -> None:
        super().__init__()
        self.reduce, self.elements, self.space = reduce, elements, space

    def forward(self, images: Tensor) -> Tensor:
        """Space first, which leaves little to regroup."""
        if self.space:
            over = self.space if isinstance(self.space, str) else self.reduce
            images = _reduced(images, over, tuple(range(2, images.ndim)))
        apart = images.unflatten(1, (self.elements, images.shape[1] // self.elements))
        return _reduced(apart, self.reduce, (1,))

    def extra_repr(self) -> str:
        """What is reduced."""
        return f"{self.reduce!r}, elements={self.elements}, space={self.space!r}"


def _reduced(images: Tensor, reduce: str, dims: tuple[int, ...]) -> Tensor:
    if reduce == "max":
        return images.amax(dims)
    return images.mean(dims) if reduce == "mean" else images.sum(dims)


class Pyramid(nn.Module):
    """A network on an image at several scales, as `ScalePyramid`.

    Args:
        layers: from images to features.
        scales: by how much the image is shrunk.
        padding: pixels around it at every scale.
        space: `max` or `mean`.
        centred: whether images keep their number of pixels.
    """

    def __init__(self, layers: nn.Module, scales: list[float], *, padding: int, space: str, centred: bool) -> None:
        super().__init__()
        self.layers, self.scales, self.padding, self.space, self.centred = layers, scales, padding, space, centred

    def forward(self, images: Tensor) -> Tensor:
        """`(b, c, y, x)` → `(b, c', h, 1, 1)`."""
        levels = [self.layers(shrink(images, scale, self.padding, self.centred)) for scale in self.scales]
        return side_by_side(levels, self.space, images.ndim - 2)


class Scales(nn.Module):
    """Reduces some of the scales of features, as `ScalePool`.

    Args:
        shape: lengths of the axes that h is made of.
        part: which of them are the scales.
        read: which scales are read.
        reduce: as in `ScalePool`.
    """

    def __init__(self, shape: tuple[int, ...], part: int, read: slice, reduce: str) -> None:
        super().__init__()
        self.shape, self.part, self.read, self.reduce = shape, part, read, reduce

    def forward(self, features: Tensor) -> Tensor:
        """`(b, c, h, …)` → `(b, c, r, …)`."""
        return over_scales(features, self.shape, self.part, self.read, self.reduce)


class Sum(nn.Module):
    """relu(body(f) + shortcut(f)).

    Args:
        body: the block's convolutions.
        shortcut: what is added to their result.
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Adds the two."""
        return torch.relu(self.body(images) + self.shortcut(images))


def images_at_a_time(channels: int, pixels: int) -> int:
    """How many images have `PIECE` numbers in a layer of so many channels; at least one."""
    return max(1, PIECE // max(1, channels * pixels))


class InPieces(nn.Sequential):
    """Layers that treat every image by itself, run on a few images at a time, so that features stay in the caches.

    A compiler, an exporter and whoever has hooked a layer see all images at once.
    """

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Sequential`."""
        first = next((part for part in self.modules() if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
        if first is None or self._seen_whole(input):
            return super().forward(input)
        count = images_at_a_time(first.out_channels, input[0, 0].numel())
        forward = super().forward
        return torch.cat([forward(piece) for piece in input.split(count)]) if len(input) > count else forward(input)

    def _seen_whole(self, images: Tensor) -> bool:
        # First, since to ask for a size is to make it a constant.
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            return True
        if self.training or images.ndim < 3 or len(images) < 2 or images.device.type != "cpu":
            return True
        hooked = (vars(part)[name] for part in self.modules() for name in HOOKS)
        return any(getattr(torch_module, f"_global{name}") for name in HOOKS) or any(hooked)
