"""What is audited: anything that maps images to numbers, with what is known about it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from sepgconv.data.image_files import Framing
from sepgconv.deploy._files import Exported, OnnxNetwork, load_network
from sepgconv.grids import Grid
from sepgconv.models._average import Average
from sepgconv.training.trained import Trained

PROMISES = {"rotation": ("rotation",), "orthogonal": ("rotation", "mirror"), "scale": ("scale",)}
"""Names of the parts of a group, and the symmetries that a network on it should have."""
BATCH = 64
LAYERS = "sepgconv.deploy._layers"


@dataclass
class Subject:
    """A network, and what is known about it.

    Args:
        name: what the report calls it.
        run: from images to `(b, k)`, to maps `(b, k, y, x)` or to features `(b, k, h, y, x)`.
        module: the module inside, for a look at its layers; None for a file that has none.
        untrained: the same network with weights as they are drawn, if it can be had.
        classes: names of the labels, if the output are logits of these.
        grids: those that its features live on.
        framing: what becomes of image files, if it says so.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    module: nn.Module | None = None
    untrained: Callable[[Tensor], Tensor] | None = None
    classes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = field(default_factory=tuple)
    framing: Framing | None = None

    @property
    def promised(self) -> tuple[str, ...]:
        """Symmetries that the network's group says it has."""
        parts = [axis.group.name for grid in self.grids for axis in grid.axes if axis.count > 1]
        names = {family for name in parts for family in PROMISES.get(name, ())}
        return tuple(family for family in ("rotation", "mirror", "scale") if family in names)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The output for any number of images, a batch at a time; features as maps, by their maximum over h."""
        parts = []
        for start in range(0, len(images), BATCH):
            parts.append(_checked(self.run, images[start : start + BATCH], self.name))
        return torch.cat(parts)


def _checked(run: Callable[[Tensor], Tensor], images: Tensor, name: str) -> Tensor:
    """A network's output for a batch, in float64, once it is known to be something that can be compared."""
    try:
        found = run(images)
    except (RuntimeError, ValueError, TypeError) as error:
        line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{name} does not take images of shape {tuple(images.shape)}: {line[0]}") from error
    if not isinstance(found, Tensor) or found.ndim not in (2, 4, 5) or len(found) != len(images):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"{name} must return a vector (b, k), a map (b, k, y, x) or features (b, k, h, y, x) for "
            f"{len(images)} images; got {shape}"
        )
    return (found.amax(2) if found.ndim == 5 else found).double()


def of_module(module: nn.Module | Callable[[Tensor], Tensor], name: str = "the network") -> Subject:
    """Any module or function in Python; a module is looked at in `eval()` by way of a copy."""
    if not isinstance(module, nn.Module):
        return Subject(name, module)
    module = copy.deepcopy(module).eval()
    grids = tuple(part for part in module.modules() if isinstance(part, Grid))
    return Subject(name, module, module, _untrained(module), (), grids)


def of_file(path: Path) -> Subject:
    """A checkpoint, an exported file, or anybody's ONNX file that takes images; pixels are in [0, 1]."""
    if path.suffix == ".onnx":
        network = OnnxNetwork(path)
        if "sepgconv" not in network.metadata:
            _, channels, height, width = network.shape
            fixed = channels in (1, 3) and isinstance(height, int) and height == width
            return Subject(path.name, network, framing=Framing(height, channels) if fixed else None)
    loaded = load_network(path)
    if isinstance(loaded, Exported):
        return Subject(path.name, loaded.network, classes=loaded.classes, framing=loaded.preparation.framing)
    return of_trained(loaded, path.name)


def of_trained(trained: Trained, name: str) -> Subject:
    """A trained network of ours, which takes pixels in [0, 1]."""
    model = trained.model

    def prepared(network: nn.Module) -> Callable[[Tensor], Tensor]:
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v).reshape(shape) for v in (trained.preparation.mean, trained.preparation.std))
        return lambda pixels: network((pixels - mean) / std.clamp(min=1e-6))

    fresh = _untrained(model)
    layers = model
    while isinstance(layers, Average):  # over shifts or members, all of which have the same layers
        layers = layers.networks[0]
    grids = tuple(part for part in layers.modules() if isinstance(part, Grid))
    untrained = None if fresh is None else prepared(fresh)
    return Subject(name, prepared(model), layers, untrained, trained.classes, grids, trained.preparation.framing)


def _untrained(module: nn.Module) -> nn.Module | None:
    """A copy with all weights drawn anew, or None where a part with weights does not say how.

    A folded network has none: its stock layers, drawn anew, would be another network.
    """
    if any(type(part).__module__ == LAYERS for part in module.modules()):
        return None
    fresh = copy.deepcopy(module)
    drawn: set[int] = set()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _draw(fresh, drawn)
    biases = {id(value) for name, value in fresh.named_parameters() if name.endswith("bias")}
    lost = [value for value in fresh.parameters() if id(value) not in drawn | biases]
    return None if lost or not drawn else fresh.eval()


def _draw(module: nn.Module, drawn: set[int]) -> None:
    """Draws a module's weights; one that knows how draws those of its parts, too."""
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
        drawn.update(id(value) for value in module.parameters())
        return
    for child in module.children():
        _draw(child, drawn)
