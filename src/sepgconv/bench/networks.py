"""Builds the networks that are measured. Workers run this file; see `worker.py`."""

from typing import Any

import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.models._resnet import widen


class PlainBlock(nn.Module):
    """The residual block of the paper's ResNet with stock convolutions."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, in_channels, 7, padding=3, bias=False),
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, out_channels, 7, padding=3, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Adds the block's output to the shortcut's."""
        return (self.body(features) + self.shortcut(features)).relu_()


def plain_cnn(width: float = 1.0) -> nn.Module:
    """The paper's ResNet for 28×28 images as one writes it without groups: same widths, same kernel sizes."""
    narrow, wide = widen(32, width), widen(64, width)
    return nn.Sequential(
        nn.Conv2d(1, narrow, 7, padding=3, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        PlainBlock(narrow, narrow),
        nn.BatchNorm2d(narrow),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        PlainBlock(narrow, wide),
        nn.BatchNorm2d(wide),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Conv2d(wide, wide, 3, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(wide, 256, bias=False),
        nn.BatchNorm1d(256),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Linear(256, 10),
    ).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def build(case: dict[str, Any], width: float) -> nn.Module:
    """The network of a case: the plain CNN, or the paper's ResNet with one hidden kernel layer."""
    if case["kind"] == "plain":
        return plain_cnn(width)
    return sg.models.resnet(
        getattr(sg, case["group"])(*case["counts"]),
        factorisation=case["factorisation"],
        kernel=sg.KernelConfig(layers=1),
        width=width,
        recompute=case["recompute"],
    )


def multiply_adds(model: nn.Module, image: Tensor) -> int | None:
    """Multiply-adds of one image's forward pass."""
    return sg.profile(model, image, repeats=1).multiply_adds
