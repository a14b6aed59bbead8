"""The same network with escnn's regular fields. Run by escnn's own interpreter, so it imports nothing of sepgconv."""

from typing import Any

from escnn import gspaces  # pyright: ignore[reportMissingImports]
from escnn import nn as enn  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn


class Block(nn.Module):
    """The residual block of the paper's ResNet."""

    def __init__(self, before: Any, after: Any) -> None:
        super().__init__()
        self.body = enn.SequentialModule(
            enn.R2Conv(before, before, 7, padding=3, bias=False),
            enn.InnerBatchNorm(before),
            enn.ReLU(before, inplace=True),
            enn.R2Conv(before, after, 7, padding=3, bias=False),
            enn.InnerBatchNorm(after),
            enn.ReLU(after, inplace=True),
        )
        self.shortcut = None if before == after else enn.R2Conv(before, after, 1, bias=False)
        self.relu = enn.ReLU(after, inplace=True)

    def forward(self, features: Any) -> Any:
        """Adds the block's output to the shortcut's."""
        return self.relu(self.body(features) + (features if self.shortcut is None else self.shortcut(features)))


class Network(nn.Module):
    """The paper's ResNet on the cyclic group C_n."""

    def __init__(self, rotations: int, width: float) -> None:
        super().__init__()
        space = gspaces.rot2dOnR2(rotations)
        narrow, wide = max(round(32 * width), 1), max(round(64 * width), 1)
        self.image = enn.FieldType(space, [space.trivial_repr])
        small = enn.FieldType(space, narrow * [space.regular_repr])
        large = enn.FieldType(space, wide * [space.regular_repr])

        def pool(fields: Any) -> list[Any]:
            return [enn.InnerBatchNorm(fields), enn.PointwiseMaxPool(fields, 2), enn.ReLU(fields, inplace=True)]

        self.layers = nn.Sequential(
            enn.R2Conv(self.image, small, 7, padding=3, bias=False),
            enn.InnerBatchNorm(small),
            enn.ReLU(small, inplace=True),
            Block(small, small),
            *pool(small),
            Block(small, large),
            *pool(large),
            enn.R2Conv(large, large, 3, bias=False),
            enn.InnerBatchNorm(large),
            enn.ReLU(large, inplace=True),
            enn.GroupPooling(large),
        )
        self.classifier = nn.Sequential(
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(wide, 256, bias=False),
            nn.BatchNorm1d(256),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.Linear(256, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.classifier(self.layers(enn.GeometricTensor(images, self.image)).tensor)


def build(case: dict[str, Any], width: float) -> nn.Module:
    """The network of a case."""
    return Network(case["counts"][0], width)
