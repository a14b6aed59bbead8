"""Where a run begins: in a directory that can be written to, anew, or from a checkpoint of the same settings."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from sepgconv.data.places import atomic_write

from . import storage
from .best import best_weights
from .checkpoints import Checkpoints
from .settings import check_same, of_checkpoint


def origin(
    output: Path, ckpt_path: str | None, ours: dict[str, Any], checkpoints: Checkpoints, *, first: bool = True
) -> Path | None:
    """The checkpoint to go on from; None to begin, which `last` means as well where there is none yet.

    Args:
        output: the run's directory.
        ckpt_path: what the user wants.
        ours: the run's settings, which must be those of the checkpoint.
        checkpoints: told of what is there.
        first: whether this is the first of several processes, which looks after the directory.
    """
    folder = output / "checkpoints"
    if ckpt_path is None:
        if first and storage.holds_a_run(output):
            raise ValueError(_holds(output))
        return None
    path = storage.newest(folder) if ckpt_path == "last" else storage.find(folder, ckpt_path)
    if path is None:
        _check_remains(folder, ours)
        return None
    checkpoint = storage.read(path)
    if "optimizer_states" not in checkpoint:
        raise ValueError(f"{path} holds weights only, to test or to predict with; a run goes on from {storage.LAST}")
    check_same(of_checkpoint(checkpoint), ours)
    if path.resolve().parent != folder.resolve():
        _branch(path, checkpoint, output, ours, checkpoints, first=first)
    checkpoints.saved = checkpoint["global_step"]
    return path


def _check_remains(folder: Path, ours: dict[str, Any]) -> None:
    """A run that was killed before its last checkpoint may have left its best one, which must be this run's."""
    try:
        left = storage.read(folder / storage.BEST)
    except (FileNotFoundError, ValueError):
        return
    check_same(of_checkpoint(left), ours)


def _branch(
    path: Path, checkpoint: dict[str, Any], output: Path, ours: dict[str, Any], checkpoints: Checkpoints, *, first: bool
) -> None:
    """Begins a directory of its own with the checkpoint of another run, and that run's best weights."""
    folder = output / "checkpoints"
    best = checkpoint["callbacks"].get("Checkpoints", {}).get("best", {})
    try:
        chosen = best_weights(path.parent, best, ours)[0] if best else None
    except ValueError:
        chosen, checkpoints.keep_best = None, False
        rank_zero_warn(f"the best weights of the run so far are not beside {path}; the best of what follows is taken")
    if not first:
        return
    if any((folder / name).exists() for name in (storage.LAST, storage.PREVIOUS)) or (output / "result.json").exists():
        raise ValueError(_holds(output))
    checkpoints.inherit = partial(_bring, path, chosen, folder)


def _bring(path: Path, best: dict[str, Any] | None, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if best is not None:
        kept = {key: value for key, value in best.items() if key not in ("optimizer_states", "callbacks", "loops")}
        storage.AtomicCheckpointIO().save_checkpoint(kept, folder / storage.BEST)
    # Last, as it makes the directory a run that can be gone on with.
    with path.open("rb") as source, atomic_write(folder / storage.LAST) as file:
        shutil.copyfileobj(source, file)


def _holds(output: Path) -> str:
    return f"{output} already holds a run: go on with --ckpt_path last, or choose another --output"


def check_output(folder: Path, need: int = 2**26) -> None:
    """Raises an OSError, before any work is done, if results could not be written to a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.stat().st_mode & 0o222:  # the superuser could write there all the same
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        probe = folder / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(bytes(2**16))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            f"output must be a directory that can be written to, got {str(folder)!r}: {error.strerror}"
        ) from error
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(f"{str(folder)!r} has {free / 2**20:.0f} MB of free space, a run needs {need / 2**20:.0f} MB")
