"""`sepgconv predict`: a trained network classifies image files of any size."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from . import storage
from .datamodule import Normaliser
from .module import Classifier


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
        classifier = Classifier.from_config(checkpoint["hyper_parameters"])
        classifier.on_load_checkpoint(checkpoint)
        classifier.load_state_dict(checkpoint["state_dict"])
        data = checkpoint["Images"]
        normaliser = Normaliser(tuple(data["mean"]), tuple(data["std"]))
        return cls(classifier.eval(), normaliser, tuple(data["class_names"]))

    def read(self, path: Path, invert: bool = False) -> tuple[Tensor, str]:
        """An image file as the network takes it, and what was done to it.

        Another size is scaled, and padded with black if it is not square; colours are added or dropped.

        Shapes:
            `(1, c, y, x)`, uint8
        """
        network = self.classifier.network
        try:
            with Image.open(path) as file:
                image = ImageOps.exif_transpose(file)
                image.load()
        except UnidentifiedImageError as error:
            raise ValueError(f"{path} is not an image, or of a kind that is not known") from error
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        notes = []
        mode = "L" if network.in_channels == 1 else "RGB"
        if image.mode != mode:
            notes.append(f"{image.mode} to {mode}")
            image = image.convert(mode)
        if invert:
            image = ImageOps.invert(image)
        size = (network.image_size, network.image_size)
        if image.size != size:
            notes.append(f"{image.width}×{image.height} to {size[0]}×{size[1]}")
            image = ImageOps.pad(image, size, Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).reshape(*size, network.in_channels)
        return pixels.permute(2, 0, 1)[None].contiguous(), ", ".join(notes)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Probabilities of uint8 images `(b, c, y, x)`."""
        return self.classifier(self.normaliser(images)).softmax(1)


def main(arguments: Sequence[str]) -> int:
    """Prints a line per file; returns 1 if one of them could not be classified."""
    parser = argparse.ArgumentParser("sepgconv predict", description="Classify image files with a trained network.")
    parser.add_argument(
        "--ckpt", required=True, type=Path, metavar="FILE", help="a run's best.ckpt or best.safetensors"
    )
    parser.add_argument("--invert", action="store_true", help="swap dark and light: MNIST digits are light on dark")
    parser.add_argument("files", nargs="+", type=Path, metavar="IMAGE", help="PNG, JPEG, … of any size")
    options = parser.parse_args(arguments)
    predictor = Predictor.load(options.ckpt)
    failed = False
    for path in options.files:
        try:
            images, notes = predictor.read(path, options.invert)
        except ValueError as error:
            failed = True
            print(f"sepgconv predict: {error}", file=sys.stderr)
            continue
        probability, label = predictor(images)[0].max(0)
        print(f"{path}: {predictor.class_names[int(label)]} ({probability:.1%})" + (f"  [{notes}]" if notes else ""))
    return int(failed)
