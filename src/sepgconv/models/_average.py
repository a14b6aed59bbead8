"""One answer out of those that a network gives at several shifts of its random grid."""

import copy

from torch import Tensor, nn

from sepgconv.grids import Grid
from sepgconv.nn._check import whole


def average(model: nn.Module, shifts: int = 4) -> nn.Module:
    """A network that answers with the mean of what `model` answers at several shifts of its random grid, in `eval()`.

    Trained on a grid that is shifted at random, a network knows every shift alike, and its answers at two of them
    differ by what pixels and a finite grid make of a turn. With n rotations and k shifts, the mean is one over n·k
    rotations, but kernels are asked for the relative rotations that they were trained at, which
    `set_resolution(model, rotations=n·k)` would leave. It takes k times the time. Weights are the model's own.

    Args:
        model: with a grid that is sampled at random; it stays as it is.
        shifts: how many, evenly over a cell of the grid; the first is none.

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
