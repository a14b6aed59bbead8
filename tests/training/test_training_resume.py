"""A run that is interrupted and resumed ends exactly as one that is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_helpers import Interrupt, assert_same

from sepgconv.training import Checkpoints, fit, run, storage


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, (3, 5, 6, 10)),  # within an epoch, at its last batch, after its end, at the end of the run
        ({"every": 2, "val_check_interval": 0.4}, (4,)),
        ({"max_epochs": -1, "max_steps": 8}, (6, 8)),
        ({"accumulate_grad_batches": 2}, (3,)),
    ],
    ids=str,
)
def test_every_step_can_be_resumed(tiny, monkeypatch, options, steps):
    monkeypatch.setattr(run, "draw_curves", lambda *_: None)  # slow, and not what this is about
    whole = tiny("whole", **options)
    expected = run.fit(*whole)
    end = storage.read(Checkpoints.folder(whole[0]) / "last.ckpt")
    for step in steps:
        with pytest.raises(InterruptedError):
            run.fit(*tiny(f"part{step}", callbacks=[Interrupt(step)], **options))
        again = tiny(f"part{step}", **options)
        assert_same(run.fit(*again, ckpt_path="last")["metrics"], expected["metrics"])
        assert_same(storage.read(Checkpoints.folder(again[0]) / "last.ckpt"), end)


def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    """A subprocess imports once; its children are training runs through the command line, and are killed."""
    script = Path(__file__).with_name("kill_runs.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert outcome["kills"] == 10
    assert outcome["resumed_within_training"] >= 3
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for name in ("metrics.csv", "checkpoints/best.safetensors", "checkpoints/last.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    assert_same(storage.read(parts / "checkpoints/last.ckpt"), storage.read(whole / "checkpoints/last.ckpt"))
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, parts)]
    assert_same(results[0], results[1])


def test_a_finished_run_is_not_tested_again(tiny, monkeypatch):
    first = fit(*tiny())
    again = tiny()
    monkeypatch.setattr(again[0], "test", lambda *a, **k: pytest.fail("the test set was touched again"))
    assert_same(fit(*again, ckpt_path="last"), first)


def test_a_run_killed_before_its_test_is_only_tested(tiny):
    first = fit(*tiny())
    again = tiny()
    (Path(again[0].default_root_dir) / "result.json").unlink()
    assert_same(fit(*again, ckpt_path="last"), first)


def test_a_new_run_does_not_overwrite_another(tiny):
    fit(*tiny())
    with pytest.raises(ValueError, match="already holds a run: go on with --ckpt_path last"):
        fit(*tiny())


def test_other_data_settings_cannot_go_on_with_a_run(tiny):
    with pytest.raises(InterruptedError):
        fit(*tiny(callbacks=[Interrupt(3)]))
    with pytest.raises(ValueError, match=r"data.batch_size was 32, is 16"):
        fit(*tiny(data={"batch_size": 16}), ckpt_path="last")
