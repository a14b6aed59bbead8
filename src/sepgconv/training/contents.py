"""What a checkpoint must hold, checked before anything is done with it: files may come from anywhere."""

import math
from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version
from torch import Tensor, strided

DEEPEST = 16  # levels of plain values; settings have three
COUNTS = ("epoch", "global_step")
RESUMABLE = {
    "pytorch-lightning_version": str,
    "loops": Mapping,
    "callbacks": Mapping,
    "optimizer_states": list,
    "lr_schedulers": list,
}
"""What it takes to go on, beside weights and settings."""

LARGEST = {
    "rotations": 2**10,
    "scales": 2**6,
    "max_scale": 2**6,
    "shifts": 2**6,
    "members": 2**6,
    "layers": 2**6,
    "in_channels": 2**12,
    "num_classes": 2**16,
    "image_size": 2**12,
}
LARGEST_NETWORK = 2**16  # width² × hidden × members; the default is 64, and this many need about a gigabyte


def check(checkpoint: Any) -> None:
    """Raises a ValueError if something is not of the kind that `fit` writes."""
    if not isinstance(checkpoint, Mapping) or not {"state_dict", "hyper_parameters"} <= checkpoint.keys():
        raise ValueError("it lacks the weights or the settings")
    weights = _mapping(checkpoint, "state_dict")
    for name, value in weights.items():
        if not isinstance(value, Tensor) or value.layout is not strided or value.device.type == "meta":
            raise ValueError(f"state_dict[{name!r}] must be a tensor of numbers, got {_short(value)}")
    settings = _mapping(checkpoint, "hyper_parameters")
    _check_plain(settings, "hyper_parameters")
    for part in ("network", "grid", "optimiser"):
        if part in settings:
            _mapping(settings, part)
    for name in COUNTS:
        if name in checkpoint:
            _count(checkpoint[name], name)
    if checkpoint.get("Images", {}) != {}:  # a run on other data than `Images` has nothing to say
        _check_images(_mapping(checkpoint, "Images"))
    if "preparation" in checkpoint:
        said = _mapping(checkpoint, "preparation")
        _check_said(said, "preparation")
        _mapping(said, "framing")
    if "run" in checkpoint:
        _check_plain(_mapping(checkpoint, "run"), "run")
        for name in checkpoint["run"]:
            _mapping(checkpoint["run"], name)
    if "optimizer_states" in checkpoint:
        _check_resumable(checkpoint)


def check_network(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for a network that no machine could build, before it is tried."""
    network, grid = (_mapping(settings, part) for part in ("network", "grid"))
    kernel = _mapping(network, "kernel") if "kernel" in network else {}
    for name, value in {**kernel, **network, **grid}.items():
        if name in LARGEST and not 0 <= _number(value, name) <= LARGEST[name]:
            raise ValueError(f"{name} must lie between 0 and {LARGEST[name]}, got {_short(value)}")
    sizes = [_number(network.get("width", 1.0), "width"), _number(kernel.get("hidden", 64), "hidden")]
    sizes.append(_number(network.get("members", 1), "members"))
    width, hidden, members = sizes
    if not (min(sizes) > 0 and width**2 * hidden * members <= LARGEST_NETWORK):
        raise ValueError(
            f"width² × hidden × members must lie between 0 and {LARGEST_NETWORK}, got a width of {width}, hidden "
            f"{hidden} and {members} members"
        )


def _check_said(images: Mapping[str, Any], part: str) -> None:
    """How images are prepared and what their classes are called."""
    _check_plain(images, part)
    numbers = {name: images.get(name) for name in ("mean", "std")}
    for name, values in numbers.items():
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"{part}.{name} must be a list of numbers, got {_short(values)}")
        for value in values:
            _number(value, f"{part}.{name}")
    names = images.get("class_names")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{part}.class_names must be a list of names, got {_short(names)}")


def _check_images(images: Mapping[str, Any]) -> None:
    _check_said(images, "Images")
    for name in ("settings", "position"):
        if name in images:
            _mapping(images, name)
    for name, value in images.get("position", {}).items():
        _count(value, f"Images.position.{name}")


def _check_resumable(checkpoint: Mapping[str, Any]) -> None:
    for name, kind in RESUMABLE.items():
        if not isinstance(checkpoint.get(name), kind):
            raise ValueError(f"{name} must be a {kind.__name__.lower()}, got {_short(checkpoint.get(name))}")
    for name in COUNTS:
        _count(checkpoint.get(name), name)
    try:
        Version(checkpoint["pytorch-lightning_version"])
    except InvalidVersion as error:
        raise ValueError(f"pytorch-lightning_version must be a version, got {_short(error.args[0])}") from error
    for name in checkpoint["callbacks"]:
        _mapping(checkpoint["callbacks"], name)
    best = checkpoint["callbacks"].get("Checkpoints", {}).get("best", {})
    numbers = isinstance(best, Mapping) and all(_is_number(value) for value in best.values())
    if not numbers or (best and best.keys() != {"score", "epoch", "step"}):
        raise ValueError("callbacks.Checkpoints.best must be empty or have the numbers score, epoch and step")
    for state in checkpoint["optimizer_states"]:
        _check_optimiser(state, checkpoint["global_step"])


def _check_optimiser(optimiser: Any, step: int) -> None:
    moments = optimiser.get("state") if isinstance(optimiser, Mapping) else None
    if not isinstance(moments, Mapping) or bool(moments) != bool(step):
        raise ValueError(f"the state of the optimiser is not one after {step} steps")


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{name} must be a mapping of names, got {_short(found)}")
    return found


def _check_plain(value: Any, name: str, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise ValueError(f"{name} is nested too deeply")
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check_plain(part, f"{name}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, name, depth + 1)
    elif _is_number(value):
        _number(value, name)
    elif not (value is None or isinstance(value, bool | str)):
        raise ValueError(f"{name} must be a plain value, got {_short(value)}")


def _number(value: Any, name: str) -> float:
    if not _is_number(value) or abs(value) >= 2**64 or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {_short(value)}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError(f"{name} must be a whole number of at least 0, got {_short(value)}")


def _short(value: Any) -> str:
    """A value in a few words: it may be anything, of any size."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    return f"a {type(value).__name__}"
