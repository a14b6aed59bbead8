"""A trained network that answers with the mean over shifts of its random grid: tested, loaded, exported, audited."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from training_helpers import GRID, NETWORK, make_run

import sepgconv as sg
from sepgconv import cli
from sepgconv.deploy import load_network
from sepgconv.models._average import mean_over_shifts
from sepgconv.training import Classifier, GridConfig, fit, load_trained

SHIFTED = replace(GRID, shifts=3)


def answers(run: Path, monkeypatch: pytest.MonkeyPatch, grid: GridConfig) -> dict[str, list[Tensor]]:
    """What a run counts in validation and in the test, batch by batch, after training."""
    trainer, _, data = make_run(run, max_epochs=1)
    seen: dict[str, list[Tensor]] = {"val": [], "test": []}
    update = Classifier._update

    def watched(self: Classifier, stage: str, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        if stage in seen:
            seen[stage].append(logits)
        update(self, stage, loss, logits, labels)

    monkeypatch.setattr(Classifier, "_update", watched)
    torch.manual_seed(0)
    fit(trainer, Classifier(NETWORK, grid), data)
    monkeypatch.undo()
    return seen


def images(run: Path) -> Tensor:
    _, _, data = make_run(run)
    return next(iter(data.test_dataloader()))[0]


def test_the_test_averages_over_shifts_and_validation_does_not(tmp_path, monkeypatch):
    plain, shifted = (answers(tmp_path / str(grid.shifts), monkeypatch, grid) for grid in (GRID, SHIFTED))
    assert_close(plain["val"], shifted["val"], atol=0, rtol=0)
    trained = load_trained(tmp_path / "3/run/checkpoints/best.ckpt")
    network = load_trained(tmp_path / "1/run/checkpoints/best.ckpt").model
    with torch.no_grad():
        expected = sg.models.average(network, 3)(images(tmp_path))
        assert_close(shifted["test"][0], expected, atol=1e-5, rtol=1e-5)
        assert_close(trained.model(images(tmp_path)), expected, atol=1e-5, rtol=1e-5)
        assert (plain["test"][0] - expected).abs().max() > 1e-3


def test_the_grid_is_back_in_its_place_even_after_an_error():
    classifier = Classifier(NETWORK, SHIFTED).eval()
    grid = next(part for part in classifier.modules() if isinstance(part, sg.Grid))

    class Trouble(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if grid.offset.any():
                raise RuntimeError("trouble")
            return x

    assert isinstance(classifier.net, nn.Sequential)
    classifier.net.insert(0, Trouble())
    with pytest.raises(RuntimeError, match="trouble"):
        mean_over_shifts(classifier, torch.zeros(2, 1, 28, 28), 3)
    assert not grid.offset.any()


def test_a_run_can_be_exported_audited_and_gone_on_with(tmp_path, image_folder):
    trainer, classifier, data = make_run(tmp_path, max_epochs=1)
    fit(trainer, Classifier(classifier.network, SHIFTED), data)
    checkpoint = tmp_path / "run/checkpoints/best.ckpt"
    report, x = tmp_path / "report.html", torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    for kind in ("onnx", "safetensors"):
        exported = tmp_path / f"net.{kind}"
        assert cli.main(["export", f"--ckpt={checkpoint}", f"--to={kind}", f"--output={exported}"]) == 0
        assert_close(load_network(exported).logits(x), load_trained(checkpoint).logits(x), atol=1e-4, rtol=1e-4)
    pictures = image_folder(tmp_path / "own", {"0": 3, "1": 3}, (28, 28))
    assert cli.main(["audit", f"--ckpt={checkpoint}", f"--images={pictures}", f"--output={report}", "--count=3"]) == 0
    assert "conv1" in report.read_text()
    (tmp_path / "run/result.json").unlink()
    again, plain, more = make_run(tmp_path, max_epochs=2)  # how a run is tested may change
    assert fit(again, plain, more, "last")["epochs"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shifts": 0}, "shifts must be a whole number of at least 1, got 0"),
        ({"shifts": 2, "sampling": "fixed"}, "shifts=2: no axis of this grid is sampled at random"),
        ({"shifts": 2, "group": "translation2"}, "shifts=2: no axis of this grid is sampled at random"),
    ],
)
def test_wrong_shifts_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        GridConfig(**settings)


def test_a_checkpoint_with_too_many_shifts_is_refused():
    settings = dict(Classifier(NETWORK, GRID).hparams)
    settings["grid"] = {**settings["grid"], "shifts": 10**6}
    with pytest.raises(ValueError, match="shifts must lie between 0 and 64, got 1000000"):
        Classifier.from_config(settings)
