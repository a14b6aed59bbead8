"""Where a trained network loses a dilation, layer by layer: `python -m sepgconv.analysis.scale_trained CHECKPOINT …`.

Digits of MNIST's test set are made smaller by one step of the grid, and what every layer makes of the larger ones is
compared with what it makes of the smaller ones, moved: by one scale, and apart by the step. The same is done with the
network as it is drawn, with the norms' statistics of these digits.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepgconv.actions import transform_space
from sepgconv.analysis.scale import Table, _rms, as_markdown
from sepgconv.data import load, scale
from sepgconv.grids import Grid
from sepgconv.groups import Dilation
from sepgconv.testing import relative
from sepgconv.training import Classifier
from sepgconv.training.trained import load_trained

DIGITS = 200
DISC = 0.75  # of the inscribed circle: features near the border see what lies beyond


def step_of(grid: Grid) -> float:
    """By how much neighbouring scales of a grid differ, whose only axis are dilations."""
    if len(grid.axes) != 1 or not isinstance(grid.axes[0].group, Dilation):
        raise ValueError(f"this is for networks on scale2, whose features have one scale each; got {grid}")
    scales = grid.axes[0].group.matrix(grid.axes[0].elements)[:, 0, 0].tolist()
    return scales[1] / scales[0]


@torch.no_grad()
def layer_errors(net: nn.Sequential, small: Tensor, large: Tensor, step: float) -> Iterator[tuple[str, list[float]]]:
    """For every layer before the projection, its name and the relative error at every scale but the first."""
    matrix = torch.eye(2, dtype=torch.float64) * step
    for number, layer in enumerate(net):
        small, large = layer(small), layer(large)
        if small.ndim != 5 or small.shape[2] == 1:  # from the projection on
            return
        expected = transform_space(small, matrix)[:, :, :-1]
        inside = _disc(small.shape[-1]) if small.shape[-1] > 1 else torch.ones(1, 1)
        pairs = zip((large[:, :, 1:] * inside).unbind(2), (expected * inside).unbind(2), strict=True)
        yield f"{number} {type(layer).__name__}", [relative(found, wanted) for found, wanted in pairs]


def _disc(size: int) -> Tensor:
    line = torch.arange(size) - (size - 1) / 2
    return (line[:, None].square() + line.square() <= (DISC * size / 2) ** 2).double()


def as_drawn(settings: Mapping[str, Any], images: Tensor) -> nn.Module:
    """The same network with weights drawn afresh, and the norms' statistics of images."""
    torch.manual_seed(0)
    net = Classifier.from_config(settings).net.double().train()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # the mean over all batches
    with torch.no_grad():
        for batch in images.split(50):
            net(batch)
    return net.eval()


def table(path: str, digits: Tensor) -> Table:
    """A checkpoint's errors by layer, drawn and trained, over all scales and without one at each end."""
    trained = load_trained(path)
    grid = trained.grid.build()
    step = step_of(grid)
    sizes = (scale(digits.float(), factor).clamp(0, 255).round().byte() for factor in (1 / step, 1.0))
    small, large = (trained.preparation(images).double() for images in sizes)
    nets = (as_drawn(trained.checkpoint["hyper_parameters"], large), trained.model.double())
    rows = []
    for found in zip(*(layer_errors(_layers(net), small, large, step) for net in nets), strict=True):
        parts = [part for _, errors in found for part in (errors, errors[1:-1])]
        cells = [f"{_rms(part):.2f}" if part else "–" for part in parts]
        rows.append((found[0][0], *cells))
    head = ("after layer", "drawn: all scales", "drawn: without the ends", "trained: all", "trained: without the ends")
    return f"{trained.network.name} on {grid}, one step of {step:.3f}", head, rows


def _layers(net: nn.Module) -> nn.Sequential:
    if not isinstance(net, nn.Sequential):
        raise ValueError(f"this is for networks that are a sequence of layers, got {type(net).__name__}")
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m sepgconv.analysis.scale_trained", description=__doc__)
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument("--root", help="where MNIST is")
    arguments = parser.parse_args()
    images = load("mnist", root=arguments.root).test.images[:DIGITS]
    for checkpoint in arguments.checkpoints:
        print(as_markdown(table(checkpoint, images)), flush=True)
