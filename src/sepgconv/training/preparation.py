"""How an image becomes a network's input: what a checkpoint remembers, whoever made the data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepgconv.data.image_files import Framing, Picture, read_image

from .config import NetworkConfig

KEY = "preparation"  # in a checkpoint


@dataclass(frozen=True)
class Preparation:
    """From an image file, or from uint8 images, to a network's input.

    Args:
        framing: the shape of the images, and what becomes of files that have another.
        mean: of the training images, by channel, pixels scaled to [0, 1].
        std: likewise.
        known: whether the data said so; otherwise pixels in [0, 1] are assumed.
    """

    framing: Framing
    mean: tuple[float, ...]
    std: tuple[float, ...]
    known: bool = True

    def __post_init__(self) -> None:
        channels, mean, std = self.framing.channels, self.mean, self.std
        fits = len(mean) == len(std) == channels
        if not fits or not all(isinstance(v, float) and abs(v) < float("inf") for v in mean + std):
            raise ValueError(f"mean and std must have {channels} values each, got {mean} and {std}")

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Preparation":
        """Out of the plain values that a checkpoint holds."""
        mean, std = (tuple(plain[name]) for name in ("mean", "std"))
        return cls(Framing(**plain["framing"]), mean, std, plain.get("known", True))

    def plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {
            "framing": asdict(self.framing),
            "mean": list(self.mean),
            "std": list(self.std),
            "known": self.known,
        }

    def read(self, path: Path, *, invert: bool = False) -> Picture:
        """An image file in the shape of the network's images, and what was done to it; see `read_image`."""
        return read_image(path, self.framing, invert=invert)

    def __call__(self, images: Tensor) -> Tensor:
        """From uint8 images to the network's input.

        Shapes:
            `(b, c, y, x)` → `(b, c, y, x)`
        """
        return normalise(images.float() / 255, self.mean, self.std)


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Minus the mean, over the deviation, in place."""
    shape = (-1, *(1,) * (pixels.ndim - 2))
    means, deviations = (torch.tensor(values, device=pixels.device).reshape(shape) for values in (mean, std))
    return pixels.sub_(means).div_(deviations.clamp(min=1e-6))


def of_data(data: Any, network: NetworkConfig) -> dict[str, Any]:
    """What a checkpoint says of a DataModule's images: `preparation` and `class_names` in plain values.

    Any object will do, None as well: its attributes `class_names`, `mean` and `std` are used if they are there.
    """
    names = getattr(data, "class_names", None) or [str(label) for label in range(network.num_classes)]
    if len(names) != network.num_classes:
        raise ValueError(f"the data has {len(names)} class names, but the network has {network.num_classes} classes")
    prepared = getattr(data, KEY, None)
    if not isinstance(prepared, Preparation):
        mean, std = (getattr(data, name, None) for name in ("mean", "std"))
        known = mean is not None and std is not None
        mean, std = (_per_channel(value, network.in_channels) for value in ((mean, std) if known else (0.0, 1.0)))
        prepared = Preparation(Framing(network.image_size, network.in_channels), mean, std, known)
    return {**prepared.plain(), "class_names": [str(name) for name in names]}


def _per_channel(value: Any, channels: int) -> tuple[float, ...]:
    values = torch.as_tensor(value, dtype=torch.float64).reshape(-1).tolist()
    return tuple(values * channels if len(values) == 1 else values)
