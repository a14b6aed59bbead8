"""Small modules of stock operations that folded networks are made of, besides torch's own layers.

Features `(b, c, h, y, x)` are kept as ordinary images `(b, h·c, y, x)` between them.
"""

import torch
from torch import Tensor, nn


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


class Project(nn.Module):
    """Reduces `(b, h·c, …)` over h and, with `space`, over space.

    Args:
        reduce: `max`, `mean` or `sum`.
        elements: the length of h.
        space: whether to reduce over space, too.
    """

    def __init__(self, reduce: str, elements: int, *, space: bool) -> None:
        super().__init__()
        self.reduce, self.elements, self.space = reduce, elements, space

    def forward(self, images: Tensor) -> Tensor:
        """Space first, which leaves little to regroup."""
        if self.space:
            images = self._reduced(images, tuple(range(2, images.ndim)))
        return self._reduced(images.unflatten(1, (self.elements, images.shape[1] // self.elements)), (1,))

    def _reduced(self, images: Tensor, dims: tuple[int, ...]) -> Tensor:
        if self.reduce == "max":
            return images.amax(dims)
        return images.mean(dims) if self.reduce == "mean" else images.sum(dims)

    def extra_repr(self) -> str:
        """What is reduced."""
        return f"{self.reduce!r}, elements={self.elements}, space={self.space}"


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
