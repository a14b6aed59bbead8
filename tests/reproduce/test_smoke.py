"""Every experiment at the budget `smoke`, from the command line to its table and figure."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sepgconv.cli import main
from sepgconv.reproduce import experiments, find
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.summary import published

every = pytest.mark.parametrize("experiment", experiments(), ids=lambda e: e.id)


@every
def test_smoke(experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPGCONV_DATA", str(tmp_path / "empty"))  # nothing but embedded digits
    arguments = ["reproduce", experiment.id, "--budget", "smoke", "--output", str(tmp_path / "out"), "--processes", "0"]
    assert main(arguments) == 0
    store, home = Store(tmp_path / "out"), tmp_path / "out" / "smoke" / experiment.id
    runs, measured = experiment.runs("smoke"), set()
    for run in runs:
        result = store.read(run)
        assert result is not None
        assert result["seed"] == run.seed
        assert result["config"] == run.config
        assert {"seconds", "core_seconds", "versions", "commit", "hardware"} <= result.keys()
        for row in result["rows"]:
            assert next(iter(experiment.recipe["table"])) in row["metrics"]
            measured |= row["metrics"].keys()
            assert all(value == value for value in row["metrics"].values())  # no NaN
    assert set(experiment.recipe["table"]) <= measured
    text = (home / "table.md").read_text()
    assert text.count("\n| ") >= len({json.dumps(run.axes) for run in runs})
    for value in published(experiment.id):
        if value.metric in experiment.recipe["table"] and value.other:
            assert value.other in text
    with Image.open(home / "figure.png") as picture:
        assert picture.width > 500
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    assert not (tmp_path / "out" / "unfinished").exists()
    before = {path: path.stat().st_mtime_ns for path in home.glob("runs/*.json")}
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in home.glob("runs/*.json")} == before


def test_parameter_counts_are_the_published_ones(tmp_path: Path) -> None:
    assert main(["reproduce", "parameters", "--output", str(tmp_path), "--processes", "0"]) == 0
    counts = {}
    for run in find("parameters").runs("smoke"):
        result = Store(tmp_path).read(run)
        assert result is not None
        counts[run.axes["network"]] = result["rows"][0]["metrics"]["parameters"]
    assert counts["Separable"] == 803_242
    for value in published("parameters"):
        assert value.where is not None
        assert counts[value.where["network"]] == pytest.approx(value.value, rel=5e-3)
