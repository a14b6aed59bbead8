"""Ensembles: members that are fitted by themselves and answer with their mean, from a recipe to an exported file."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from training_helpers import GRID, NETWORK, RECIPE, Interrupt, assert_same, make_run

from sepgconv import cli, models
from sepgconv.deploy import load_network
from sepgconv.models._average import Average
from sepgconv.training import Classifier, GridConfig, fit, load_trained, run, storage

TWO = replace(NETWORK, members=2, dropout=0.0)
FIXED = GridConfig(rotations=4, sampling="fixed")


def members(net: nn.Module) -> list[nn.Module]:
    assert isinstance(net, Average)
    return list(net.networks)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 1, 28, 28), torch.arange(6)


def test_members_begin_apart_and_answer_with_their_mean():
    net = Classifier(TWO, FIXED).eval().net
    images, _ = batch()
    one, two = (network(images) for network in members(net))
    assert (one - two).abs().max() > 1e-2
    assert_close(net(images), (one + two) / 2)
    assert_close(net(images.rot90(1, (-2, -1))), net(images), atol=2e-5, rtol=2e-5)


def test_each_member_is_fitted_by_itself(monkeypatch):
    """Its gradients are those that it has alone, not those of the error of the mean."""
    classifier = Classifier(TWO, FIXED, label_smoothing=0.1).train()
    monkeypatch.setattr(Classifier, "log", lambda *_, **__: None)
    images, labels = batch()
    loss = classifier.training_step((images, labels), 0)
    loss.backward()
    alone = [F.cross_entropy(network(images), labels, label_smoothing=0.1) for network in members(classifier.net)]
    assert_close(loss, sum(alone) / 2)
    for network, value in zip(members(classifier.net), alone, strict=True):
        weights = list(network.parameters())
        for weight, expected in zip(weights, torch.autograd.grad(value, weights), strict=True):
            assert_close(weight.grad, expected / 2, atol=1e-6, rtol=1e-4)


def test_one_member_is_the_network_itself():
    assert not isinstance(Classifier(replace(NETWORK, members=1), GRID).net, Average)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "two"])
def test_members_are_counted(count):
    with pytest.raises(ValueError, match=f"members must be a whole number of at least 1, got {count!r}"):
        replace(NETWORK, members=count)


def test_a_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """Members draw their shifts one after the other: a resumed run must draw them in the same order."""
    monkeypatch.setattr(run, "draw_curves", lambda *_: None)

    def part(folder: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Any]:
        trainer, _, data = make_run(tmp_path, folder, callbacks=callbacks)
        fit(trainer, Classifier(TWO, GRID), data, resume)
        return storage.read(tmp_path / folder / "checkpoints/last.ckpt")

    whole = part("whole")
    with pytest.raises(InterruptedError):
        part("parts", Interrupt(3))
    assert_same(part("parts", resume="last"), whole)


def test_from_a_recipe_to_an_exported_file(tmp_path, capsys):
    """Over two members and two shifts of their grids."""
    recipe = [*RECIPE, "--model.network.members=2", "--model.grid.shifts=2", f"--output={tmp_path / 'run'}"]
    assert cli.main(["fit", *recipe]) == 0
    path = tmp_path / "run/checkpoints/best.safetensors"
    trained, images = load_trained(path), batch()[0]
    expected = trained.model(images)
    one, two = (models.average(network, 2)(images) for network in members(Classifier.load_from_checkpoint(path).net))
    assert_close(expected, (one + two) / 2)
    pixels = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    for to in ("onnx", "safetensors"):
        file = tmp_path / f"net.{to}"
        assert cli.main(["export", "--ckpt", str(path), "--output", str(file)]) == 0
        assert_close(load_network(file).logits(pixels), trained.logits(pixels), atol=1e-4, rtol=1e-4)
    assert cli.main(["test", *recipe, "--ckpt_path", str(path)]) == 0
    capsys.readouterr()


def test_an_ensemble_with_other_classes_begins_with_its_members(tmp_path):
    trainer, _, data = make_run(tmp_path, max_epochs=1)
    fit(trainer, Classifier(TWO, GRID), data)
    path = tmp_path / "run/checkpoints/best.ckpt"
    network = models.load(path, num_classes=3)
    assert network(batch()[0]).shape == (6, 3)
    theirs, ours = load_trained(path).model.state_dict(), network.state_dict()
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == [
        f"networks.{n}.19.{part}" for n in (0, 1) for part in ("weight", "bias")
    ]
    with pytest.raises(ValueError, match="is of another network"):
        Classifier(NETWORK, GRID, start=str(path))


@pytest.mark.parametrize("settings", [{"members": 2**7}, {"members": 2**6, "width": 16.0}, {"members": 0}])
def test_a_checkpoint_with_too_many_members_is_refused(settings):
    plain = dict(Classifier(TWO, GRID).hparams)
    with pytest.raises(ValueError, match="members"):
        Classifier.from_config({**plain, "network": {**plain["network"], **settings}})
