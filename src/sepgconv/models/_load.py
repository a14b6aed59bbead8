"""Trained networks by name."""

from pathlib import Path

from torch import nn


def weights() -> list[str]:
    """Names that `load` takes."""
    from sepgconv.weights import names

    return names()


def load(name: str | Path, *, num_classes: int | None = None) -> nn.Module:
    """A trained network, from normalised images to logits, in evaluation mode.

    Where its recipe averages answers over shifts of the grid, so does the network; with other classes it does not.
    `sepgconv.training.load_trained` gives the names of its classes and how its images are prepared as well.

    Args:
        name: one of `weights()`, or the path of a checkpoint (`.ckpt` or `.safetensors`).
        num_classes: for a network to train on with other classes: its last layer is drawn anew.

    Raises:
        FileNotFoundError: there are no such weights.
        ValueError: the file cannot be used.
    """
    from dataclasses import replace

    from sepgconv.training.begin import begin_with
    from sepgconv.training.trained import load_trained
    from sepgconv.weights import locate

    path = locate(name)
    trained = load_trained(path)
    if num_classes is None or num_classes == trained.network.num_classes:
        return trained.model
    network = replace(trained.network, num_classes=num_classes).build(trained.grid.build())
    begin_with(network, path)
    return network.eval()
