"""Exporting a trained network: folded, with class names and normalisation inside, and checked before it is written."""

import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

import sepgconv
from sepgconv.data.places import atomic_write, check_outputs
from sepgconv.deploy._files import EXTRA, FOLDED, KEY, MISSING, OnnxNetwork
from sepgconv.deploy._fold import fold
from sepgconv.training.trained import Trained

KINDS = ("onnx", "pt2", "safetensors")
OPSETS = (18, 23)
"""The oldest that torch's exporter writes, and the newest that was tried."""
TOLERANCE = 1e-4
"""Largest difference from the original, relative to the largest logit, with which a file is written; 1e-6 is usual."""


class Prepared(nn.Module):
    """A network that takes pixels in [0, 1] and normalises them by itself.

    Args:
        network: takes normalised images.
        mean: by channel.
        std: likewise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.std.clamp_(min=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits of pixels `(b, c, y, x)`."""
        return self.network((pixels - self.mean) / self.std)


@dataclass(frozen=True)
class Export:
    """What was written.

    Args:
        path: of the file.
        kind: one of `KINDS`.
        difference: from the original's logits, relative to the largest.
        any_size: whether it takes images of any size, or only of the one it was trained on.
    """

    path: Path
    kind: str
    difference: float
    any_size: bool


def check_request(path: Path, kind: str | None, opset: int | None, overwrite: bool) -> str:
    """The kind of file that is meant; raises an error before any work if it cannot be written."""
    kind = path.suffix.removeprefix(".") if kind is None else kind
    if kind not in KINDS:
        raise ValueError(f"to must be one of {', '.join(KINDS)}; got {kind!r}")
    if path.suffix != f".{kind}":
        raise ValueError(f"output must end in .{kind}, by which files are known; got {str(path)!r}")
    if opset is not None and kind != "onnx":
        raise ValueError(f"opset is for ONNX files, got opset={opset} with to={kind}")
    if opset is not None and not OPSETS[0] <= opset <= OPSETS[1]:
        raise ValueError(f"opset must lie between {OPSETS[0]} and {OPSETS[1]}, got {opset}")
    if path.exists() and not path.is_dir() and not overwrite:
        raise FileExistsError(f"output {path} exists; give --overwrite to replace it")
    check_outputs(path)
    if kind == "onnx":
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ValueError(MISSING) from error
    return kind


def export(
    trained: Trained, path: str | Path, *, to: str | None = None, opset: int | None = None, overwrite: bool = False
) -> Export:
    """Writes a trained network to a file that is used without this package; the network stays as it is.

    The file takes pixels in [0, 1], normalises them by itself and returns logits; names of classes and how image files
    are prepared are in its metadata. What it computes is compared with the original first: ONNX in ONNX Runtime.

    Args:
        trained: as `load_trained` gives it.
        path: of the file.
        to: `onnx`, `pt2` (torch.export) or `safetensors` (weights of the folded layers); by default as the path ends.
        opset: of ONNX; 18 by default.
        overwrite: whether a file that is there may be replaced.

    Raises:
        ValueError: something cannot be folded, is asked for in vain, or differs from the original.
        OSError: the file is there, or cannot be written.
    """
    path = Path(path)
    kind = check_request(path, to, opset, overwrite)
    preparation = trained.preparation
    folded = fold(trained.model, runtime="onnx" if kind == "onnx" else "torch")
    network = Prepared(folded, preparation.mean, preparation.std).eval()
    facts = {
        "classes": list(trained.classes),
        "preparation": preparation.plain(),
        "input": "float32 pixels in [0, 1], (b, c, y, x)",
        "output": "logits, (b, classes)",
        "sepgconv": sepgconv.__version__,
    }
    shape = preparation.framing.shape

    def made(free: bool) -> Made:
        if kind == "onnx":
            return _onnx(network, shape, facts, opset or OPSETS[0], free)
        if kind == "pt2":
            return _pt2(network, shape, facts, free)
        facts["hyper_parameters"] = trained.checkpoint["hyper_parameters"]
        return _safetensors(network, facts), network, True

    with torch.no_grad(), _quiet():
        contents, run, any_size = made(True)
        difference = _difference(trained, run, any_size)
        if not difference <= TOLERANCE and any_size:  # a module in it may hold on to the size that it was shown
            contents, run, any_size = made(False)
            difference = _difference(trained, run, any_size)
    if not difference <= TOLERANCE:
        raise ValueError(f"{path} was not written: it would differ from the original by {difference:.1e} of its logits")
    with atomic_write(path) as file:
        file.write(contents)
    return Export(path, kind, difference, any_size)


Made = tuple[bytes, Callable[[Tensor], Tensor], bool]


def _program(network: nn.Module, shape: tuple[int, ...], free: bool) -> tuple[torch.export.ExportedProgram, bool]:
    """The network as a graph with a free batch and, if asked for and where it allows, free height and width."""
    example = torch.rand(2, *shape)  # a batch of 0 or 1 would be taken for a constant
    dims = {0: torch.export.Dim.DYNAMIC}
    if free:
        dims.update(dict.fromkeys((2, 3), torch.export.Dim.AUTO))
    program = torch.export.export(network, (example,), dynamic_shapes=(dims,))
    (images,) = [node for node in program.graph.nodes if node.op == "placeholder" and node.name == "pixels"]
    foreign = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    if foreign := {name for name in foreign if not name.startswith(("aten.", "<built-in", "<function sym"))}:
        raise ValueError(f"the folded network has operators that are not torch's own: {', '.join(sorted(foreign))}")
    sizes = images.meta["val"].shape
    if isinstance(sizes[0], int):
        raise ValueError("the network cannot be exported: its result depends on how many images there are")
    return program, not any(isinstance(size, int) for size in sizes[2:])


def _pt2(network: nn.Module, shape: tuple[int, ...], facts: dict[str, Any], free: bool) -> Made:
    program, any_size = _program(network, shape, free)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={EXTRA: json.dumps(facts)})
    again = torch.export.load(io.BytesIO(buffer.getvalue()))
    return buffer.getvalue(), again.module(), any_size


def _onnx(network: nn.Module, shape: tuple[int, ...], facts: dict[str, Any], opset: int, free: bool) -> Made:
    program, any_size = _program(network, shape, free)
    found = torch.onnx.export(
        program, (), input_names=["pixels"], output_names=["logits"], opset_version=opset, dynamo=True, verbose=False
    )
    assert found is not None
    model = found.model_proto
    versions = {entry.domain: entry.version for entry in model.opset_import}
    if versions.get("") != opset:
        raise ValueError(f"opset {opset} cannot express this network; it needs {versions.get('')}")
    if foreign := {node.domain for node in model.graph.node} - {"", "ai.onnx"}:
        raise ValueError(f"the file would need operators that ONNX does not have: {', '.join(sorted(foreign))}")
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(facts)
    contents = model.SerializeToString()
    return contents, OnnxNetwork(contents), any_size


def _safetensors(network: nn.Module, facts: dict[str, Any]) -> bytes:
    # Copies, since networks that are averaged over shifts share weights, and the format knows none that are shared.
    weights = {name: value.clone().contiguous() for name, value in network.state_dict().items()}
    return to_safetensors(weights, {FOLDED: json.dumps(facts)})


@torch.no_grad()
def _difference(trained: Trained, run: Callable[[Tensor], Tensor], any_size: bool) -> float:
    """The largest difference of logits, relative to the largest logit, for batches of 1 and 3, at two sizes.

    It is infinite if one of the two cannot be run.
    """
    channels, size, _ = trained.preparation.framing.shape
    draw = torch.Generator().manual_seed(0)
    sizes = [size, size + 4] if any_size else [size]
    worst = 0.0
    for count, pixels in ((1, sizes[0]), (3, sizes[0]), (2, sizes[-1])):
        images = torch.randint(256, (count, channels, pixels, pixels), generator=draw, dtype=torch.uint8)
        try:
            expected = trained.model(trained.preparation(images))
            found = run(images.float() / 255)
        except Exception:  # what a runtime raises has no common type
            return math.inf
        change = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
        worst = max(worst, change.item() if math.isfinite(change.item()) else math.inf)
    return worst


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not there, and ours on sizes that the check tries."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
