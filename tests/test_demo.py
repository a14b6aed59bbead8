import re

import pytest
import torch
from PIL import Image

from sepgconv import cli, demo
from sepgconv.training import Images


def test_the_demo_runs_and_draws(tmp_path, capsys) -> None:
    """A few steps of tiny networks: what they print and draw, not how well they do."""
    torch.manual_seed(0)
    assert demo.main(["--output", str(tmp_path), "--epochs", "1", "--width", "0.1", "--limit", "200", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "rotated" in printed
    assert "SE(2), 8 rotations" in printed
    with Image.open(tmp_path / "error_by_angle.png") as picture:
        assert picture.size[0] > 600


def test_all_digits_are_turned() -> None:
    """The test digits come in the order 0, 1, …, 9, 0, 1, …: every second of them would be an even one."""
    test = Images("digits").data.test
    assert torch.bincount(demo.half(test).labels).tolist() == [50] * 10


def test_help(capsys) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--help"])
    assert "--epochs" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["file", "file/below", "folder"])
def test_an_output_that_cannot_be_written_is_found_before_training(tmp_path, capsys, monkeypatch, output) -> None:
    monkeypatch.setattr(demo, "train", lambda *args, **options: pytest.fail("it trains"))
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "error_by_angle.png").mkdir(parents=True)
    assert cli.main(["demo", "--output", str(tmp_path / output), "--quiet"]) == 1
    printed = capsys.readouterr()
    assert "output must be a directory to write to" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    "option", ["epochs=0", "epochs=-1", "width=0", "width=nan", "limit=0", "limit=99999", "seed=-1"]
)
def test_bad_settings_are_found_before_training(tmp_path, capsys, monkeypatch, option) -> None:
    monkeypatch.setattr(demo.Trainer, "fit", lambda *args, **options: pytest.fail("it trains"))
    name, value = option.split("=")
    assert cli.main(["demo", "--output", str(tmp_path), "--quiet", f"--{name}", value]) == 1
    assert re.search(rf"{name} must .*{value}", capsys.readouterr().err)
