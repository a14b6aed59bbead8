"""Several processes do together what one does alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ddp_step
import pytest
import torch
from training_helpers import RECIPE

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "MASTER_ADDR": "127.0.0.1"}


def run(*command: object) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> list[dict]:
    """What the two processes saw, started by torchrun, over gloo."""
    folder: Path = tmp_path_factory.mktemp("ddp")
    run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", ddp_step.__file__, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone() -> dict:
    return ddp_step.main(1)


def test_gradients_are_those_of_the_joined_batch(both, alone):
    assert torch.equal(torch.cat([process["labels"] for process in both]), alone["labels"])
    for name, gradient in alone["gradients"].items():
        for process in both:
            torch.testing.assert_close(process["gradients"][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_all_processes_shift_the_grid_alike(both, alone):
    assert alone["offset"].abs().max() > 0
    for process in both:
        assert torch.equal(process["offset"], alone["offset"])


def test_metrics_are_reduced_once_and_every_image_counts_once(both, alone):
    for process in both:
        metrics = process["metrics"]
        assert metrics["val/error"] == pytest.approx(alone["metrics"]["val/error"], abs=1e-9)
        assert metrics["train/error"] == pytest.approx(alone["metrics"]["train/error"], abs=1e-9)
        for key in ("val/loss", "train/loss"):
            assert metrics[key] == pytest.approx(alone["metrics"][key], rel=1e-5)


def test_the_command_line_starts_the_processes(tmp_path):
    run("-m", "sepgconv.cli", "fit", *RECIPE, f"--output={tmp_path}", "--trainer.devices=2", "--trainer.strategy=ddp")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 2
    assert 0 <= result["metrics"]["test/error"] <= 100
