"""Ensembles: members that are fitted by themselves and answer with their mean, from a recipe to an exported file."""

from dataclasses import replace
from pathlib import Path
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


def runs(tmp_path, *overrides: str) -> list[Path]:
    """Weights of as many runs as there are overrides, each with its own."""
    for number, override in enumerate(overrides):
        assert cli.main(["fit", *RECIPE, override, f"--output={tmp_path / str(number)}"]) == 0
    return [tmp_path / str(number) / "checkpoints/best.safetensors" for number in range(len(overrides))]


def test_networks_of_several_runs_make_an_ensemble(tmp_path, capsys, caplog):
    paths = runs(tmp_path, "--seed_everything=0", "--seed_everything=1")
    pair, three = tmp_path / "pair.safetensors", tmp_path / "three.safetensors"
    arguments = ["combine", "--ckpt", *map(str, paths), "--output", str(pair)]
    assert cli.main(arguments) == 0
    assert "an ensemble of 2 networks" in capsys.readouterr().out
    assert cli.main(["combine", "--ckpt", str(paths[1]), str(pair), "--output", str(three)]) == 0
    one, two = (load_trained(path).model(batch()[0]) for path in paths)
    assert (one - two).abs().max() > 1e-2
    assert_close(load_trained(pair).model(batch()[0]), (one + two) / 2)
    assert_close(load_trained(three).model(batch()[0]), (two + one + two) / 3)
    config = ["--config", str(tmp_path / "0/config.yaml"), "--model.network.members=2"]
    assert cli.main(["test", *config, f"--ckpt_path={pair}"]) == 0
    assert "test/error" in caplog.text
    assert cli.main(["export", "--ckpt", str(pair), "--output", str(tmp_path / "pair.onnx")]) == 0


def test_networks_that_are_not_alike_are_refused(tmp_path, capsys):
    paths = runs(tmp_path, "--seed_everything=0", "--model.network.width=0.12")
    output = tmp_path / "both.safetensors"

    def refused(*arguments: str | Path) -> str:
        capsys.readouterr()
        assert cli.main(["combine", "--ckpt", *map(str, arguments)]) == 1
        assert not output.exists()
        return capsys.readouterr().err

    assert "does not go with" in (said := refused(*paths, "--output", output))
    assert "network.width was 0.1, is 0.12" in said
    assert "takes two networks at least, got 1" in refused(paths[0], "--output", output)
    assert "must end in .safetensors, got" in refused(paths[0], paths[0], "--output", tmp_path / "both.ckpt")
    assert "there is no checkpoint at" in refused(paths[0], tmp_path / "none.ckpt", "--output", output)
    output.write_bytes(b"something")
    damaged = tmp_path / "damaged.safetensors"
    output.rename(damaged)
    assert "is not a whole checkpoint" in refused(paths[0], damaged, "--output", output)
