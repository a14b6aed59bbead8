"""A trained network out of any checkpoint of ours, with all it takes to use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import storage
from .config import GridConfig, NetworkConfig
from .module import Classifier
from .nonfinite import finite
from .preparation import KEY, Preparation


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Args:
        model: from normalised images to logits, in evaluation mode; averaged over shifts if `grid` names several.
        classes: their names, by label.
        preparation: from image files and uint8 images to the model's input.
        network: the model's settings.
        grid: the settings of its group.
        checkpoint: all else that the file holds: `hyper_parameters`, `global_step` and more.
    """

    model: nn.Module
    classes: tuple[str, ...]
    preparation: Preparation
    network: NetworkConfig
    grid: GridConfig
    checkpoint: Mapping[str, Any]

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Of uint8 images `(b, c, y, x)`.

        Raises:
            ValueError: they are not finite.
        """
        logits = self.model(self.preparation(images))
        if not finite([logits]):
            raise ValueError("the network's output is not finite")
        return logits


def load_trained(path: str | Path) -> Trained:
    """The network in a `.ckpt` or `.safetensors` file that a run of ours has written, now or in an earlier version.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is damaged, or does not say what it takes to use the network.
    """
    path = Path(path)
    checkpoint = storage.read(path)
    if KEY not in checkpoint and not checkpoint.get("Images"):
        raise ValueError(
            f"{path} does not say how its images were prepared: it is of an earlier version and of data that was not "
            "`Images`; train it again, or write out its weights"
        )
    try:
        return _build(checkpoint)
    except KeyError as error:
        raise ValueError(f"the checkpoint {path} cannot be used: it lacks {error}") from error
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the checkpoint {path} cannot be used: {error}") from error


def _build(checkpoint: dict[str, Any]) -> Trained:
    classifier = Classifier.from_config(checkpoint["hyper_parameters"])
    network = classifier.network
    if not isinstance(network.image_size, int):
        raise ValueError(f"image_size must be a whole number, got {network.image_size!r}")
    classifier.on_load_checkpoint(checkpoint)
    classifier.load_state_dict(checkpoint["state_dict"])
    for name, value in classifier.state_dict().items():
        if name.startswith(storage.PREFIX) and not finite([value]):
            raise ValueError(f"{name} is not finite; the run that wrote it has failed")
    said = checkpoint.get(KEY) or _of_images(checkpoint["Images"], network)
    preparation = Preparation.from_plain(said)
    framing = preparation.framing
    if (framing.channels, framing.size) != (network.in_channels, network.image_size):
        raise ValueError(
            f"its images are {framing.shape}, but its network takes {network.in_channels} channels of "
            f"{network.image_size} pixels"
        )
    names = tuple(map(str, said["class_names"]))
    if len(names) != network.num_classes:
        raise ValueError(f"{len(names)} class names for {network.num_classes} classes")
    rest = {key: value for key, value in checkpoint.items() if key not in ("state_dict", "optimizer_states")}
    return Trained(classifier.finished(), names, preparation, network, classifier.grid, rest)


def _of_images(images: Mapping[str, Any], network: NetworkConfig) -> dict[str, Any]:
    """What a checkpoint of an earlier version says: its images are as the network takes them."""
    framing = {"size": network.image_size, "channels": network.in_channels}
    return {"framing": framing, **{name: images[name] for name in ("mean", "std", "class_names")}}
