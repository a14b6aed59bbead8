import re

import pytest
import torch
from PIL import Image

from sepgconv import cli, demo


def test_the_demo_runs_and_draws(tmp_path, capsys, monkeypatch) -> None:
    """A few steps of tiny networks: what they print and draw, not how well they do."""
    monkeypatch.setattr(demo, "ANGLES", (0, 45, 180))
    torch.manual_seed(0)
    assert demo.main(["--output", str(tmp_path), "--epochs", "1", "--width", "0.1", "--limit", "200", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"network +weights +0° +45° +worst +random +90° turn +training *\n", printed)
    row = re.search(r"SE\(2\), 8 rotations +[\d,]+ +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) ", printed)
    assert row is not None
    upright, diagonal, worst, _ = map(float, row.groups())
    assert worst >= max(upright, diagonal)
    with Image.open(tmp_path / "error_by_angle.png") as picture:
        assert picture.size[0] > 600


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
