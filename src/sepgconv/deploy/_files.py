"""Exported files, read again: networks that take images and need nothing of what they were made with."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sepgconv.deploy._layers import images_at_a_time

if TYPE_CHECKING:
    from sepgconv.training.preparation import Preparation
    from sepgconv.training.trained import Trained

KEY = "sepgconv"  # of the facts in an ONNX file's metadata
EXTRA = "sepgconv.json"  # of the facts in a pt2 file
FOLDED = "sepgconv_folded"  # of the facts in a safetensors file; those of `fit` have another key
CHANNELS = 256  # of an ONNX file's widest features, which it does not say: those of the paper's ResNet
MISSING = "ONNX files need the packages onnx, onnxscript and onnxruntime: pip install 'sepgconv[export]'"


@dataclass(frozen=True)
class Exported:
    """A network out of an exported file; it is used as `training.trained.Trained` is.

    Args:
        network: from pixels in [0, 1] to logits; it normalises by itself.
        classes: their names, by label.
        preparation: from image files to uint8 images.
    """

    network: Callable[[Tensor], Tensor]
    classes: tuple[str, ...]
    preparation: "Preparation"

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Of uint8 images `(b, c, y, x)`.

        Raises:
            ValueError: they are not finite.
        """
        logits = self.network(images.float() / 255)
        if not bool(logits.isfinite().all()):
            raise ValueError("the network's output is not finite")
        return logits


class OnnxNetwork:
    """Any ONNX file that maps images `(b, c, y, x)` to one tensor, run by ONNX Runtime.

    Args:
        source: the file, or its contents.
        threads: how many to use; by default as many as torch.
        whole: whether to run all images of a batch at once; by default a few at a time, which is faster on a CPU.
    """

    def __init__(self, source: str | Path | bytes, *, threads: int | None = None, whole: bool = False) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ValueError(MISSING) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3
        self.whole = whole
        self.name = "the ONNX model" if isinstance(source, bytes) else str(source)
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise FileNotFoundError(f"there is no file {source}")
        given = source if isinstance(source, bytes) else str(source)
        try:
            self.session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # damage shows in many ways, and all mean the same here
            raise ValueError(f"{self.name} is not a whole ONNX file: {_line(error)}") from error
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
            found = ", ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
            raise ValueError(f"{self.name} must take one float32 tensor (b, c, y, x); it takes {found}")
        self.input, self.shape = inputs[0].name, list(inputs[0].shape)
        self.metadata: dict[str, str] = self.session.get_modelmeta().custom_metadata_map

    def __call__(self, images: Tensor) -> Tensor:
        """Runs a batch, a few images at a time; a file with a batch of its own is run as often as it takes.

        Shapes:
            `(b, c, y, x)` → `(b, …)`
        """
        for axis, wanted in enumerate(self.shape[1:], start=1):
            if isinstance(wanted, int) and images.shape[axis] != wanted:
                raise ValueError(f"{self.name} takes images of shape {self.shape[1:]}, got {tuple(images.shape[1:])}")
        own = self.shape[0] if isinstance(self.shape[0], int) else None
        few = max(1, len(images)) if self.whole else images_at_a_time(CHANNELS, math.prod(images.shape[2:]))
        parts = []
        for part in images.float().split(own or few):
            missing = own - len(part) if own else 0
            full = torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) if missing else part
            found = self.session.run(None, {self.input: full.contiguous().numpy()})[0]
            parts.append(torch.from_numpy(found)[: len(part)])
        return torch.cat(parts)


def load_network(path: str | Path) -> "Trained | Exported":
    """A trained network out of a checkpoint, or out of a file that `sepgconv export` has written.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is damaged, or does not say what it takes to use the network.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        network = OnnxNetwork(path)
        return _exported(path, network, network.metadata.get(KEY))
    if path.suffix == ".pt2":
        return _from_pt2(path)
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safe_open(path, framework="pt") as opened:
                text = (opened.metadata() or {}).get(FOLDED)
        except SafetensorError:
            text = None  # damage is described below
        if text is not None:
            return _exported(path, _folded(path, text), text)
    from sepgconv.training.trained import load_trained

    return load_trained(path)


def _from_pt2(path: Path) -> Exported:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    extra = {EXTRA: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # damage shows in many ways, and all mean the same here
        raise ValueError(f"{path} is not a whole pt2 file: {_line(error)}") from error
    return _exported(path, program.module(), extra[EXTRA])


def _folded(path: Path, text: str) -> Callable[[Tensor], Tensor]:
    """The network that the facts describe, folded, with the weights of the file."""
    from safetensors.torch import load_file

    from sepgconv.deploy._export import Prepared
    from sepgconv.deploy._fold import fold
    from sepgconv.training.module import Classifier

    facts = json.loads(text)
    try:
        preparation = facts["preparation"]
        network = fold(Classifier.from_config(facts["hyper_parameters"]).finished())
        prepared = Prepared(network, preparation["mean"], preparation["std"])
        prepared.load_state_dict(load_file(path))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be used: {_line(error)}") from error
    return prepared.eval()


def _exported(path: Path, network: Callable[[Tensor], Tensor], text: str | bytes | None) -> Exported:
    from sepgconv.training.preparation import Preparation

    if not text:
        raise ValueError(f"{path} does not say its classes or how its images are prepared: sepgconv export writes both")
    try:
        facts: dict[str, Any] = json.loads(text)
        return Exported(network, tuple(map(str, facts["classes"])), Preparation.from_plain(facts["preparation"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def _line(error: Exception) -> str:
    """An error's message in a line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
