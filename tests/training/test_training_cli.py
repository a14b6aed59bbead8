import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from training_helpers import RECIPE

from sepgconv import cli
from sepgconv.data import load
from sepgconv.training.command import TrainingCLI
from sepgconv.training.parser import nearest

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


def test_help_is_for_people(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 20
    assert all(command in shown for command in cli.MODULES)
    for command in cli.PURPOSES:
        assert cli.main([command, "--help"]) == 0
        assert len(capsys.readouterr().out.splitlines()) < 40


def test_help_shows_keys_that_there_are(capsys):
    cli.main(["fit", "--help"])
    shown = [
        line.split()[0].removeprefix("--") for line in capsys.readouterr().out.splitlines() if line.startswith("  --")
    ]
    known = _keys()
    assert [key for key in shown if key not in known and key != "print_config" and f"--{key}" not in cli.SHORT] == []


def _keys() -> list[str]:
    found: list[str] = []

    class Keys(TrainingCLI):
        def parse_arguments(self, parser, args):
            found.extend(parser.keys())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Keys(["fit"])
    return found


def test_unknown_command(capsys):
    assert cli.main(["fitt"]) == 2
    assert "got 'fitt'; did you mean 'fit'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "key", "near"),
    [
        ({"model": {"network": {"widht": 0.5}}}, "model.network.widht", "model.network.width"),
        ({"modle": {"network": {"width": 0.5}}}, "modle.network.width", "model.network.width"),
        ({"data": {"batchsize": 8}}, "data.batchsize", "data.batch_size"),
        ({"model": {"lr": 0.1}}, "model.lr", "model.optimiser.lr"),
        ({"trainer": {"max_epoch": 8}}, "trainer.max_epoch", "trainer.max_epochs"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, capsys, recipe, key, near):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(SystemExit) as exit:
        cli.main(["fit", f"--config={path}"])
    assert exit.value.code == 2
    assert f"unknown key {key!r}; did you mean {near!r}?" in capsys.readouterr().err


def test_an_unknown_option_names_the_nearest(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "--data.batchsize=8"])
    assert "unknown key 'data.batchsize'; did you mean 'data.batch_size'?" in capsys.readouterr().err
    assert nearest("qqqq", ["data.name"]) is None


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipes_are_valid(path, monkeypatch, tmp_path, data_root, image_folder):
    """Every recipe builds; its network fits its data set, and its run has a place of its own."""
    from sepgconv.data.registry import entry

    monkeypatch.setattr(TrainingCLI, "fit", lambda self, **_: None)
    options = []
    if path.parent.name == "folder":
        options = [f"--data.folder={image_folder(tmp_path / 'own', {'a': 4, 'b': 4}, (40, 20))}"]
    if path.parent.name == "first_galaxies":  # a stand-in of the same kind
        folder = image_folder(data_root / "first-galaxies", dict.fromkeys(entry("first-galaxies").class_names, 3))
        files = [f"{file.relative_to(folder)},{file.parent.name}" for file in folder.rglob("*.png")]
        (folder / "fold0.csv").write_text("\n".join(["file,label", *files]))
    built = TrainingCLI(["fit", f"--config={path}", *options])
    data = built.datamodule if built.datamodule.folder else entry(built.datamodule.data_name)
    network = built.model.network
    assert data.shape == (network.in_channels, *[network.image_size] * (len(data.shape) - 1))
    assert network.num_classes == len(data.class_names)
    if path.parent.name == "first_galaxies":
        assert data.shape == entry("first-galaxies").shape
    assert built.config.fit.output == f"runs/{path.parent.name}/{path.stem}"


def test_there_are_recipes():
    assert len(RECIPES) >= 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("cli") / "run"
    torch.set_num_threads(1)
    assert cli.main(["fit", *RECIPE, f"--output={output}"]) == 0
    return output


def test_fit_leaves_logs_and_its_recipe(trained):
    recipe = yaml.safe_load((trained / "config.yaml").read_text())
    assert recipe["model"]["network"]["width"] == 0.1
    assert list((trained / "tensorboard").glob("events*"))
    assert "test/error" in json.loads((trained / "result.json").read_text())["metrics"]


def test_a_run_is_tested_again_with_its_own_recipe(trained, caplog):
    before = json.loads((trained / "result.json").read_text())["metrics"]["test/error"]
    with caplog.at_level("INFO"):
        assert cli.main(["test", f"--config={trained / 'config.yaml'}"]) == 0
    assert f"test/error {before:.4g}" in caplog.text
    assert cli.main(["validate", f"--config={trained / 'config.yaml'}", "--ckpt_path=last"]) == 0


def test_bare_weights_are_tested_like_a_checkpoint(trained, caplog):
    before = json.loads((trained / "result.json").read_text())["metrics"]["test/error"]
    weights = trained / "checkpoints/best.safetensors"
    with caplog.at_level("INFO"):
        assert cli.main(["test", f"--config={trained / 'config.yaml'}", f"--ckpt_path={weights}"]) == 0
    assert "best.safetensors: test/loss" in caplog.text
    assert f"test/error {before:.4g}" in caplog.text


def test_a_run_does_not_go_on_from_bare_weights(trained, capsys):
    weights = trained / "checkpoints/best.safetensors"
    assert cli.main(["fit", *RECIPE, f"--output={trained}", f"--ckpt_path={weights}"]) == 1
    assert "best.safetensors holds weights only" in capsys.readouterr().err


def test_errors_are_messages(trained, tmp_path, capsys, monkeypatch):
    arguments = ["test", f"--config={trained / 'config.yaml'}"]
    assert cli.main([*arguments, f"--ckpt_path={tmp_path / 'none.ckpt'}"]) == 1
    assert "there is no checkpoint at" in capsys.readouterr().err
    assert cli.main([*arguments, "--model.network.width=0.2"]) == 1
    assert "the checkpoint is of another network" in capsys.readouterr().err
    assert cli.main(["fit", *RECIPE, f"--output={trained}"]) == 1
    assert "already holds a run" in capsys.readouterr().err
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(FileNotFoundError):
        cli.main([*arguments, f"--ckpt_path={tmp_path / 'none.ckpt'}"])


def test_predict_takes_images_of_any_kind(trained, tmp_path, capsys):
    digit = Image.fromarray(load("digits").test.images[0, 0].numpy())
    same, large, wide, broken = (tmp_path / name for name in ("same.png", "large.jpg", "wide.png", "broken.png"))
    digit.save(same)
    digit.resize((300, 300)).convert("RGB").save(large)
    Image.fromarray(np.zeros((50, 200, 4), np.uint8)).save(wide)
    broken.write_bytes(same.read_bytes()[:60])
    text = tmp_path / "text.png"
    text.write_text("not an image")
    for kind in ("ckpt", "safetensors"):
        checkpoint = trained / f"checkpoints/best.{kind}"
        assert cli.main(["predict", f"--ckpt={checkpoint}", *map(str, (same, large, wide))]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{same}: ")
        assert lines[0].endswith("%)")
        assert lines[1].endswith("[colour to grey, 300×300 to 28×28]")
        assert "transparent parts on black, colour to grey, 200×50 to 28×28, padded with black" in lines[2]
    missing = tmp_path / "missing.png"
    assert cli.main(["predict", f"--ckpt={checkpoint}", *map(str, (text, broken, missing, same))]) == 1
    captured = capsys.readouterr()
    assert f"{text} is not an image" in captured.err
    assert f"{broken} is damaged or cut short" in captured.err
    assert f"No such file or directory: '{missing}'" in captured.err
    assert captured.out.startswith(f"{same}: ")


def test_predict_with_something_else(tmp_path, capsys):
    (tmp_path / "notes.ckpt").write_text("hello")
    assert cli.main(["predict", f"--ckpt={tmp_path / 'notes.ckpt'}", "a.png"]) == 1
    assert "notes.ckpt is not a whole checkpoint" in capsys.readouterr().err
