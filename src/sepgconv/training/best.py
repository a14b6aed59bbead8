"""The weights that were best on validation: found again at the end of a run, or said to be lost; never others."""

from pathlib import Path
from typing import Any

from . import storage
from .settings import differences, of_checkpoint

Best = dict[str, float | int]


def best_weights(folder: Path, best: Best, ours: dict[str, Any]) -> tuple[dict[str, Any], Best]:
    """The checkpoint that holds the best weights of a run, and what they scored.

    They are in `best.ckpt`; if that is damaged, in `best.safetensors`, or in the last checkpoints if those are of the
    same step. After a kill on a machine that does not repeat a run exactly, `best.ckpt` may be from a step that was
    taken in another way the second time: then its own score goes with it.

    Args:
        folder: of the checkpoints.
        best: the score, epoch and step that the run remembers.
        ours: the run's settings.

    Raises:
        ValueError: they are lost.
    """
    problems = []
    beside = Path(storage.BEST).with_suffix(".safetensors").name
    for name in (storage.BEST, beside, storage.LAST, storage.PREVIOUS):
        try:
            found = storage.read(folder / name)
        except (OSError, ValueError) as error:
            problems.append(str(error))
            continue
        others = differences(of_checkpoint(found), ours)
        score = found.get("run", {}).get("best") if name == storage.BEST else None
        if found.get("global_step") == best["step"] and not others:
            return found, best
        if score and not others and score.keys() == best.keys() and score["score"] <= best["score"]:
            return found, dict(score)
        if name in (storage.BEST, beside):
            problems.append(
                f"{folder / name} is of another run or step ({'; '.join(others) or found.get('global_step')})"
            )
    raise ValueError(
        f"the weights of step {best['step']}, which were best on validation, are lost, and nothing was tested: "
        f"{'; '.join(problems)}. Training is complete: put a copy of {storage.BEST} back and go on with "
        "--ckpt_path last, or see what the last weights give with `sepgconv test --ckpt_path last`"
    )
