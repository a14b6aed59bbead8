"""The experiment on sizes that were not seen in training."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sepgconv.cli import main
from sepgconv.data import stir
from sepgconv.reproduce import BUDGETS, find
from sepgconv.reproduce.data import images
from sepgconv.reproduce.stir import EMBEDDED, digits
from sepgconv.reproduce.store import Store
from sepgconv.training import GridConfig, NetworkConfig, OptimiserConfig


@pytest.mark.parametrize("budget", [budget for budget in BUDGETS if budget != "long"])
def test_runs_are_well_formed(budget: str) -> None:
    runs = find("stir").runs(budget)
    assert len({run.name for run in runs}) == len(runs) > 0
    for run in runs:
        config = run.config
        first, last = config["data"]["sizes"]
        assert run.axes["trained"] == f"{first}–{last}"
        assert (first, last) in stir.SCENARIOS
        assert config["data"]["name"] == {"smoke": EMBEDDED, "cpu": stir.HALF, "paper": stir.NAME}[budget]
        OptimiserConfig(**config["optimiser"])
        network = NetworkConfig(**{**config["network"], "kernel": NetworkConfig().kernel})
        assert network.name == "shallow"
        network.build(GridConfig(**config["grid"]).build())


def test_published_curves_have_the_published_means() -> None:
    """Mean accuracy on unseen sizes as in the published table."""
    lines = find("stir").recipe["figure"]["published"]
    known = {
        "plain CNN": (63.4, 77.0, 68.5),
        "maximum over scales per pixel": (89.3, 89.1, 83.0),
        "pyramid of images": (92.7, 90.9, 84.9),
    }
    assert set(lines) == set(known)
    for name, means in known.items():
        for (first, last), mean in zip(stir.SCENARIOS, means, strict=True):
            curve = np.array(lines[name][f"{first}–{last}"])
            sizes = np.array(stir.SIZES)
            assert curve[(sizes < first) | (sizes > last)].mean() == pytest.approx(mean, abs=0.11)


def test_a_scenario_trains_on_its_sizes_only() -> None:
    run = find("stir").runs("smoke")[0]
    module = images(run.config, seed=0)
    assert len(module.data.train) == len(module.data.valid) == 2 * 10 * 16
    assert len(module.data.test) == len(digits().test) == 2 * 10 * 48
    assert module.settings["sizes"] == [17, 32]
    largest = max(int((image > 60).sum(0).count_nonzero()) for image in torch.as_tensor(module.data.train.images[:, 0]))
    assert largest <= 32


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPGCONV_DATA", str(tmp_path / "empty"))
    out = tmp_path / "out"
    assert main(["reproduce", "stir", "--budget", "smoke", "--output", str(out), "--processes", "0"]) == 0
    for run in find("stir").runs("smoke"):
        result = Store(out).read(run)
        assert result is not None
        assert result["arrays"]["sizes"] == list(stir.SIZES)
        seen = result["arrays"]["accuracies"][:16]
        assert result["rows"][0]["metrics"]["seen_accuracy"] == pytest.approx(sum(seen) / 16, abs=0.01)
    text = (out / "smoke" / "stir" / "table.md").read_text()
    assert re.search(r"\| 17–32 \| R²⋊R⁺ on a pyramid \|", text)
    with Image.open(out / "smoke" / "stir" / "figure.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    monkeypatch.setattr("sepgconv.reproduce.command.sweep", lambda *args, **options: pytest.fail("it runs"))
    (out / "smoke" / "stir" / "table.md").unlink()
    assert main(["reproduce", "stir", "--budget", "smoke", "--output", str(out), "--tables"]) == 0
    assert (out / "smoke" / "stir" / "table.md").read_text() == text
    assert main(["reproduce", "stir", "--budget", "cpu", "--output", str(out), "--tables"]) == 1


def test_without_mnist_it_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    from sepgconv.data import DataUnavailable

    def missing(*_, **__):
        raise DataUnavailable("mnist is not at hand")

    monkeypatch.setattr("sepgconv.data.stir.read_mnist", missing)
    monkeypatch.setattr("sepgconv.data.places.user_cache", lambda: tmp_path / "cache")
    (tmp_path / "data").mkdir()
    command = [
        "reproduce",
        "stir",
        "--budget",
        "cpu",
        "--root",
        str(tmp_path / "data"),
        "--output",
        str(tmp_path / "o"),
    ]
    assert main(command) == 1
    assert "`sepgconv data prepare stir-mnist-half` gets it" in capsys.readouterr().err
