import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sepgconv.data import DataSet, Split, load, names
from sepgconv.data.command import main, show
from sepgconv.data.picture import GAP, sample_sheet, save_samples
from sepgconv.data.registry import ENTRIES


def test_list_names_every_set_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in names():
        assert f" {name} " in printed
    assert "embedded" in printed
    assert "21,785" not in printed
    assert "17,429" in printed
    assert str(tmp_path) in printed


def test_list_tells_what_is_at_hand(tmp_path: Path) -> None:
    assert ENTRIES["digits"].at_hand(tmp_path) == "embedded"
    assert ENTRIES["galaxy10"].at_hand(tmp_path) == "no"
    (tmp_path / "Galaxy10.h5").write_text("")
    assert ENTRIES["galaxy10"].at_hand(tmp_path) == "yes"
    assert ENTRIES["mnist-rot"].at_hand(tmp_path) == "no"
    source = ENTRIES["mnist"].source
    assert source is not None
    for file in source.files:
        (tmp_path / f"{file}.gz").write_text("")
    assert ENTRIES["mnist"].at_hand(tmp_path) == "yes"
    assert ENTRIES["mnist-rot"].at_hand(tmp_path) == "can be made"
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "mnist-rot-seed7-v1.npz").write_text("")
    assert ENTRIES["mnist-rot"].at_hand(tmp_path) == "yes"
    assert ENTRIES["mnist-rot-scale"].at_hand(tmp_path) == "can be made"


def test_names() -> None:
    variants = ("mnist-rot", "mnist-scale", "mnist-rot-scale")
    mnists = ("mnist", *variants, *(f"{name}-selection" for name in variants))
    others = ("mnist-rot-original", "cifar10", "cifar100", "digits3d", "signals", "first-galaxies", "galaxy10")
    assert names() == ("digits", *mnists, "stir-mnist", "stir-mnist-half", *others)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"one of digits, .*got 'mnist_rot'; did you mean 'mnist-rot'\?"):
        load("mnist_rot")
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        load("digits", seed=-1)


def test_load_checks_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid, test = ENTRIES["digits"].read(None, 0, False)
    swapped = dataclasses.replace(ENTRIES["digits"], read=lambda *_: (valid, train, test))
    monkeypatch.setitem(ENTRIES, "digits", swapped)
    with pytest.raises(ValueError, match=r"must have \(4500, 500, 1000\) images, found \(500, 4500, 1000\)"):
        load("digits")


def test_prepare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "digits"]) == 0
    assert "digits is ready: 4,500 / 500 / 1,000 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["prepare", "digits", "cifar"],
            "sepgconv data prepare: name must be one of .* did you mean 'cifar10'?",
        ),
        (["show", "digits", "--out", "/nowhere/at/all.png"], "out must be in a folder that exists"),
        (["show", "digits", "--seed", "-3"], "seed must not be negative, got -3"),
    ],
)
def test_errors_are_one_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert re.search(message, printed.err)


def test_help_names_the_sets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["prepare", "--help"])
    assert caught.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "mnist-rot-scale" in printed
    assert "SEPGCONV_DATA" in printed


def test_the_sheet_has_a_row_per_class() -> None:
    data = load("digits")
    sheet = sample_sheet(data, per_class=3)
    assert sheet.shape == (10 * 30 - GAP, 3 * 30 - GAP, 1)
    sevens = data.train.images[data.train.labels == 7]
    assert torch.equal(sheet[210:238, 30:58, 0], sevens[1, 0])
    assert (sheet[28:30] == 128).all()


def test_show_writes_a_picture(tmp_path: Path) -> None:
    path = show("digits", out=tmp_path / "samples.png")
    picture = np.asarray(Image.open(path).convert("L"))
    assert min(picture.shape) > 500
    assert 0.2 < (picture < 20).mean() < 0.8  # digits on black, names on white


def test_colours_and_many_classes(tmp_path: Path) -> None:
    images = torch.zeros(100, 3, 8, 8, dtype=torch.uint8)
    images[:, 0] = 255
    split = Split(images, torch.arange(100))
    data = DataSet("red", 100, split, split, split)
    save_samples(data, tuple(map(str, range(100))), tmp_path / "red.png")
    picture = np.asarray(Image.open(tmp_path / "red.png").convert("RGB")).reshape(-1, 3)
    assert (picture == (255, 0, 0)).all(1).mean() > 0.02
    assert sample_sheet(data).shape[0] == 20 * 10 - GAP


@pytest.mark.parametrize("command", [["prepare", "digits"], ["show", "digits"], ["list"]])
@pytest.mark.parametrize("below", ["", "data"])
def test_a_root_that_is_a_file_is_an_error(tmp_path, capsys, command, below):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / below
    assert main([*command, f"--root={root}"]) == 1
    printed = capsys.readouterr()
    assert "root must be a directory" in printed.err
    assert f"{str(tmp_path / 'file')!r}, which is a file" in printed.err
    assert printed.out == ""


def test_a_picture_goes_where_it_is_said_to(tmp_path, capsys):
    """A folder's name was taken for a picture's, with .png behind it."""
    (tmp_path / "folder").mkdir()
    for out in ("folder", "name-without-a-kind", "notes.txt"):
        assert main(["show", "digits", f"--out={tmp_path / out}"]) == 1
        assert "out must be the name of a picture" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
