"""Checkpoints on disk: written atomically, verified before use, loaded without pickled code."""

import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_utilities.core.rank_zero import rank_zero_only
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors

from sepgconv.data.places import atomic_write

from . import contents

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
PREFIX = "net."  # of the network's weights in a checkpoint
SETTINGS = ("hyper_parameters", "Images", "preparation", "global_step")  # of the classifier, its data and when
METADATA = "sepgconv"  # one key, as safetensors does not keep the order of several
CHECKSUM = "sha256"  # over weights and settings, among the settings
# Under a temporary name first
WRITTEN = ("result.json", "metrics.csv", "curves.png", "confusion.png", "*.ckpt", "*.safetensors")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint under a temporary name, flushes it to the disk and renames it, with its weights beside it.

    At any moment the file under a checkpoint's name is whole. The weights are those of the bare network, as
    safetensors, with the settings that it takes to use them as metadata.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Writes `path`, and `.safetensors` beside it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            torch.save(checkpoint, file)
        weights = {
            key.removeprefix(PREFIX): value.detach().cpu().contiguous()
            for key, value in checkpoint["state_dict"].items()
            if key.startswith(PREFIX)
        }
        write_weights(path.with_suffix(".safetensors"), weights, checkpoint)


def write_weights(path: Path, weights: Mapping[str, torch.Tensor], checkpoint: Mapping[str, Any]) -> None:
    """Writes weights of a bare network as safetensors, with what a checkpoint says that it takes to use them."""
    settings = {key: checkpoint[key] for key in SETTINGS if key in checkpoint}
    text = json.dumps({**settings, CHECKSUM: _checksum(weights, settings)})
    with atomic_write(path) as file:
        file.write(to_safetensors(dict(weights), {METADATA: text}))


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, of tensors and plain values only.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is damaged or something else; the message says what is wrong with it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            return _checked(_read_safetensors(path), path)
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums of the parts
            if (part := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {part} is wrong")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows in many ways, and all mean the same here
        raise ValueError(f"{path} is not a whole checkpoint: {_line(error)}") from error
    return _checked(checkpoint, path)


def _checked(checkpoint: Any, path: Path) -> dict[str, Any]:
    try:
        contents.check(checkpoint)
    except ValueError as error:
        raise ValueError(f"{path} is not a checkpoint of sepgconv: {error}") from error
    return checkpoint


def _line(error: Exception) -> str:
    """An error's message in a line; those of torch can be a page of advice."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            opened = cast(Any, file)
            metadata = opened.metadata() or {}
            weights = {PREFIX + key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if METADATA not in metadata:
        raise ValueError("its metadata lacks the settings of the network")
    settings = json.loads(metadata[METADATA])
    if not isinstance(settings, dict) or not settings.keys() <= {*SETTINGS, CHECKSUM}:
        raise ValueError("its metadata are not those of a network")
    expected = settings.pop(CHECKSUM, None)
    found = _checksum({key.removeprefix(PREFIX): value for key, value in weights.items()}, settings)
    # Files of earlier versions have no checksum; the step came with it.
    if expected != found and (expected is not None or "global_step" in settings):
        raise ValueError("its checksum is wrong")
    return {"state_dict": weights, **settings}


def _checksum(weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, value in sorted(weights.items()):
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def find(folder: Path, name: str) -> Path:
    """The checkpoint that is meant: `best` or `last` in a folder, or the path of a file; it is read to check it."""
    if name == "last":
        found = newest(folder)
        if found is None:
            raise FileNotFoundError(f"there is no checkpoint in {folder}")
        return found
    path = folder / BEST if name == "best" else Path(name)
    read(path)
    return path


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint to resume from, or None if there is none at all.

    A damaged one is named in a warning and set aside, and the one before it is taken.
    """
    steps: dict[Path, int] = {}
    damaged: dict[Path, str] = {}
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.is_file():
            continue
        try:
            steps[path] = read(path).get("global_step", 0)
        except ValueError as error:
            damaged[path] = str(error)
    if damaged and not steps:
        raise ValueError(f"no checkpoint to resume from: {'; '.join(damaged.values())}")
    found = max(steps, key=lambda path: steps[path], default=None)
    for path, problem in damaged.items():
        aside = path.with_suffix(".damaged")
        warnings.warn(f"{problem}; it is kept as {aside.name} and {found} is used instead", stacklevel=2)
        if getattr(rank_zero_only, "rank", 0) == 0:
            path.replace(aside)  # or it would take the place of the good one at the next save
    return found


def keep_as_previous(folder: Path) -> None:
    """Gives the last checkpoint a second name, so that at any moment there is one by the first."""
    last, temporary = folder / LAST, folder / f".{PREVIOUS}.link"
    if not last.exists():
        return
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(last)
    except OSError:  # a file system without hard links
        last.replace(folder / PREVIOUS)
    else:
        temporary.replace(folder / PREVIOUS)


def holds_a_run(output: Path) -> bool:
    """Whether something is there that a new run would overwrite."""
    kept = (path for kind in ("*.ckpt", "*.safetensors", "*.damaged") for path in (output / "checkpoints").glob(kind))
    return (output / "result.json").exists() or any(not path.name.startswith(".") for path in kept)


def clear_leftovers(output: Path) -> None:
    """Removes what a killed run left half written; only whoever holds the directory may do so."""
    for folder in (output, output / "checkpoints"):
        for name in WRITTEN:
            for leftover in folder.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)
    for leftover in output.glob(".probe-*"):
        leftover.unlink(missing_ok=True)
