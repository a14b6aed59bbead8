"""`sepgconv predict`: a line per file that is right, or an error that names it."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training_helpers import GRID, NETWORK

from sepgconv import cli
from sepgconv.data import load
from sepgconv.data.image_files import Framing
from sepgconv.training import Classifier, Images
from sepgconv.training.predict import Predictor
from sepgconv.training.preparation import Preparation
from sepgconv.training.storage import AtomicCheckpointIO
from sepgconv.training.trained import Trained, load_trained

Checkpoint = dict[str, Any]


def written(folder: Path, change: Callable[[Checkpoint], object] = lambda checkpoint: None) -> Path:
    """A checkpoint of a network as it is drawn, after a change."""
    torch.manual_seed(0)
    classifier = Classifier(NETWORK, GRID)
    data = {"mean": [0.13], "std": [0.31], "class_names": list("0123456789")}
    checkpoint = {
        "state_dict": classifier.state_dict(),
        "hyper_parameters": dict(classifier.hparams),
        "Images": data,
    }
    change(checkpoint)
    AtomicCheckpointIO().save_checkpoint(checkpoint, folder / "best.ckpt")
    return folder / "best.ckpt"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("predict"))


def predict(checkpoint: Path, *files: Path | str, status: int = 0) -> None:
    assert cli.main(["predict", f"--ckpt={checkpoint}", *map(str, files)]) == status


def digit() -> np.ndarray:
    return load("digits").test.images[0, 0].numpy()


def probability(printed: str) -> float:
    return float(re.search(r"\(([\d.]+)%\)", printed).group(1))


def test_a_digit_is_the_same_however_it_is_stored(checkpoint, tmp_path, capsys):
    """Eight bits, sixteen, floats, with an alpha channel, a palette: one picture, one answer."""
    eight = digit()
    stored = {
        "eight.png": Image.fromarray(eight),
        "sixteen.png": Image.fromarray(eight.astype(np.uint16) * 257),
        "float.tif": Image.fromarray(eight.astype(np.float32) / 255),
        "palette.png": Image.fromarray(eight).convert("RGB").quantize(256, dither=Image.Dither.NONE),
        "opaque.png": Image.fromarray(np.dstack([eight] * 3 + [np.full_like(eight, 255)])),
        "ink.png": Image.fromarray(np.dstack([np.full_like(eight, 255)] * 3 + [eight])),
    }
    for name, image in stored.items():
        image.save(tmp_path / name)
    predict(checkpoint, *(tmp_path / name for name in stored))
    lines = capsys.readouterr().out.splitlines()
    assert len({re.search(r": (\d \([\d.]+%\))", line).group(1) for line in lines}) == 1
    assert lines[0].endswith("%)")
    assert lines[1].endswith("[16 bit to 8 bit]")
    assert lines[5].endswith("[transparent parts on black, colour to grey]")


def test_dark_on_light_is_said_and_inverted(checkpoint, tmp_path, capsys):
    Image.fromarray(digit()).save(tmp_path / "light.png")
    Image.fromarray(255 - digit()).save(tmp_path / "dark.png")
    predict(checkpoint, tmp_path / "light.png", tmp_path / "dark.png")
    light, dark = capsys.readouterr().out.splitlines()
    assert "--invert" not in light
    assert "lighter than the training images: dark on light needs --invert" in dark
    predict(checkpoint, "--invert", tmp_path / "dark.png")
    inverted = capsys.readouterr().out
    assert probability(inverted) == probability(light)
    assert "[inverted]" in inverted


def test_files_that_cannot_be_read_leave_the_others(checkpoint, tmp_path, capsys):
    good, empty, numbers = tmp_path / "good.png", tmp_path / "empty.png", tmp_path / "numbers.tif"
    moving, other = tmp_path / "moving.gif", Image.fromarray(255 - digit())
    Image.fromarray(digit()).save(moving, save_all=True, append_images=[other])
    Image.fromarray(digit()).save(good)
    empty.write_bytes(b"")
    Image.fromarray(digit().astype(np.int32)).save(numbers)
    predict(checkpoint, empty, numbers, tmp_path / "none.png", moving, good, status=1)
    printed = capsys.readouterr()
    assert printed.err.startswith("sepgconv predict: 4 of 5 could not be classified:\n")
    assert len(printed.err.splitlines()) == 5
    for text in (f"{empty} is empty", f"{numbers} has 32-bit", f"No such file or directory: '{tmp_path / 'none.png'}'"):
        assert text in printed.err
    assert f"{moving} has 2 frames" in printed.err
    assert printed.out.startswith(f"{good}: ")


def fill(name: str, value: float) -> Callable[[Checkpoint], object]:
    def change(checkpoint: Checkpoint) -> None:
        state = checkpoint["state_dict"]
        key = next(key for key in state if name in key and state[key].is_floating_point())
        state[key].view(-1)[-1] = value

    return change


@pytest.mark.parametrize("kind", ["ckpt", "safetensors"])
@pytest.mark.parametrize(("name", "value"), [("weight", torch.nan), ("running_mean", torch.inf)])
def test_weights_that_are_not_finite_are_an_error(tmp_path, capsys, name, value, kind):
    Image.fromarray(digit()).save(tmp_path / "a.png")
    path = written(tmp_path, fill(name, value)).with_suffix(f".{kind}")
    predict(path, tmp_path / "a.png", status=1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(rf"{path} cannot be used: net\.\S*{name} is not finite", printed.err)


def test_a_prediction_that_is_not_finite_is_an_error(tmp_path, capsys):
    """Finite weights can still overflow."""
    Image.fromarray(digit()).save(tmp_path / "a.png")
    predict(written(tmp_path, fill("running_var", -1e9)), tmp_path / "a.png", status=1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path / 'a.png'}: the network's output is not finite" in printed.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("Images"), "does not say how its images were prepared"),
        (lambda c: c["Images"].pop("std"), "Images.std must be a list of numbers"),
        (lambda c: c["Images"].update(mean=[0.1, 0.2]), "mean and std must have 1 values"),
        (lambda c: c["Images"].update(std=[float("nan")]), "Images.std must be a finite number"),
        (lambda c: c["Images"].update(mean=["a"]), "Images.mean must be a finite number"),
        (lambda c: c["Images"].update(class_names=["a"]), "1 class names for 10 classes"),
        (lambda c: c["hyper_parameters"].pop("grid"), "grid must be a mapping of names"),
        (lambda c: c["hyper_parameters"]["network"].update(image_size="28"), "cannot be used"),
        (lambda c: c["hyper_parameters"]["network"].update(image_size=28.0), "image_size must be a whole number"),
        (lambda c: c["hyper_parameters"]["grid"].update(rotations="four"), "cannot be used"),
        (lambda c: c["hyper_parameters"].update(network=3), "network must be a mapping of names"),
        (lambda c: c.update(state_dict=[1]), "state_dict must be a mapping of names"),
    ],
)
def test_settings_that_do_not_fit_are_an_error(tmp_path, change, message):
    path = tmp_path / "crafted.ckpt"
    written(tmp_path)
    checkpoint = torch.load(tmp_path / "best.ckpt", weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=r"crafted\.ckpt") as caught:
        load_trained(path)
    assert message in str(caught.value)


def test_a_run_says_how_its_images_are_prepared():
    """The checkpoints made here have what a run's have."""
    assert {"mean", "std", "class_names"} <= Images("digits").state_dict().keys()


@pytest.fixture
def pictures(tmp_path) -> Path:
    images = load("digits").test.images
    for index, name in enumerate(("b/1.png", "a.png", "b/2.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(images[index, 0].numpy()).save(tmp_path / name)
    (tmp_path / "b" / "notes.txt").write_text("no image")
    return tmp_path


def test_folders_and_patterns_stand_for_their_images(checkpoint, pictures, capsys):
    predict(checkpoint, pictures)
    everything = capsys.readouterr().out
    assert [line.split(": ")[0] for line in everything.splitlines()] == [
        str(pictures / name) for name in ("a.png", "b/1.png", "b/2.png")
    ]
    predict(checkpoint, pictures / "**" / "*.png", pictures / "a.png")  # each once
    assert capsys.readouterr().out == everything
    predict(checkpoint, pictures / "*.jpg", pictures / "a.png", status=1)
    printed = capsys.readouterr()
    assert f"there is no file like {pictures / '*.jpg'}" in printed.err
    assert len(printed.out.splitlines()) == 1
    predict(checkpoint, "", pictures / "a.png", status=1)  # an empty variable is not this folder
    printed = capsys.readouterr()
    assert "a file must have a name, got ''" in printed.err
    assert len(printed.out.splitlines()) == 1


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_table_has_all_that_could_be_read(checkpoint, pictures, capsys, kind):
    (pictures / "b" / "bad.png").write_bytes(b"")
    out = pictures / "out" / f"table.{kind}"
    predict(checkpoint, pictures, f"--out={out}", status=1)
    printed = capsys.readouterr()
    assert printed.out == f"wrote 3 predictions to {out}\n"
    assert printed.err.endswith(f"1 of 4 could not be classified:\n  {pictures / 'b' / 'bad.png'} is empty\n")
    rows = list(csv.DictReader(out.read_text().splitlines())) if kind == "csv" else json.loads(out.read_text())
    assert [row["file"] for row in rows] == [str(pictures / name) for name in ("a.png", "b/1.png", "b/2.png")]
    assert all(row["class"] in "0123456789" and 0.1 <= float(row["probability"]) <= 1 for row in rows)


def test_a_table_that_cannot_be_written_is_an_error_at_once(checkpoint, pictures, capsys):
    predict(checkpoint, pictures, "--out=table.xlsx", status=1)
    assert "--out must end in .csv or .json, got 'table.xlsx'" in capsys.readouterr().err


@pytest.mark.parametrize(("average", "count"), [("rotations", 4), ("reflections", 2), ("rotations+reflections", 8)])
def test_averages_do_not_change_with_what_they_are_over(average, count):
    """For a network of any kind: this one is as far from invariant as can be."""
    framing = Framing(6)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 5))
    trained = Trained(model, tuple("abcde"), Preparation(framing, (0.5,), (0.25,)), NETWORK, GRID, {})
    predictor = Predictor(trained, average=average)
    images = torch.randint(0, 256, (3, 1, 6, 6), dtype=torch.uint8)
    changed = [images.rot90(turns, (-2, -1)) for turns in range(4 if "rotations" in average else 1)]
    changed += [image.flip(-1) for image in changed] if "reflections" in average else []
    assert len(changed) == count
    expected = torch.stack([trained.logits(image).softmax(1) for image in changed]).mean(0)
    for image in changed:
        assert (predictor.probabilities(image) - expected).abs().max() < 1e-6
    assert (Predictor(trained).probabilities(changed[-1]) - trained.logits(images).softmax(1)).abs().max() > 1e-2
    with pytest.raises(ValueError, match="average must be one of rotations"):
        Predictor(trained, average="translations")
