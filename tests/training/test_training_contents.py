"""Checkpoints that someone else wrote: every one is an error in a line, with the file's name where it is read."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from training_helpers import RECIPE

from sepgconv import cli
from sepgconv.training import storage


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("contents") / "run"
    assert cli.main(["fit", *RECIPE, f"--output={output}"]) == 0
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(output / "image.png")
    (output / "result.json").unlink()
    return output


def put(*keys):
    """Sets the value at a path of keys; the last of the arguments is the value."""
    *path, last, value = keys

    def change(checkpoint: dict) -> None:
        for key in path:
            checkpoint = checkpoint[key]
        checkpoint[last] = value

    return change


def drop(*keys):
    *path, last = keys

    def change(checkpoint: dict) -> None:
        for key in path:
            checkpoint = checkpoint[key]
        del checkpoint[last]

    return change


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> dict:
    value: dict = {}
    value["again"] = value
    return value


WEIGHT = "net.15.weight"
FOR_ALL = {
    "weights in a list": put("state_dict", [torch.ones(2)]),
    "no weights": put("state_dict", None),
    "a number for a weight": put("state_dict", WEIGHT, 3.0),
    "a sparse weight": put("state_dict", WEIGHT, torch.ones(2, 2).to_sparse()),
    "weights by number": put("state_dict", {1: torch.ones(2)}),
    "a weight too few": drop("state_dict", WEIGHT),
    "a weight of another shape": put("state_dict", WEIGHT, torch.ones(3)),
    "settings in a list": put("hyper_parameters", [1, 2]),
    "no settings": drop("hyper_parameters"),
    "a network in a text": put("hyper_parameters", "network", "resnet"),
    "a tensor among settings": put("hyper_parameters", "seed", torch.ones(2)),
    "settings without end": put("hyper_parameters", "grid", cycle()),
    "settings too deep": put("hyper_parameters", "junk", nested(200)),
    "settings that are not finite": put("hyper_parameters", "grid", "max_scale", float("nan")),
    "a huge number": put("hyper_parameters", "seed", 10**400),
    "data in a list": put("Images", [1]),
    "a mean in a text": put("Images", "mean", "0.5"),
    "no deviation": drop("Images", "std"),
    "class names of numbers": put("Images", "class_names", [1, 2]),
    "a negative step": put("global_step", -5),
    "an epoch in a text": put("epoch", "three"),
}
FOR_PREDICTION = {
    "a group that there is not": put("hyper_parameters", "grid", "group", "so9"),
    "rotations in a text": put("hyper_parameters", "grid", "rotations", "many"),
    "too many rotations": put("hyper_parameters", "grid", "rotations", 10**12),
    "a negative width": put("hyper_parameters", "network", "width", -1.0),
    "a width that fills the memory": put("hyper_parameters", "network", "width", 1e6),
    "hidden layers that fill the memory": put("hyper_parameters", "network", "kernel", "hidden", 10**9),
    "a setting that there is not": put("hyper_parameters", "network", "depth", 3),
    "a kernel in a list": put("hyper_parameters", "network", "kernel", [1]),
    "no grid": drop("hyper_parameters", "grid"),
    "a preparation in a list": put("preparation", [1]),
    "a framing in a text": put("preparation", "framing", "square"),
    "a framing that lacks its size": put("preparation", "framing", {"channels": 1}),
    "a framing of another size": put("preparation", "framing", "size", 30),
    "a framing of half a pixel": put("preparation", "framing", "size", 28.0),
    "a framing that fills the memory": put("preparation", "framing", "crop", 10**9),
    "a framing that distorts": put("preparation", "framing", "resize", "squash"),
    "a deviation too many": put("preparation", "std", [0.3, 0.3]),
    "class names too few": put("preparation", "class_names", ["0", "1"]),
    "a rate in a text": put("hyper_parameters", "optimiser", "lr", "fast"),
}
FOR_RESUMPTION = {
    "loops in a list": put("loops", [1]),
    "loops that lack all": put("loops", {}),
    "loops of junk": put("loops", {"fit_loop": {"state_dict": 1}}),
    "progress in a text": put("loops", "fit_loop", "epoch_progress", "far"),
    "an optimiser in a text": put("optimizer_states", ["adam"]),
    "an optimiser too few": put("optimizer_states", []),
    "an optimiser without groups": drop("optimizer_states", 0, "param_groups"),
    "moments of another shape": put("optimizer_states", 0, "state", 0, "exp_avg", torch.ones(1, 2, 3)),
    "moments that lack": put("optimizer_states", 0, "state", {}),
    "a schedule of junk": put("lr_schedulers", [{"total_steps": "x"}]),
    "a schedule too few": put("lr_schedulers", []),
    "a negative end of the schedule": put("lr_schedulers", 0, "ends", [-4]),
    "callbacks in a list": put("callbacks", []),
    "no history": put("callbacks", "History", {}),
    "a history of junk": put("callbacks", "History", "rows", [1, 2]),
    "a best score in a text": put("callbacks", "Checkpoints", "best", "score", "good"),
    "a best score that lacks its step": put("callbacks", "Checkpoints", "best", {"score": 1.0}),
    "a version in a text": put("pytorch-lightning_version", "soon"),
    "no version": drop("pytorch-lightning_version"),
    "metrics of junk": put("metrics", {"train_loss": 3}),
    "metrics that there are not": put("metrics", {"other": {"a": torch.ones(1)}}),
    "a negative position": put("Images", "position", {"epoch": -1, "done": -3}),
}


def craft(run: Path, tmp_path: Path, change) -> Path:
    checkpoint = copy.deepcopy(storage.read(run / "checkpoints/last.ckpt"))
    change(checkpoint)
    path = tmp_path / "crafted.ckpt"
    torch.save(checkpoint, path)
    return path


def one_line(arguments: list[str], capsys) -> str:
    """Runs a command that must fail, and returns the line it says why in."""
    capsys.readouterr()
    assert cli.main(arguments) == 1
    said = capsys.readouterr().err.splitlines()
    found = [line for line in said if line.startswith(f"sepgconv {arguments[0]}: ")]
    assert len(found) == 1, said
    assert said[said.index(found[0]) + 1 :] == ["(set SEPGCONV_DEBUG=1 for the traceback)"]
    return found[0]


@pytest.mark.parametrize("name", FOR_ALL | FOR_PREDICTION)
def test_predict(run, tmp_path, capsys, name):
    path = craft(run, tmp_path, (FOR_ALL | FOR_PREDICTION)[name])
    line = one_line(["predict", f"--ckpt={path}", str(run / "image.png")], capsys)
    assert "checkpoint" in line
    assert len(line) < 500


# What all commands read is checked in one place, so a few are enough for the other two.
SOME = {
    name: FOR_ALL[name]
    for name in ("weights in a list", "a weight too few", "a weight of another shape", "no deviation")
}


@pytest.mark.parametrize("name", SOME)
def test_test(run, tmp_path, capsys, name):
    path = craft(run, tmp_path, SOME[name])
    line = one_line(["test", f"--config={run / 'config.yaml'}", f"--ckpt_path={path}"], capsys)
    assert "checkpoint" in line


@pytest.mark.parametrize("name", SOME | FOR_RESUMPTION)
def test_fit(run, tmp_path, capsys, name):
    path, new = craft(run, tmp_path, (SOME | FOR_RESUMPTION)[name]), tmp_path / "new"
    options = ["--trainer.max_epochs=2", "--trainer.logger=false", f"--output={new}", f"--ckpt_path={path}"]
    line = one_line(["fit", *RECIPE, *options], capsys)
    assert "checkpoint" in line
    assert [path.name for path in new.rglob("*") if path.suffix in (".ckpt", ".json", ".lock")] == []
