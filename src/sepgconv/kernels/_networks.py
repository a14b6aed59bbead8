"""Kernel networks: small MLPs that map coordinates to kernel values; and the settings of all parametrisations."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sepgconv.kernels._parametrisation import Domain, Parametrisation

ACTIVATIONS = {"sine": None, "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "silu": nn.SiLU}
DEAD = 0.1
"""Share of a layer's size that must pass its activation; half of what is as often positive as negative has 0.7."""


@dataclass(frozen=True)
class KernelConfig:
    """Settings of what kernels are made of.

    Args:
        hidden: width of the hidden layers.
        layers: number of hidden layers after the first.
        omega0: frequency multiplier ω₀ of the sine layers: small is smooth. Other activations ignore it.
        activation: `sine` (a SIREN), or `relu`, `leaky_relu`, `silu`.
        parametrisation: a name out of `PARAMETRISATIONS`: `network`, to which all of these belong, or `fourier`.
        cutoff: frequency in cycles per pixel, at the smallest scale, above which kernels are low-passed; None for
            kernels as they come. 0.5 is what pixels hold. Kernels of one tap are exempt. In the basis `fourier` at most
            a hundredth of a kernel's energy lies above it, and None stands for 0.4.
    """

    hidden: int = 64
    layers: int = 2
    omega0: float = 10.0
    activation: str = "sine"
    parametrisation: str = "network"
    cutoff: float | None = None

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {self.hidden!r}")
        if self.layers < 0:
            raise ValueError(f"layers must be at least 0, got {self.layers!r}")
        if not (math.isfinite(self.omega0) and self.omega0 > 0):
            raise ValueError(f"omega0 must be a positive number, got {self.omega0!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")
        if self.parametrisation not in PARAMETRISATIONS:
            allowed = ", ".join(PARAMETRISATIONS)
            raise ValueError(f"parametrisation must be one of {allowed}; got {self.parametrisation!r}")
        if self.cutoff is not None and not 0 < self.cutoff <= 0.5:
            raise ValueError(
                f"cutoff must be positive and at most 0.5 cycles per pixel, which pixels can just hold; "
                f"got {self.cutoff!r}"
            )


class Sine(nn.Module):
    """x ↦ sin(ω₀·x)."""

    def __init__(self, omega0: float) -> None:
        super().__init__()
        self.omega0 = omega0

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return torch.sin(self.omega0 * x)


class KernelNetwork(Parametrisation):
    """An MLP from coordinates in [−1, 1]^n to kernel values; without coordinates, a plain learned vector.

    Args:
        in_features: n.
        out_features: number of values.
        config: its settings.
        columns: how many of the n belong to each coordinate; by default one.

    Shapes:
        coordinates `(rows, n)` → values `(rows, out)`
    """

    def __init__(
        self, in_features: int, out_features: int, config: KernelConfig, columns: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(in_features, out_features)
        self.config, self.columns = config, columns or (1,) * in_features
        widths = [in_features] + [config.hidden] * (config.layers + 1)
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths if in_features else []):
            activation = ACTIVATIONS[config.activation]
            layers += [nn.Linear(fan_in, fan_out), activation() if activation else Sine(config.omega0)]
        self.hidden = nn.Sequential(*layers)
        self.read_out(config.hidden)

    def features(self, coordinates: Float[Tensor, "rows n"]) -> Float[Tensor, "rows units"]:
        """The last hidden layer."""
        return self.hidden(coordinates)

    def slower(self) -> dict[nn.Parameter, float]:
        """The hidden layers of a SIREN, whose outputs are multiplied by ω₀."""
        return dict.fromkeys(self.hidden.parameters(), self.config.omega0) if self.config.activation == "sine" else {}

    @torch.no_grad()
    def reset_features(self) -> None:
        """Draws the hidden layers: the SIREN rule (Sitzmann et al. 2020) for sines, He's for the others.

        A coordinate of several columns counts as one, its weights divided by their root: the nine entries of a rotation
        would otherwise leave a kernel that sees x, too, with next to no frequencies in x.
        """
        sine = self.config.activation == "sine"
        for index, layer in enumerate(m for m in self.hidden if isinstance(m, nn.Linear)):
            fan_in = layer.in_features
            if sine and index == 0:
                fan_in = len(self.columns)
                layer.weight.uniform_(-1 / fan_in, 1 / fan_in)
                layer.weight.div_(layer.weight.new_tensor([n for n in self.columns for _ in range(n)]).sqrt())
            elif sine:
                bound = math.sqrt(6 / fan_in) / self.config.omega0
                layer.weight.uniform_(-bound, bound)
            else:
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            layer.bias.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    @torch.no_grad()
    def wake(self, coordinates: Float[Tensor, "rows n"]) -> None:
        """Turns round the layers of which hardly anything passes the activation at the coordinates.

        In a narrow network all units of a layer may be negative everywhere: with ReLU the kernel is then zero. Their
        negatives are as likely a draw, and pass. Sines pass whatever they get.
        """
        values, modules = coordinates, list(self.hidden)
        for layer, activation in zip(modules[::2], modules[1::2], strict=True):
            assert isinstance(layer, nn.Linear)
            inner = layer(values)
            if not isinstance(activation, Sine) and activation(inner).norm() < DEAD * inner.norm():
                layer.weight.neg_()
                layer.bias.neg_()
                inner = -inner
            values = activation(inner)


PARAMETRISATIONS: dict[str, Callable[[Domain, int, KernelConfig], Parametrisation]] = {
    "network": lambda domain, values, config: KernelNetwork(
        domain.columns, values, config, (1,) * domain.space + tuple(c.columns for c in domain.coordinates)
    ),
}
"""What kernels may be made of, by the name in `KernelConfig`: from a domain, the number of values and the settings."""
