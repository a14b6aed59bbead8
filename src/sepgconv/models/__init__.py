"""The paper's networks: functions that map a grid to an `nn.Module` from images to logits."""

import builtins
import difflib
from collections.abc import Callable

from torch import nn

from sepgconv.grids import Grid
from sepgconv.models._allcnn import allcnnc
from sepgconv.models._average import average
from sepgconv.models._load import load, weights
from sepgconv.models._resnet import resnet
from sepgconv.models._shallow import shallow

__all__ = ["allcnnc", "average", "create", "list", "load", "resnet", "shallow", "weights"]

_MODELS: dict[str, Callable[..., nn.Module]] = {"allcnnc": allcnnc, "resnet": resnet, "shallow": shallow}


def list() -> builtins.list[str]:
    """Names that `create` takes."""
    return sorted(_MODELS)


def create(name: str, grid: Grid, **settings: object) -> nn.Module:
    """A model by name; further keywords go to its function."""
    if name not in _MODELS:
        near = difflib.get_close_matches(name, _MODELS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"model must be one of {', '.join(list())}; got {name!r}{hint}")
    return _MODELS[name](grid, **settings)
