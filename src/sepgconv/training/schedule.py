"""The one-cycle schedule, and what it means to go on after its end."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.optim.lr_scheduler import LRScheduler

RISE, FALL = 25.0, 1e4  # the rate begins at peak/RISE and ends at peak/RISE/FALL


class OneCycle(LRScheduler):
    """A rate that rises to a peak and falls to nearly zero, along cosines.

    A cycle that has begun is never changed. If a run is given more steps, those after the end of its cycle are a cycle
    of their own; so the rate does not depend on when the run was interrupted.

    Args:
        optimiser: whose rates are set.
        peaks: of each of its groups.
        steps: of the whole run.
        warmup: the part of a cycle in which the rate rises; a cycle too short for that begins at the peak.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, peaks: Sequence[float], steps: int, warmup: float) -> None:
        self.warmup, self.ends, self.peaks = warmup, [max(steps, 1)], list(peaks)
        for group, peak in zip(optimiser.param_groups, peaks, strict=True):
            group.update(initial_lr=peak / RISE, max_lr=peak, min_lr=peak / RISE / FALL)
        super().__init__(optimiser)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rates of the step that comes next."""
        starts = [0, *self.ends[:-1]]
        start, end = next(
            (cycle for cycle in zip(starts, self.ends, strict=True) if self.last_epoch < cycle[1]),
            (starts[-1], self.ends[-1]),
        )
        return [_rate(peak, self.last_epoch - start, end - start, self.warmup) for peak in self.peaks]

    def state_dict(self) -> dict[str, Any]:
        """The position, and where cycles end."""
        kept = ("base_lrs", "last_epoch", "_step_count", "_last_lr")
        return {"ends": list(self.ends), **{key: getattr(self, key) for key in kept}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the cycle that has begun; also from the state of `torch.optim.lr_scheduler.OneCycleLR`."""
        planned = self.ends[-1]
        ends = state_dict["ends"] if "ends" in state_dict else [state_dict["total_steps"]]
        if not ends or any(end <= start for start, end in zip([0, *ends], ends, strict=False)):
            raise ValueError(f"the checkpoint cannot be gone on from: its schedule has cycles that end at {ends!r}")
        self.last_epoch, self._step_count = state_dict["last_epoch"], state_dict["_step_count"]
        begun = 1 + sum(end < self.last_epoch for end in ends[:-1])
        self.ends = [int(end) for end in ends[:begun]]
        if planned > self.ends[-1]:
            self.ends.append(planned)
        elif planned < self.ends[-1]:
            rank_zero_warn(
                f"the run now ends at step {planned}, before its one-cycle schedule does at step {self.ends[-1]}: "
                "the rate does not fall to zero"
            )
        rates = self.get_lr()
        self._last_lr = rates
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _rate(peak: float, step: int, steps: int, warmup: float) -> float:
    low, last = peak / RISE, steps - 1
    top = max(warmup * steps - 1, 0.0)  # the step at which the rate is highest
    if step <= top:
        return _cosine(low, peak, step / top if top else 1.0)
    return _cosine(peak, low / FALL, min((step - top) / (last - top), 1.0) if last > top else 1.0)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
