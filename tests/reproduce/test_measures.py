"""What runs measure, on networks as they are drawn."""

from pathlib import Path

import pytest
import torch

from sepgconv.models import average
from sepgconv.reproduce import find
from sepgconv.reproduce.data import images
from sepgconv.reproduce.measures import SHIFTS, error_over_shifts
from sepgconv.reproduce.runs import classifier, execute, quiet, train


def test_the_error_over_shifts_is_that_of_the_averaged_network() -> None:
    run = next(run for run in find("sampling").runs("smoke") if run.axes == {"sampling": "random", "rotations": 4})
    model, data = classifier(run), images(run.config, run.seed)
    test, count = data.data.test, run.config["data"]["test"]
    pictures = data.normaliser(test.images[:count])
    with torch.no_grad():
        for _ in range(30):  # statistics of these images, without which all answers are the same
            model(pictures)
        model.eval()
        answers, alone = average(model.net, SHIFTS)(pictures), model(pictures)
    assert not torch.equal(answers.argmax(1), alone.argmax(1))  # else the comparison would show nothing
    expected = 100 * (answers.argmax(1) != test.labels[:count]).double().mean().item()
    assert error_over_shifts(model, data, run) == pytest.approx(expected, abs=1e-9)
    with torch.no_grad():
        assert torch.equal(model(pictures), alone)  # the grid is back in its place


def test_a_run_that_was_stopped_counts_the_cores_of_both_parts(tmp_path: Path) -> None:
    run, folder = find("resolution").runs("smoke")[0], tmp_path / "run"
    with quiet():
        train(run, folder, None)  # as if stopped before its result was written
    kept = folder / "core_seconds.txt"
    assert float(kept.read_text()) > 0
    kept.write_text("1000.0")
    assert execute(run, folder)["core_seconds"] > 1000
    assert not folder.exists()
