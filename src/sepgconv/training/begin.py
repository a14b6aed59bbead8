"""Weights to begin with: those of a trained network, except for a last layer that has other classes."""

import warnings
from pathlib import Path

from torch import nn

from sepgconv.models._average import Average

from . import storage


def begin_with(network: nn.Module, start: str | Path) -> None:
    """Loads trained weights into a network of the same kind.

    Kernels are continuous, so images, kernels and grids may be of other sizes. The last layer keeps the weights it was
    drawn with if its number of classes differs.

    Args:
        network: to be fitted on.
        start: a name out of `models.weights()`, or a checkpoint.

    Raises:
        ValueError: the weights are of another kind of network.
    """
    from sepgconv.weights import locate

    path = locate(start)
    weights = {
        key.removeprefix(storage.PREFIX): value
        for key, value in storage.read(path)["state_dict"].items()
        if key.startswith(storage.PREFIX)
    }
    own = network.state_dict()
    other = {key for key in own if key in weights and own[key].shape != weights[key].shape}
    head = {f"{name}.{part}" for name in _last_layers(network) for part in ("weight", "bias")}
    if own.keys() != weights.keys() or not other <= head:
        wrong = sorted((own.keys() ^ weights.keys()) | (other - head))
        raise ValueError(
            f"{path} is of another network: {len(wrong)} weights do not fit, the first is {wrong[0]}; "
            "factorisation, widths and kernel networks must be the same"
        )
    if any(weights[key].shape[1:] != own[key].shape[1:] for key in other):
        raise ValueError(f"{path} is of another network: its last layer has other inputs")
    network.load_state_dict({key: own[key] if key in other else weights[key] for key in own})
    if not all(value.isfinite().all() for value in weights.values()):
        warnings.warn(f"{path} has weights that are not finite", stacklevel=2)


def _last_layers(network: nn.Module, prefix: str = "") -> list[str]:
    """The name of the last layer, of an ensemble those of all its members."""
    if isinstance(network, Average):
        return [name for n, one in enumerate(network.networks) for name in _last_layers(one, f"networks.{n}.")]
    return [prefix + name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1:]
