"""A run from start to result: check, fit or resume, test once with the best weights, report."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import Trainer
from lightning_utilities.core.rank_zero import rank_zero_info

from sepgconv.provenance import environment

from . import storage
from .checkpoints import Checkpoints
from .datamodule import Images
from .history import History, draw_curves
from .module import Classifier
from .report import RESULT, write_result

T = TypeVar("T")

SPARE = 64 * 2**20  # bytes, for logs and pictures
COPIES = 4  # last, previous, best, and the one that is being written


def fit(
    trainer: Trainer, classifier: Classifier, data: Images, ckpt_path: str | None = None, *, draw: bool = True
) -> dict[str, Any]:
    """Fits, tests once with the weights that are best on validation, and writes `result.json` and `curves.png`.

    Args:
        trainer: with the callbacks `Checkpoints` and `History`; `default_root_dir` is where the run is kept.
        classifier: what to fit.
        data: what to fit it to.
        ckpt_path: `last` to go on with the run that is there (or begin it), or the path of a checkpoint.
        draw: whether to draw the curves, which takes longer than a very short run.

    Returns:
        The result, as it is in `result.json`.
    """
    output = Path(trainer.default_root_dir)
    weights = sum(p.numel() * p.element_size() for p in classifier.parameters())
    check_output(output, need=COPIES * 4 * weights + SPARE)  # weights, two moments, and the safetensors
    resume = to_resume(output / "checkpoints", ckpt_path)
    if resume is not None and (output / RESULT).exists():
        rank_zero_info(f"this run is finished; its result is in {output / RESULT}")
        return json.loads((output / RESULT).read_text())
    parameters = sum(p.numel() for p in classifier.net.parameters())
    rank_zero_info(
        f"{classifier.network.name} with {parameters:,} parameters on {data.data_name!r}; the run is kept in {output}"
    )
    checkpoints, history = _callback(trainer, Checkpoints), _callback(trainer, History)
    trainer.fit(classifier, datamodule=data, ckpt_path=resume, weights_only=True)
    seconds = history.seconds
    best = output / "checkpoints" / storage.BEST
    tested = trainer.test(
        classifier, datamodule=data, ckpt_path=best if best.exists() else None, weights_only=True, verbose=False
    )
    result = {
        "metrics": {**tested[0], "best": checkpoints.best, "final": history.rows[-1] if history.rows else {}},
        "seed": classifier.seed,
        "parameters": parameters,
        "settings": {"model": dict(classifier.hparams), "data": data.state_dict()["settings"]},
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": {"fit": round(seconds, 1), "test": round(history.seconds - seconds, 1)},
        **environment(),
    }
    if trainer.is_global_zero:
        if draw:
            draw_curves(history.rows, output / "curves.png")
        rank_zero_info(f"test error {tested[0]['test/error']:.2f} %; wrote {write_result(result, output)}")
    return result


def to_resume(folder: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint to go on from; None to begin, which `last` means as well where there is none yet."""
    if ckpt_path is None:
        if (folder / storage.LAST).exists():
            raise ValueError(
                f"{folder.parent} already holds a run: go on with --ckpt_path last, or choose another --output"
            )
        return None
    path = storage.newest(folder) if ckpt_path == "last" else storage.find(folder, ckpt_path)
    if path is not None and "optimizer_states" not in storage.read(path):
        raise ValueError(f"{path} holds weights only, to test or to predict with; a run goes on from {storage.LAST}")
    return path


def check_output(folder: Path, need: int = SPARE) -> None:
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


def _callback(trainer: Trainer, kind: type[T]) -> T:
    found = [callback for callback in getattr(trainer, "callbacks", []) if isinstance(callback, kind)]
    if not found:
        raise ValueError(f"the trainer must have the callback {kind.__name__}")
    return found[0]
