"""One answer out of those that a network gives at several shifts of its random grid."""

import copy

import torch
from torch import Tensor, nn

from sepgconv.grids import Grid
from sepgconv.nn._check import whole


def average(model: nn.Module, shifts: int = 4) -> nn.Module:
    """A network that answers with the mean of what `model` answers at several shifts of its random grid, in `eval()`.

    Trained on a grid that is shifted at random, a network knows every shift alike, and its answers at two of them
    differ by what pixels and a finite grid make of a turn. With n rotations and k shifts the mean is over n·k
    rotations, and unlike `set_resolution(model, rotations=n·k)` it asks kernels only for relative rotations that they
    were trained at. It takes k times the time. Weights are the model's own.

    Args:
        model: with a grid that is sampled at random; it stays as it is.
        shifts: how many, evenly over a cell of the grid, beginning with none; on SO(3) spread over all of it.

    Raises:
        ValueError: no grid of the model is sampled at random.
    """
    weights = {id(weight): weight for weight in model.parameters()}  # which copies share
    networks = [copy.deepcopy(model, dict(weights)).eval() for _ in range(whole("shifts", shifts, 1))]
    for number, network in enumerate(networks):
        stand(network, number, shifts)
    return Average(networks).eval()


class Average(nn.Module):
    """The mean of what networks answer.

    Args:
        networks: that take and return tensors of the same shapes.
    """

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """As the networks."""
        total = self.networks[0](x)
        for network in self.networks[1:]:
            total = total + network(x)
        return total / len(self.networks)


def mean_over_shifts(model: nn.Module, x: Tensor, shifts: int) -> Tensor:
    """What `average(model, shifts)` answers, by the model itself, which may be compiled or spread over processes."""
    try:
        answers = []
        for number in range(shifts):
            stand(model, number, shifts)
            answers.append(model(x))
    finally:
        stand(model, 0, shifts)
    return torch.stack(answers).mean(0)


def stand(model: nn.Module, number: int, shifts: int) -> None:
    """Moves all random grids of a model to one of so many places in their cells, for `eval()`; number 0 is the middle.

    The places are even along the first dimension, and an irrational lattice along those that SO(3) has besides.
    """
    grids = [module for module in model.modules() if isinstance(module, Grid) and module.random]
    if not grids:
        raise ValueError(f"shifts need a grid that is sampled at random, and {type(model).__name__} has none")
    for grid in grids:
        count = sum(axis.group.dimension for axis in grid.axes if axis.sampling == "random")
        steps = (1 / shifts, *(2 ** (part / count) for part in range(1, count)))
        grid.stand(*((0.5 + number * step) % 1 for step in steps))
