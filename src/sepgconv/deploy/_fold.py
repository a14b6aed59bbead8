"""`fold`: a network with its kernels, norms and grids baked into stock layers."""

import copy
from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import nn

from sepgconv.deploy._layers import Each, InPieces, Merge, Project, Pyramid, Regroup, Scales, Split, Sum, Waves
from sepgconv.deploy._stock import CONVS, RUNTIMES, stock_layers
from sepgconv.grids import Grid
from sepgconv.kernels import GroupKernel
from sepgconv.models._segments import Layers as FusedLayers
from sepgconv.models._segments import Recomputed
from sepgconv.nn import (
    BatchNorm,
    GroupConv,
    GroupPool,
    LiftingConv,
    ResidualBlock,
    ScalePool,
    ScalePyramid,
    SpatialPool,
)
from sepgconv.nn._fused import HOOKS
from sepgconv.nn._sampled import _Conv

Layers = list[tuple[str, nn.Module]]

POINTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Identity),
)
"""Layers that treat every number by itself: on images `(b, h·c, …)` they do what they do on features."""
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
SEQUENCES = (nn.Sequential, FusedLayers, Recomputed)
POOLS = {
    "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    "mean": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BY_IMAGE = {
    *(*POINTWISE, *NORMS, *CONVS, *POOLS["max"], *POOLS["mean"], nn.Linear, nn.Sequential, Sum, Project, Waves),
    *(Each, Merge, Split, Regroup, SpatialPool, Pyramid, Scales),
}
"""Layers of which it is known that in `eval()` they treat every image of a batch by itself."""


class Merged(NamedTuple):
    """Features on a group that are kept as images `(b, h·c, …)`: the length of h, and the spatial dimensions."""

    elements: int
    space: int


def fold(model: nn.Module, *, runtime: str = "torch") -> nn.Module:
    """A module of stock layers that computes what `model` computes in `eval()`: for deployment.

    Kernels, norms and grids are baked in. Layers of this package become stock convolutions, norms and pools on images
    `(b, h·c, y, x)`; all other modules are kept, and those that hold layers of ours call the folded ones in their
    place. The model itself stays as it is.

    Args:
        model: a layer or a network.
        runtime: what the result is to be fast in: `torch`, or `onnx` for ONNX Runtime. The numbers are the same.

    Raises:
        ValueError: a layer cannot be folded; it is named.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}; got {runtime!r}")
    with torch.no_grad():
        folder = _Folder(runtime)
        folded = folder.alone("", copy.deepcopy(model).eval())
    folder.check(folded)
    if type(folded) is nn.Sequential and all(_by_image(part) for part in folded.modules()):
        folded = InPieces(OrderedDict(folded.named_children()))
    return folded.eval()


class _Folder:
    """Walks a network in `eval()`, layer by layer."""

    def __init__(self, runtime: str) -> None:
        self.runtime = runtime

    def alone(self, path: str, module: nn.Module) -> nn.Module:
        """A module that takes and returns what the original does."""
        if isinstance(module, GroupKernel | Grid):
            raise ValueError(f"{_name(path, module)} does not fold by itself: it is used by a layer of another kind")
        layers, state = self.sequence(path, [("0", module)], None)
        if state is not None:
            layers.append(("split", Split(state.elements)))
        return layers[0][1] if len(layers) == 1 else nn.Sequential(OrderedDict(layers))

    def sequence(self, path: str, layers: Layers, state: Merged | None) -> tuple[Layers, Merged | None]:
        """Layers that follow each other, and how their result is kept."""
        result: Layers = []
        rest = list(layers)
        while rest:
            name, layer = rest.pop(0)
            place = f"{path}.{name}" if path else name
            place = path if len(layers) == 1 and name == "0" else place
            norm = None
            if isinstance(layer, _Conv) and rest and _foldable_norm(rest[0][1]):
                norm = rest.pop(0)[1]
            made, state = self.layer(place, layer, norm, state)
            if len(made) == 1:
                result.append((name, made[0]))
            elif made:
                result.append((name, nn.Sequential(*made)))
        return result, state

    def layer(
        self, path: str, layer: nn.Module, norm: nn.Module | None, state: Merged | None
    ) -> tuple[list[nn.Module], Merged | None]:
        """What a layer becomes, after what its input is kept as, and how its result is kept."""
        if type(layer) in SEQUENCES and not _watched(layer):
            layers, state = self.sequence(path, _children(layer), state)
            return ([nn.Sequential(OrderedDict(layers))] if layers else []), state
        if type(layer) in DROPOUTS:
            return [], state
        if isinstance(layer, _Conv):
            self.refuse(path, layer)
            made = self.convolution(path, layer, norm)
            merged = Merged(layer.kernel.grid.size, layer.kernel.grid.space)
            return self.before(layer, state) + made, merged
        if type(layer) is ResidualBlock and self.whole(layer):
            assert isinstance(layer.conv2, GroupConv)
            merged = Merged(layer.conv2.out_grid.size, layer.conv2.out_grid.space)
            return [*self.before(layer, state), self.block(path, layer)], merged
        if type(layer) is ScalePyramid and not _watched(layer) and _independent(layer.layers):
            body = self.alone(f"{path}.layers" if path else "layers", layer.layers)
            made = Pyramid(body, layer.scales, padding=layer.padding, space=layer.space, centred=layer.centred)
            return [made], None
        if type(layer) is ScalePool and not _watched(layer):
            part, read = layer.read()
            kept = read.stop - read.start if layer.reduce == "none" else 1
            merged = Merged(layer.grid.size // layer.grid.axes[part].count * kept, layer.grid.space)
            split = [] if state is None else [Split(state.elements)]
            return [*split, Scales(tuple(layer.grid.shape), part, read, layer.reduce), Merge()], merged
        if state is not None and not _watched(layer):
            if type(layer) in POINTWISE:
                return [layer], state
            if type(layer) is BatchNorm and _foldable_norm(layer):
                return [_norm(layer, state)], state
            if type(layer) is SpatialPool and getattr(layer, "antialias", False):
                return [Each(layer)], state
            if type(layer) is SpatialPool:
                kind = POOLS[layer.reduce][state.space - 1]
                return [kind(layer.kernel_size, layer.stride, layer.padding)], state
            if type(layer) is GroupPool and layer.reduce in ("max", "mean", "sum"):
                return [Project(layer.reduce, state.elements, space=layer.space)], None
        return ([] if state is None else [Split(state.elements)]) + [self.foreign(path, layer)], None

    @staticmethod
    def before(layer: nn.Module, state: Merged | None) -> list[nn.Module]:
        """What makes images `(b, h·c, …)` of a layer's input."""
        return [Merge()] if state is None and not isinstance(layer, LiftingConv) else []

    def convolution(self, path: str, conv: nn.Module, norm: nn.Module | None) -> list[nn.Module]:
        """A convolution of ours, with the norm that follows it."""
        assert isinstance(conv, GroupConv | LiftingConv)
        scale, shift = norm.folded() if isinstance(norm, BatchNorm) else (None, None)
        layers = stock_layers(conv, scale, shift, self.runtime)
        if not all(bool(value.isfinite().all()) for layer in layers for value in layer.state_dict().values()):
            raise ValueError(f"{_name(path, conv)} does not fold: its kernel or norm is not finite")
        return layers

    def whole(self, block: ResidualBlock) -> bool:
        """Whether a block has the parts that it was made with; another norm or shortcut is left to its own forward."""
        convs = type(block.conv1) is type(block.conv2) is GroupConv
        shortcut = type(block.shortcut) in (GroupConv, nn.Identity)
        return (
            convs and shortcut and _foldable_norm(block.norm1) and _foldable_norm(block.norm2) and not _watched(block)
        )

    def block(self, path: str, block: ResidualBlock) -> nn.Module:
        """A residual block of stock layers."""
        for name in ("conv1", "conv2", "shortcut"):
            self.refuse(f"{path}.{name}", getattr(block, name))
        first = self.convolution(f"{path}.conv1", block.conv1, block.norm1)
        second = self.convolution(f"{path}.conv2", block.conv2, block.norm2)
        shortcut: nn.Module = nn.Identity()
        if isinstance(block.shortcut, GroupConv):
            shortcut = nn.Sequential(*self.convolution(f"{path}.shortcut", block.shortcut, None))
        return Sum(nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU()), shortcut)

    def refuse(self, path: str, layer: nn.Module) -> None:
        """An error for a convolution of ours that does something else, or that somebody looks at."""
        if not isinstance(layer, _Conv):
            return
        ours = next(kind for kind in (LiftingConv, GroupConv) if isinstance(layer, kind))
        if (
            type(layer).forward is not ours.forward
            or type(layer).convolve is not ours.convolve
            or "forward" in vars(layer)
        ):
            raise ValueError(f"{_name(path, layer)} does not fold: its forward is not that of {ours.__name__}")
        if _watched(layer):
            raise ValueError(f"{_name(path, layer)} does not fold: it has hooks, which stock layers would not call")
        if layer.kernel.points.is_meta:
            raise ValueError(f"{_name(path, layer)} does not fold: it is on the meta device, without weights")

    def foreign(self, path: str, module: nn.Module) -> nn.Module:
        """A module of another kind: kept, with the layers of ours that it holds folded one by one."""
        for name, child in _children(module):
            if any(isinstance(part, _Conv) for part in child.modules()):
                setattr(module, name, self.alone(f"{path}.{name}" if path else name, child))
        return module

    @staticmethod
    def check(folded: nn.Module) -> None:
        """Nothing may be left that samples a kernel."""
        for path, module in folded.named_modules():
            if isinstance(module, _Conv | GroupKernel):
                raise ValueError(f"{_name(path, module)} does not fold")


def _children(module: nn.Module) -> Layers:
    """The modules inside, as often as they are there: `named_children` leaves out one that comes again."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _norm(norm: BatchNorm, state: Merged) -> nn.Module:
    """A stock norm of h·c channels, all elements alike; in eval it multiplies and adds."""
    made = NORMS[state.space - 1](norm.num_features * state.elements, norm.eps)
    assert norm.running_mean is not None
    like = norm.running_mean
    for name in ("running_mean", "running_var", "weight", "bias"):
        value = getattr(norm, name)
        if value is None:
            value = torch.ones_like(like) if name == "weight" else torch.zeros_like(like)
        getattr(made, name).data = value.detach().repeat(state.elements)
    return made.to(like).requires_grad_(False)


def _by_image(module: nn.Module) -> bool:
    """Whether a module is known to treat every image by itself; a norm without statistics takes those of the batch."""
    return type(module) in BY_IMAGE and not (isinstance(module, NORMS) and module.running_mean is None)


def _independent(layers: nn.Module) -> bool:
    """Whether in eval the levels of a pyramid do not depend on each other: every norm has statistics of its own."""
    norms = (part for part in layers.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
    return all(norm.running_mean is not None for norm in norms)


def _foldable_norm(norm: nn.Module) -> bool:
    """Whether a module is a norm of ours that looks at nothing but its own statistics."""
    return type(norm) is BatchNorm and norm.running_mean is not None and not _watched(norm)


def _watched(module: nn.Module) -> bool:
    """Whether somebody looks at what goes into a module or comes out, or has put another forward in its place."""
    return any(vars(module)[name] for name in HOOKS) or "forward" in vars(module)


def _name(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {path!r}" if path else type(module).__name__
