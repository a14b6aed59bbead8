"""Builds the networks that are measured. Workers run this file; see `worker.py`."""

from typing import Any

import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.grids import GRIDS
from sepgconv.models._resnet import widen
from sepgconv.nn._lowpass import subsample

STOCK = {
    2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveMaxPool2d, 7),
    3: (nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, nn.AdaptiveMaxPool3d, 5),
}
"""Stock layers by the dimension of space, and the kernel size that `resnet` has there."""


class PlainBlock(nn.Module):
    """The residual block of the paper's ResNet with stock convolutions."""

    def __init__(self, in_channels: int, out_channels: int, space: int) -> None:
        super().__init__()
        conv, norm, _, _, size = STOCK[space]
        self.body = nn.Sequential(
            conv(in_channels, in_channels, size, padding=size // 2, bias=False),
            norm(in_channels),
            nn.ReLU(inplace=True),
            conv(in_channels, out_channels, size, padding=size // 2, bias=False),
            norm(out_channels),
            nn.ReLU(inplace=True),
        )
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else conv(in_channels, out_channels, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Adds the block's output to the shortcut's."""
        return (self.body(features) + self.shortcut(features)).relu_()


class LowPassed(nn.Module):
    """A ReLU, and every second pixel after a low-pass: the anti-aliased pooling of `resnet`."""

    def forward(self, features: Tensor) -> Tensor:
        """`(b, c, y, x)` with even sizes, to half of them."""
        return subsample(features.relu_(), 2, 2, 0)


def plain_cnn(width: float = 1.0, space: int = 2, *, antialias: bool = False) -> nn.Module:
    """The paper's ResNet for images or volumes as one writes it without groups: same widths, same kernel sizes."""
    narrow, wide = widen(32, width), widen(64, width)
    conv, norm, pool, end, size = STOCK[space]
    last, end = (5, nn.AdaptiveAvgPool2d) if antialias else (3, end)

    def pooled() -> list[nn.Module]:
        return [LowPassed()] if antialias else [pool(2), nn.ReLU(inplace=True)]

    return nn.Sequential(
        conv(1, narrow, size, padding=size // 2, bias=False),
        norm(narrow),
        nn.ReLU(inplace=True),
        PlainBlock(narrow, narrow, space),
        norm(narrow),
        *pooled(),
        PlainBlock(narrow, wide, space),
        norm(wide),
        *pooled(),
        conv(wide, wide, last, bias=False),
        norm(wide),
        nn.ReLU(inplace=True),
        end(1),
        nn.Flatten(),
        nn.Linear(wide, 256, bias=False),
        nn.BatchNorm1d(256),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Linear(256, 10),
    ).to(memory_format=torch.channels_last if space == 2 else torch.channels_last_3d)  # pyright: ignore[reportCallIssue]


def build(case: dict[str, Any], width: float) -> nn.Module:
    """The network of a case: the plain CNN, or the paper's ResNet with one hidden kernel layer."""
    if case["kind"] == "plain":
        return plain_cnn(width, case["space"], antialias=case["antialias"])
    return sg.models.resnet(
        GRIDS[case["group"]].make(*case["counts"]),
        factorisation=case["factorisation"],
        kernel=sg.KernelConfig(layers=1, cutoff=0.4 if case["antialias"] else None),
        width=width,
        recompute=case["recompute"],
        antialias=case["antialias"],
    )


def multiply_adds(model: nn.Module, image: Tensor) -> int | None:
    """Multiply-adds of one image's forward pass."""
    return sg.profile(model, image, repeats=1).multiply_adds
