"""`sepgconv predict`: a trained network classifies image files of any size."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepgconv.data.image_files import read_image

from . import storage
from .datamodule import Normaliser
from .module import Classifier
from .nonfinite import finite


@dataclass
class Predictor:
    """A trained network, with what it takes to prepare an image for it.

    Args:
        classifier: in evaluation mode.
        normaliser: with the statistics of the data that it was trained on.
        class_names: by label.
    """

    classifier: Classifier
    normaliser: Normaliser
    class_names: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> "Predictor":
        """From a `.ckpt` or a `.safetensors` file that `sepgconv fit` has written."""
        checkpoint = storage.read(path)
        if "Images" not in checkpoint:
            raise ValueError(f"{path} does not say how its images were prepared")
        try:
            return cls._build(checkpoint)
        except KeyError as error:
            raise ValueError(f"{path} cannot be used: it lacks {error}") from error
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    @classmethod
    def _build(cls, checkpoint: dict[str, Any]) -> "Predictor":
        classifier = Classifier.from_config(checkpoint["hyper_parameters"])
        network, data = classifier.network, checkpoint["Images"]
        if not isinstance(network.image_size, int):
            raise ValueError(f"image_size must be a whole number, got {network.image_size!r}")
        classifier.on_load_checkpoint(checkpoint)
        classifier.load_state_dict(checkpoint["state_dict"])
        for name, value in classifier.state_dict().items():
            if name.startswith(storage.PREFIX) and not finite([value]):
                raise ValueError(f"{name} is not finite; the run that wrote it has failed")
        mean, std = tuple(data["mean"]), tuple(data["std"])
        fits = len(mean) == len(std) == network.in_channels
        if not fits or not all(isinstance(v, float) and abs(v) < float("inf") for v in mean + std):
            raise ValueError(f"mean and std must have {network.in_channels} values each, got {mean} and {std}")
        names = tuple(map(str, data["class_names"]))
        if len(names) != network.num_classes:
            raise ValueError(f"{len(names)} class names for {network.num_classes} classes")
        return cls(classifier.eval(), Normaliser(mean, std), names)

    def read(self, path: Path, invert: bool = False) -> tuple[Tensor, str]:
        """An image file as the network takes it, and what was done to it; see `read_image`.

        Shapes:
            `(1, c, y, x)`, uint8
        """
        network = self.classifier.network
        pixels, notes = read_image(path, (network.in_channels, network.image_size, network.image_size), invert=invert)
        if remark := self._other_way_round(pixels):
            notes = (*notes, remark)
        return pixels[None], ", ".join(notes)

    def _other_way_round(self, pixels: Tensor) -> str | None:
        """A remark on a grey image that would be much more like the training images with dark and light swapped."""
        theirs, *colours = self.normaliser.mean
        if colours:
            return None
        ours = pixels.float().mean().item() / 255
        if abs(1 - ours - theirs) + 0.25 > abs(ours - theirs):
            return None
        kinds = ("lighter", "dark on light") if ours > theirs else ("darker", "light on dark")
        return f"{kinds[0]} than the training images: {kinds[1]} needs --invert"

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Probabilities of uint8 images `(b, c, y, x)`.

        Raises:
            ValueError: the network's output is not finite.
        """
        logits = self.classifier(self.normaliser(images))
        if not finite([logits]):
            raise ValueError("the network's output is not finite")
        return logits.softmax(1)


def main(arguments: Sequence[str]) -> int:
    """Prints a line per file; returns 1 if one of them could not be classified."""
    parser = argparse.ArgumentParser("sepgconv predict", description="Classify image files with a trained network.")
    parser.add_argument(
        "--ckpt", required=True, type=Path, metavar="FILE", help="a run's best.ckpt or best.safetensors"
    )
    parser.add_argument(
        "--invert", action="store_true", help="swap dark and light: for dark ink on paper, as MNIST is light on dark"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="IMAGE", help="PNG, JPEG, TIFF, … of any size")
    options = parser.parse_args(arguments)
    predictor = Predictor.load(options.ckpt)
    failed = False
    for path in options.files:
        try:
            images, notes = predictor.read(path, options.invert)
        except (ValueError, OSError) as error:
            failed = True
            print(f"sepgconv predict: {error}", file=sys.stderr)
            continue
        try:
            probability, label = predictor(images)[0].max(0)
        except ValueError as error:
            failed = True
            print(f"sepgconv predict: {path}: {error}", file=sys.stderr)
            continue
        print(f"{path}: {predictor.class_names[int(label)]} ({probability:.1%})" + (f"  [{notes}]" if notes else ""))
    return int(failed)
