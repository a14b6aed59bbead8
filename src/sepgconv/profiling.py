"""What a model costs, layer by layer."""

import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from sepgconv.nn._recompute import Rewind
from sepgconv.nn._sampled import _Conv

WIDTH = 100


@dataclass(frozen=True)
class LayerProfile:
    """One layer of a model; where it runs several times, their sum.

    Args:
        name: as in `model.named_modules()`.
        kind: the name of its class.
        shape: of its (last) output.
        parameters: their number.
        multiply_adds: of the forward pass for the whole batch; None where they are not counted.
        execution: `dense` or `structured`, for group convolutions.
        activations: bytes of the output; none where it is the input itself.
        seconds: of the forward pass.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int | None
    execution: str | None
    activations: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """What `profile` returns: rows of data that print as a table.

    Args:
        layers: in the order in which they run.
        parameters: of the whole model, shared ones once.
        seconds: of the whole forward pass, what happens between the layers included.
    """

    layers: tuple[LayerProfile, ...]
    parameters: int
    seconds: float

    @property
    def multiply_adds(self) -> int:
        """Those of all layers."""
        return sum(layer.multiply_adds or 0 for layer in self.layers)

    @property
    def activations(self) -> int:
        """Bytes of all layers' outputs."""
        return sum(layer.activations for layer in self.layers)

    def __rich__(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_footer=True, padding=(0, 1, 0, 0))
        columns = {
            "layer": "total",
            "kind": "",
            "output": "",
            "parameters": f"{self.parameters:,}",
            "mult-adds": _count(self.multiply_adds),
            "execution": "",
            "activations": _bytes(self.activations),
            "time": _time(self.seconds),
        }
        for name, total in columns.items():
            left = name in ("layer", "kind", "execution")
            table.add_column(name, total, justify="left" if left else "right", overflow="fold")
        for layer in self.layers:
            table.add_row(
                layer.name,
                layer.kind,
                "×".join(map(str, layer.shape)),
                f"{layer.parameters:,}" if layer.parameters else "",
                _count(layer.multiply_adds),
                layer.execution or "",
                _bytes(layer.activations),
                _time(layer.seconds),
            )
        return table

    def __str__(self) -> str:
        console = Console(width=WIDTH, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _count(number: int | None) -> str:
    if not number:
        return ""
    power = min(int(math.log10(number)) // 3, 4)
    return f"{number / 1000**power:,.3g} {' kMGT'[power]}".rstrip() if power else str(number)


def _bytes(number: int) -> str:
    if not number:
        return ""
    if number < 2**20:
        return f"{number / 2**10:,.2f} kB"
    return f"{number / 2**20:,.2f} MB" if number < 2**30 else f"{number / 2**30:,.2f} GB"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"


@dataclass
class _Seen:
    """What the hooks note down about a layer in one forward pass."""

    start: float = 0.0
    seconds: float = 0.0
    multiply_adds: int | None = None
    execution: str | None = None
    activations: int = 0
    shape: tuple[int, ...] = ()


@dataclass
class _Watch:
    """Times layers and counts what they do, by hooks."""

    passes: list[dict[str, _Seen]] = field(default_factory=list)

    def hooks(self, name: str, layer: nn.Module, clock: Callable[[], float]) -> list[torch.utils.hooks.RemovableHandle]:
        def before(layer: nn.Module, inputs: tuple[object, ...]) -> None:
            self.passes[-1].setdefault(name, _Seen()).start = clock()

        def after(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            seen = self.passes[-1][name]
            seen.seconds += clock() - seen.start
            if isinstance(output, Tensor):
                sources = [value for value in inputs if isinstance(value, Tensor)]
                source = sources[0] if sources else output
                if isinstance(layer, _Conv):
                    seen.execution = layer.plan.execution
                work = multiply_adds(layer, source, output)
                seen.multiply_adds = work if seen.multiply_adds is None else seen.multiply_adds + (work or 0)
                new = all(value.data_ptr() != output.data_ptr() for value in sources)
                seen.activations += output.numel() * output.element_size() if new else 0
                seen.shape = tuple(output.shape)

        return [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]


def multiply_adds(layer: nn.Module, source: Tensor, output: Tensor) -> int | None:
    """Multiply-adds that a layer needs for one output; None for layers that are not convolutions or linear maps.

    Those of group convolutions are their plan's. It may mix channels and group elements at every pixel of the
    input before it convolves to the pixels of the output, so the two numbers of pixels count separately. Sampling the
    kernel, which does not depend on the batch, is not counted.
    """
    if isinstance(layer, _Conv):
        space = layer.out_grid.space
        pixels = (math.prod(x.shape[-space:]) for x in (source, output))
        return len(output) * layer.plan.multiply_adds(*pixels)
    if isinstance(layer, _ConvTransposeNd):
        return source.numel() * layer.out_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, _ConvNd):
        return output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    return None


def is_layer(module: nn.Module) -> bool:
    """Whether a module is shown as one layer: it has no modules inside, or uses parameters of its own."""
    return (
        isinstance(module, _Conv) or not any(module.children()) or any(True for _ in module.parameters(recurse=False))
    )


def named_layers(module: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of a model with their names; what is inside of a layer is not listed."""
    if is_layer(module):
        return [(name, module)]
    children = [(f"{name}.{child}".removeprefix("."), inner) for child, inner in module.named_children()]
    found = [pair for child, inner in children for pair in named_layers(inner, child)]
    return list({layer: (child, layer) for child, layer in reversed(found)}.values())[::-1]


def profile(model: nn.Module, x: Tensor, *, repeats: int = 3) -> Profile:
    """Runs a model and reports what every layer costs: output, parameters, multiply-adds, memory, time.

    The model is run as it is, in training or evaluation mode, without gradients; `print` shows the result as a table.
    Its buffers, hooks, random grids and the state of the random numbers stay as they are.

    Args:
        model: any module, with or without layers of this library.
        x: its input.
        repeats: forward passes to take the median of, after one to warm up.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats!r}")
    layers, watch, whole = named_layers(model), _Watch(), []
    devices = [x.device.index or 0] if x.device.type == "cuda" else []

    def clock() -> float:
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        return time.perf_counter()

    def run() -> float:
        start = clock()
        model(x)
        return clock() - start

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(Rewind([model]))
        stack.enter_context(torch.no_grad())
        if any(module._compiled_call_impl is not None for module in model.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code has no layers to time
        run()
        whole = [run() for _ in range(repeats)]
        for name, layer in layers:
            for handle in watch.hooks(name, layer, clock):
                stack.callback(handle.remove)
        for _ in range(repeats):
            watch.passes.append({})
            run()
    modules = dict(layers)
    return Profile(
        tuple(
            LayerProfile(
                name,
                type(modules[name]).__name__,
                seen.shape,
                sum(p.numel() for p in modules[name].parameters()),
                seen.multiply_adds,
                seen.execution,
                seen.activations,
                statistics.median(each[name].seconds for each in watch.passes if name in each),
            )
            for name, seen in watch.passes[-1].items()
        ),
        sum(p.numel() for p in model.parameters()),
        statistics.median(whole),
    )
