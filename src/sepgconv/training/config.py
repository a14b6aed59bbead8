"""What a recipe says about a network and how to fit it: plain values, and what they stand for."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sepgconv import models
from sepgconv.grids import GRIDS, Grid
from sepgconv.kernels import KernelConfig
from sepgconv.models._average import Average
from sepgconv.nn._check import whole

from .schedule import OneCycle

Schedule = Literal["onecycle", "paper"]


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


@dataclass(frozen=True)
class GridConfig:
    """The group and how it is sampled; settings of axes that the group does not have are ignored.

    Args:
        group: a name out of `GRIDS`: `se2`, `e2`, `scale2`, `sim2`, or `translation2` for a plain CNN; `se3`, `scale3`
            and `translation3` for volumes, `scale1` and `translation1` for signals.
        rotations: number of rotations.
        scales: number of dilations.
        max_scale: the largest dilation.
        sampling: of the rotations: `random` shifts the grid at every training step, `fixed` does not.
        scale_sampling: of the dilations.
        shifts: of a random grid, over which a trained network's answers are averaged (`models.average`): in the test,
            in `sepgconv predict` and in exported files, not in validation.
    """

    group: str = "se2"
    rotations: int = 8
    scales: int = 4
    max_scale: float = 3**0.5
    sampling: Literal["random", "fixed"] = "random"
    scale_sampling: Literal["random", "fixed"] = "fixed"
    shifts: int = 1

    def __post_init__(self) -> None:
        _choice("group", self.group, tuple(GRIDS))
        if not isinstance(self.shifts, int) or self.shifts < 1:
            raise ValueError(f"shifts must be a whole number of at least 1, got {self.shifts!r}")
        if self.shifts > 1 and not self.build().random:
            raise ValueError(f"shifts={self.shifts}: no axis of this grid is sampled at random, got {self}")

    def build(self) -> Grid:
        """The grid."""
        make = GRIDS[self.group].make
        known = {**vars(self), "sampling": self.sampling if self.turns else self.scale_sampling}
        return make(**{name: known[name] for name in inspect.signature(make).parameters if name in known})

    @property
    def turns(self) -> bool:
        """Whether the group has rotations, whose sampling it is then."""
        return "rotations" in inspect.signature(GRIDS[self.group].make).parameters


@dataclass(frozen=True)
class NetworkConfig:
    """A model out of `sepgconv.models` and the images it is made for.

    Args:
        name: as `models.list()` has it.
        factorisation: of the kernels, a name out of `FACTORISATIONS`.
        kernel: settings of the kernel networks.
        width: multiplies the numbers of channels.
        dropout: multiplies the rates of dropout; 0 leaves it out.
        in_channels: channels of the images.
        num_classes: number of logits.
        image_size: height and width of the images.
        kernel_size: width of the kernels in pixels; by default the architecture's own.
        recompute: whether to compute activations again in the backward pass instead of keeping them.
        antialias: whether features are low-passed where they are subsampled, as `models.resnet` says.
        pyramid: whether a network on a grid with dilations runs on a pyramid of images, as `models.resnet` says.
        centred: whether the images of a pyramid all have the image's size, likewise.
        finest: the first scale of a pyramid of images, for architectures that have one; 1 by default.
        scale_dropout: probability of not reading a scale in training, likewise.
        members: networks of an ensemble: each begins with weights of its own and is fitted by itself, on the same
            batches, and the mean of their logits is the answer. So many times the time and the weights.
    """

    name: str = "resnet"
    factorisation: str = "separable"
    kernel: KernelConfig = field(default_factory=KernelConfig)
    width: float = 1.0
    dropout: float = 1.0
    in_channels: int = 1
    num_classes: int = 10
    image_size: int = 28
    kernel_size: int | None = None
    recompute: bool = False
    antialias: bool = False
    pyramid: bool | None = None
    centred: bool | None = None
    finest: float | None = None
    scale_dropout: float | None = None
    members: int = 1

    def __post_init__(self) -> None:
        whole("members", self.members, 1)

    def build(self, grid: Grid) -> nn.Module:
        """The network on a grid, or an ensemble of such."""
        settings: dict[str, Any] = {
            "in_channels": self.in_channels,
            "num_classes": self.num_classes,
            "factorisation": self.factorisation,
            "kernel": self.kernel,
            "width": self.width,
            "dropout": self.dropout,
            "recompute": self.recompute,
            "antialias": self.antialias,
        }
        # Only some architectures depend on the size of the images.
        known = inspect.signature(getattr(models, self.name, object)).parameters
        if "image_size" in known:
            settings["image_size"] = self.image_size
        for name in ("kernel_size", "pyramid", "centred", "finest", "scale_dropout"):
            if (value := getattr(self, name)) is None:
                continue
            if name not in known and known:
                raise ValueError(f"{name}={value!r}: models.{self.name} has no {name}")
            settings[name] = value
        networks = [models.create(self.name, grid, **settings) for _ in range(self.members)]
        return networks[0] if self.members == 1 else Average(networks)


@dataclass(frozen=True)
class OptimiserConfig:
    """How weights are fitted.

    Args:
        schedule: `paper` is Adam at a constant rate; `onecycle` is AdamW with a rate that rises to a peak and falls
            to zero, for short runs. There the hidden layers of SIRENs, whose outputs are multiplied by ω₀, take the
            rate divided by ω₀: with one rate for all, the largest stable one is several times smaller.
        lr: the rate, or its peak; by default 1e-4 for `paper`, 5e-3 for `onecycle`.
        weight_decay: by default 1e-4 for `paper` (in the gradient), 1e-2 for `onecycle` (decoupled).
        warmup: the part of a one-cycle run in which the rate rises.
    """

    schedule: Schedule = "onecycle"
    lr: float | None = None
    weight_decay: float | None = None
    warmup: float = 0.25

    def __post_init__(self) -> None:
        _choice("schedule", self.schedule, tuple(_DEFAULTS))
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr!r}")
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay!r}")
        if not 0 < self.warmup < 1:
            raise ValueError(f"warmup must lie between 0 and 1, got {self.warmup!r}")

    def build(self, network: nn.Module, steps: float) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The optimiser, and a schedule for so many steps unless the rate is constant."""
        optimiser, lr, weight_decay = _DEFAULTS[self.schedule]
        lr = lr if self.lr is None else self.lr
        weight_decay = weight_decay if self.weight_decay is None else self.weight_decay
        if self.schedule == "paper":
            return optimiser(network.parameters(), lr=lr, weight_decay=weight_decay), None
        if not math.isfinite(steps):
            raise ValueError("the schedule 'onecycle' needs an end: set trainer.max_epochs or trainer.max_steps")
        rates = _parameters_by_divisor(network)
        groups = [{"params": parameters, "lr": lr / divisor} for divisor, parameters in rates.items()]
        fitted = optimiser(groups, lr=lr, weight_decay=weight_decay)
        peaks = [group["lr"] for group in groups]
        # Adam's first moment is left alone: cycling it is for momentum that is not normalised.
        return fitted, OneCycle(fitted, peaks, int(steps), self.warmup)


def _parameters_by_divisor(network: nn.Module) -> dict[float, list[nn.Parameter]]:
    """All parameters, by what their learning rate is divided by: what kernels say of theirs, else 1."""
    divisors: dict[nn.Parameter, float] = {}
    for module in network.modules():
        slower: Callable[[], dict[nn.Parameter, float]] = getattr(module, "slower", dict)
        divisors.update(slower())
    groups: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in network.parameters():
        groups.setdefault(divisors.get(parameter, 1.0), []).append(parameter)
    return groups


_DEFAULTS: dict[str, tuple[type[torch.optim.Adam], float, float]] = {
    "paper": (torch.optim.Adam, 1e-4, 1e-4),
    "onecycle": (torch.optim.AdamW, 5e-3, 1e-2),
}


def network_config(plain: Mapping[str, Any]) -> NetworkConfig:
    """A network's settings out of the plain values that a checkpoint holds, under today's names."""
    plain = {"recompute" if key == "checkpoint" else key: value for key, value in plain.items()}
    return NetworkConfig(**{**plain, "kernel": KernelConfig(**plain.get("kernel", {}))})
