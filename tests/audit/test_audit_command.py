"""`sepgconv audit`: a page that opens anywhere, the same numbers as JSON, a check for a pipeline."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from sepgconv import KernelConfig, cli
from sepgconv.data import load
from sepgconv.training import Classifier, GridConfig, NetworkConfig
from sepgconv.training.storage import AtomicCheckpointIO

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
NUMBERS = [str(n) for n in range(10)]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Checkpoints on SE(2) and of a plain network, and a folder of digits by class."""
    folder = tmp_path_factory.mktemp("audit")
    digits = load("digits").test
    for index in range(20):
        file = folder / "digits" / str(int(digits.labels[index])) / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[index, 0].numpy()).save(file)
    for name, grid in (("se2", GridConfig(rotations=4)), ("plain", GridConfig("translation2"))):
        torch.manual_seed(0)
        classifier = Classifier(NetworkConfig(width=0.1, kernel=KernelConfig(hidden=8, layers=1)), grid)
        checkpoint: dict[str, Any] = {
            "state_dict": classifier.state_dict(),
            "hyper_parameters": dict(classifier.hparams),
            "Images": {"mean": [0.13], "std": [0.31], "class_names": NUMBERS},
        }
        AtomicCheckpointIO().save_checkpoint(checkpoint, folder / f"{name}.ckpt")
    return folder


@pytest.fixture(scope="module")
def report(place) -> Path:
    output = place / "report.html"
    arguments = ["audit", f"--ckpt={place / 'se2.ckpt'}", f"--images={place / 'digits'}", f"--output={output}"]
    assert cli.main([*arguments, "--accuracy", "--fail-above=0.01", "--count=8"]) == 0
    return output


def test_the_page_and_the_numbers_say_the_same(report):
    text, numbers = report.read_text(), json.loads(report.with_suffix(".json").read_text())
    quarter = [row for row in numbers["rows"] if row["family"] == "rotation" and row["exact"]]
    assert len(quarter) == 3
    assert all(row["error"] <= 1e-5 for row in quarter)
    assert {row["family"] for row in numbers["rows"]} == {"rotation", "mirror", "scale", "shift"}
    assert numbers["images"] == 20
    assert numbers["count"] == 8
    assert {entry["family"] for entry in numbers["accuracy"]} == {"rotation", "scale"}
    assert len(numbers["layers"]) > 20
    assert not any(layer["lost"] for layer in numbers["layers"])
    assert f'<p class="first">{numbers["sentence"]}</p>' in text
    assert numbers["sentence"].startswith("Turn a picture by a quarter, and this network says exactly the same.")
    for row in numbers["rows"]:
        assert f"<td>{row['change']}</td>" in text


def test_the_page_needs_nothing_else(report):
    """No address but those of pictures inside; it begins with the sentence and the pictures."""
    text = report.read_text()
    addresses = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]{1,30})""", text)
    assert len(addresses) >= 8 + 2
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert not re.search(r"https?://|@import|<script|<link", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert text.index('class="first"') < text.index('class="strip"') < text.index("<h2>")


def test_a_plain_network_fails_the_check(place, tmp_path, capsys):
    arguments = [f"--ckpt={place / 'plain.ckpt'}", f"--images={place / 'digits'}", f"--output={tmp_path / 'r.html'}"]
    assert cli.main(["audit", *arguments, "--fail-above=0.01", "--symmetries", "rotation", "--count=8"]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("is above 0.01") == 3
    assert "a quarter turn is lost in 0 (LiftingConv)" in printed.out
    numbers = json.loads((tmp_path / "r.json").read_text())
    assert min(row["error"] for row in numbers["rows"] if row["exact"]) > 0.1


def test_somebodys_onnx_file(place, tmp_path, capsys):
    """A mean over the image, which turns do not change, and which has no classes."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 1, "y", "x"])
    vector = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 1])
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "g", [image], [vector])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "mean.onnx")
    arguments = ["audit", f"--ckpt={tmp_path / 'mean.onnx'}", f"--images={place / 'digits'}"]
    assert cli.main([*arguments, f"--output={tmp_path / 'a.html'}"]) == 1
    assert "does not say how large its images are: give --size" in capsys.readouterr().err
    done = [*arguments, f"--output={tmp_path / 'r.html'}", "--size=28", "--fail-above=0.001"]
    assert cli.main([*done, "--symmetries", "rotation", "mirror"]) == 0
    assert "This file has no layers to look into" in (tmp_path / "r.html").read_text()
    assert cli.main([*done, "--accuracy", "--overwrite"]) == 1
    assert "accuracy needs labels: the file does not say its classes" in capsys.readouterr().err


def test_what_is_wrong_is_said_before_the_work(place, report, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sepgconv.audit.command.audit", lambda *_, **__: pytest.fail("work was begun"))
    (tmp_path / "shut").mkdir(mode=0o500)
    (tmp_path / "none").mkdir()
    (tmp_path / "flat").mkdir()
    for n in range(2):
        shutil.copy(next((place / "digits").glob("*/*.png")), tmp_path / "flat" / f"{n}.png")
    before = report.read_bytes()
    cases = [
        ({"output": report}, "exists; give --overwrite"),
        ({"output": tmp_path / "shut" / "r.html"}, "output must be a directory to write to"),
        ({"output": tmp_path / "r.pdf"}, "output must end in .html"),
        ({"images": tmp_path / "nowhere"}, "images must be a folder"),
        ({"images": tmp_path / "none"}, "there are no images in"),
        ({"images": tmp_path / "flat", "accuracy": None}, "accuracy needs labels: a folder of"),
        ({"ckpt": tmp_path / "none.ckpt"}, "weights must be a file or one of"),
        ({"limit": 1}, "limit must be at least 2, got 1"),
        ({"fail-above": -1}, "fail-above must not be negative"),
    ]
    for change, message in cases:
        given: dict[str, Any] = {"ckpt": place / "se2.ckpt", "images": place / "digits", "output": tmp_path / "r.html"}
        options = {**given, **change}
        arguments = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]
        assert cli.main(["audit", *arguments]) == 1
        assert message in capsys.readouterr().err
    assert report.read_bytes() == before
    assert not (tmp_path / "r.html").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the page is not opened in a browser")
def test_the_page_in_a_browser(report, tmp_path):
    """As narrow as a telephone and as wide as a desk: pictures load, nothing sticks out, nothing is fetched."""
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{html.escape(report.read_text())}"></iframe>'
        for width in (360, 1100)
    )
    look = """
    addEventListener("load", () => { const found = [...document.querySelectorAll("iframe")].map(frame => {
      const page = frame.contentDocument, root = page.documentElement;
      return { wide: root.scrollWidth - root.clientWidth, lines: page.querySelectorAll("tr").length,
        pictures: [...page.images].filter(i => i.complete && i.naturalWidth > 0).length, all: page.images.length,
        fetched: frame.contentWindow.performance.getEntriesByType("resource")
          .filter(entry => !entry.name.startsWith("data:")).length }; });
      document.body.textContent = "FOUND" + JSON.stringify(found) + "END"; });
    """
    (tmp_path / "look.html").write_text(
        f"<!doctype html><meta charset=utf-8><body>{frames}<script>{look}</script></body>"
    )
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "look.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = re.search("FOUND(.*)END", done.stdout)
    assert said, done.stderr[-2000:]
    for frame in json.loads(html.unescape(said.group(1))):
        assert frame["wide"] == 0
        assert frame["all"] == frame["pictures"] >= 10
        assert frame["lines"] > 40
        assert frame["fetched"] == 0
