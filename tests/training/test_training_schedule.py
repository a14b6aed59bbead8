"""One cycle of the learning rate, and going on after it."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from training_helpers import assert_same

from sepgconv.training import Checkpoints, OptimiserConfig, fit, run, storage


class Interrupt(Callback):
    """Stops a run before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_start(self, trainer, pl_module) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


def rates(schedule, optimiser, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return found


def build(steps: int):
    return OptimiserConfig("onecycle", lr=1e-2).build(nn.Linear(1, 1), steps)


@pytest.mark.parametrize("steps", [5, 8, 17, 100])
def test_the_curve_is_the_one_it_always_was(steps):
    optimiser = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    before = OneCycleLR(optimiser, 1e-2, total_steps=steps, pct_start=0.25, cycle_momentum=False)
    assert rates(before, optimiser, steps) == rates(*reversed(build(steps)), steps)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_run_too_short_to_rise_begins_at_the_peak(steps):
    optimiser, schedule = build(steps)
    found = rates(schedule, optimiser, steps)
    assert found[0] == 1e-2
    assert found == sorted(found, reverse=True)
    assert steps == 1 or found[-1] < 1e-6


def test_a_run_of_four_steps(tiny):
    assert fit(*tiny(max_epochs=-1, max_steps=4), draw=False)["steps"] == 4


def test_a_schedule_without_an_end_is_named(tiny):
    with pytest.raises(ValueError, match=r"'onecycle' needs an end: set trainer.max_epochs or trainer.max_steps"):
        fit(*tiny(max_epochs=-1))


@pytest.mark.parametrize("at", [3, 8, 11])
def test_what_is_added_is_a_cycle_of_its_own(at):
    """It does not matter when a run of 8 steps is given 12 more: before its end, at its end."""
    optimiser, schedule = build(8)
    first = rates(schedule, optimiser, min(at, 8))
    longer, extended = build(20)
    longer.load_state_dict(optimiser.state_dict())
    extended.load_state_dict(copy.deepcopy(schedule.state_dict()))
    found = first + rates(extended, longer, 20 - len(first))
    assert found == rates(*reversed(build(8)), 8) + rates(*reversed(build(12)), 12)


def test_a_cycle_that_has_not_begun_is_planned_anew():
    optimiser, schedule = build(8)
    rates(schedule, optimiser, 3)
    for total in (20, 30):
        longer, extended = build(total)
        longer.load_state_dict(optimiser.state_dict())
        extended.load_state_dict(schedule.state_dict())
        optimiser, schedule = longer, extended
    assert schedule.ends == [8, 30]


def test_a_run_that_is_cut_short_is_warned_of():
    optimiser, schedule = build(20)
    rates(schedule, optimiser, 3)
    shorter, cut = build(10)
    with pytest.warns(UserWarning, match="ends at step 10, before its one-cycle schedule does at step 20"):
        cut.load_state_dict(schedule.state_dict())
    assert rates(cut, shorter, 7) == rates(*reversed(build(20)), 10)[3:]


def test_the_documented_way_to_train_for_longer(tiny):
    """`--ckpt_path RUN/checkpoints/last.ckpt --output NEW`, with more epochs."""
    first, before = tiny("first"), tiny("second", max_epochs=4)
    short = fit(*first, draw=False)
    last = Checkpoints.folder(first[0]) / "last.ckpt"
    long = fit(*before, ckpt_path=str(last), draw=False)
    assert (short["steps"], long["steps"]) == (10, 20)
    rows = [row.split(",") for row in (Path(before[0].default_root_dir) / "metrics.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["epoch", "0", "1", "2", "3"]
    best = storage.read(Checkpoints.folder(before[0]) / "best.ckpt")
    assert best["global_step"] == long["metrics"]["best"]["step"]
    assert long["metrics"]["best"]["score"] <= short["metrics"]["best"]["score"]


def test_a_longer_run_that_is_killed_goes_on_with_last(tiny, monkeypatch):
    monkeypatch.setattr(run, "draw_curves", lambda *_: None)
    first = tiny("first")
    fit(*first)
    last = str(Checkpoints.folder(first[0]) / "last.ckpt")
    expected = fit(*tiny("whole", max_epochs=3), ckpt_path=last)
    for step in (10, 11):  # before anything is written, and after
        with pytest.raises(InterruptedError):
            fit(*tiny("part", max_epochs=3, callbacks=[Interrupt(step)]), ckpt_path=last)
    with pytest.raises(ValueError, match="already holds a run: go on with --ckpt_path last"):
        fit(*tiny("part", max_epochs=3), ckpt_path=last)
    assert_same(fit(*tiny("part", max_epochs=3), ckpt_path="last")["metrics"], expected["metrics"])


def test_a_longer_run_without_the_best_weights_so_far_chooses_among_its_own(tiny):
    first = tiny("first")
    fit(*first, draw=False)
    for path in Checkpoints.folder(first[0]).glob("*"):
        if path.name != "last.ckpt":
            path.unlink()
    again = tiny("second", max_epochs=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        last = Checkpoints.folder(first[0]) / "last.ckpt"
        step = storage.read(last)["callbacks"]["Checkpoints"]["best"]["step"]
        result = fit(*again, ckpt_path=str(last), draw=False)
    warned = any("the best of what follows is taken" in str(warning.message) for warning in caught)
    assert warned == (step != 10)
    assert result["metrics"]["best"]["step"] == storage.read(Checkpoints.folder(again[0]) / "best.ckpt")["global_step"]
