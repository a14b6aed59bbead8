"""Exported files compute what the checkpoint does, hold all it takes to use them, and are whole or not there."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from sepgconv import KernelConfig, cli
from sepgconv.data import load
from sepgconv.deploy import OnnxNetwork, _export, export, load_network
from sepgconv.training import Classifier, GridConfig, NetworkConfig
from sepgconv.training.storage import AtomicCheckpointIO
from sepgconv.training.trained import load_trained

KINDS = ("onnx", "pt2", "safetensors")
CLASSES = [f"class {n}" for n in range(10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint, some images, and all exports of it with what the command printed."""
    made = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    network = NetworkConfig(width=0.1, kernel=KernelConfig(hidden=8, layers=1))
    classifier = Classifier(network, GridConfig(rotations=4))
    checkpoint: dict[str, Any] = {
        "state_dict": classifier.state_dict(),
        "hyper_parameters": dict(classifier.hparams),
        "Images": {"mean": [0.13], "std": [0.31], "class_names": CLASSES},
    }
    AtomicCheckpointIO().save_checkpoint(checkpoint, made / "best.ckpt")
    digits = load("digits").test.images[:, 0].numpy()
    Image.fromarray(digits[0]).save(made / "a.png")
    Image.fromarray(digits[1]).resize((50, 33)).save(made / "b.png")
    return made


@pytest.fixture(scope="module")
def printed(folder) -> dict[str, str]:
    """What exporting prints, by kind; the files lie in `folder`."""
    found = {}
    for kind in KINDS:
        arguments = ["export", f"--ckpt={folder / 'best.ckpt'}", f"--to={kind}", f"--output={folder / f'net.{kind}'}"]
        with pytest.MonkeyPatch.context() as patch:
            lines: list[str] = []
            patch.setattr("builtins.print", lambda *words, lines=lines, **_: lines.append(" ".join(map(str, words))))
            assert cli.main(arguments) == 0
        found[kind] = "\n".join(lines)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_computes_what_the_checkpoint_does(folder, printed, kind):
    """For any number of images, of any size; and quarter turns change nothing."""
    trained, exported = load_trained(folder / "best.ckpt"), load_network(folder / f"net.{kind}")
    assert exported.classes == tuple(CLASSES)
    for count, size in ((1, 28), (5, 28), (2, 36)):
        images = torch.randint(256, (count, 1, size, size), dtype=torch.uint8)
        expected = trained.logits(images)
        scale = expected.abs().max()
        assert (exported.logits(images) - expected).abs().max() <= 1e-5 * scale
        for turns in (1, 2, 3):
            turned = exported.logits(images.rot90(turns, (-2, -1)))
            assert (turned - exported.logits(images)).abs().max() <= 1e-5 * scale
    assert "any number of images, of any size" in printed[kind]


def test_onnx_has_stock_operators_only(folder, printed):
    model = onnx.load(folder / "net.onnx")
    onnx.checker.check_model(model)
    assert {entry.domain for entry in model.opset_import} <= {"", "ai.onnx"}
    assert {"Conv", "Relu", "MaxPool", "Gemm"} <= {node.op_type for node in model.graph.node}
    assert not model.functions
    assert not [tensor for tensor in model.graph.initializer if tensor.external_data]


@pytest.mark.parametrize("kind", KINDS)
def test_predict_takes_exported_files(folder, printed, kind, capsys):
    files = [str(folder / name) for name in ("a.png", "b.png")]
    lines = []
    for ckpt in (folder / "best.ckpt", folder / f"net.{kind}"):
        assert cli.main(["predict", f"--ckpt={ckpt}", *files]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]
    assert "class " in lines[0]


def test_the_printed_file_needs_no_torch(folder, printed, capsys):
    text = printed["onnx"]
    program = folder / "classify.py"
    program.write_text(text[text.index('"""Classifies') :])
    without = "import sys, runpy; sys.modules.update(torch=None, sepgconv=None); sys.argv = sys.argv[1:]; "
    for name in ("a.png", "b.png"):
        command = [sys.executable, "-c", f"{without}runpy.run_path(sys.argv[0])", str(program), str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        cli.main(["predict", f"--ckpt={folder / 'best.ckpt'}", str(folder / name)])
        assert capsys.readouterr().out.startswith(done.stdout.strip())


def test_exporting_leaves_the_model_as_it_was(folder, tmp_path):
    trained = load_trained(folder / "best.ckpt")
    trained.model.train()
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    keys = list(trained.model.state_dict())
    trained.model.eval()
    export(trained, tmp_path / "net.pt2")
    assert list(trained.model.state_dict()) == keys
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
    assert all(parameter.requires_grad for parameter in trained.model.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to=onnx", "--output={there}.onnx"], "exists; give --overwrite"),
        (["--output={there}.onnx", "--opset=17", "--overwrite"], "opset must lie between 18 and 23, got 17"),
        (["--output={there}.pt2", "--opset=18", "--overwrite"], "opset is for ONNX files"),
        (["--to=onnx", "--output={there}.pt2"], "output must end in .onnx"),
        (["--output={there}.tflite"], "to must be one of onnx, pt2, safetensors; got 'tflite'"),
        (["--output={shut}/net.onnx"], "output must be a directory to write to"),
        (["--ckpt={none}.ckpt", "--output={new}.onnx"], "weights must be a file or one of"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(folder, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(_export, "fold", lambda *_, **__: pytest.fail("work was begun"))
    for suffix in ("onnx", "pt2"):
        (tmp_path / f"there.{suffix}").write_text("mine")
    (tmp_path / "shut").mkdir(mode=0o500)
    names = {name: str(tmp_path / name) for name in ("there", "shut", "none", "new")}
    given = [argument.format(**names) for argument in arguments]
    assert cli.main(["export", f"--ckpt={folder / 'best.ckpt'}", *given]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "there.onnx").read_text() == "mine"
    assert not list(tmp_path.glob("new*"))


def test_a_file_that_differs_is_not_written(folder, tmp_path, monkeypatch):
    right = _export.fold

    def wrong(model, **settings):
        folded = right(model, **settings)
        with torch.no_grad():
            next(folded.parameters()).mul_(1.01)
        return folded

    monkeypatch.setattr(_export, "fold", wrong)
    (tmp_path / "net.safetensors").write_text("mine")
    with pytest.raises(ValueError, match=r"net\.safetensors was not written: it would differ from the original by"):
        export(load_trained(folder / "best.ckpt"), tmp_path / "net.safetensors", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]
    assert (tmp_path / "net.safetensors").read_text() == "mine"


def test_files_that_cannot_be_read_are_named(folder, printed, tmp_path):
    for kind in ("onnx", "pt2"):
        half = tmp_path / f"half.{kind}"
        half.write_bytes((folder / f"net.{kind}").read_bytes()[:2000])
        with pytest.raises(ValueError, match=rf"half\.{kind} is not a whole {'ONNX' if kind == 'onnx' else kind} file"):
            load_network(half)
        with pytest.raises(FileNotFoundError, match=r"there is no file"):
            load_network(tmp_path / f"none.{kind}")
    bare = onnx.load(folder / "net.onnx")
    bare.ClearField("metadata_props")
    onnx.save(bare, tmp_path / "bare.onnx")
    with pytest.raises(ValueError, match=r"bare\.onnx does not say its classes"):
        load_network(tmp_path / "bare.onnx")
    assert OnnxNetwork(tmp_path / "bare.onnx")(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ValueError, match=r"takes images of shape \[1, .*got \(3, 28, 28\)"):
        OnnxNetwork(tmp_path / "bare.onnx")(torch.zeros(2, 3, 28, 28))


def test_an_onnx_file_with_a_batch_of_its_own(tmp_path):
    """Somebody's file for two images at a time classifies three."""
    image = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 1, 4, 4])
    logits = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 16])
    node = onnx.helper.make_node("Flatten", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [image], [logits])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "two.onnx")
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 1, 4, 4))).float()
    assert torch.equal(OnnxNetwork(tmp_path / "two.onnx")(x), x.flatten(1))


def test_a_few_images_at_a_time_are_the_same(folder, printed, monkeypatch):
    """How many follows from their size: four of 28×28, so that nine are three pieces."""
    images = torch.rand(9, 1, 28, 28)
    network, whole = (OnnxNetwork(folder / "net.onnx", whole=whole) for whole in (False, True))
    sizes = []

    def counting(run):
        return SimpleNamespace(run=lambda names, feed: sizes.append(len(feed["pixels"])) or run(names, feed))

    for each in (network, whole):
        monkeypatch.setattr(each, "session", counting(each.session.run))
    assert (network(images) - whole(images)).abs().max() < 1e-5
    assert sizes == [4, 4, 1, 9]


class Stubborn(torch.nn.Module):
    """Keeps the size that it was made for, without a word."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.reshape(-1, 1, 28 * 28).unflatten(2, (28, 28))


def test_a_network_for_one_size_is_exported_for_one(folder, tmp_path):
    trained = load_trained(folder / "best.ckpt")
    stubborn = replace(trained, model=torch.nn.Sequential(Stubborn(), trained.model))
    done = export(stubborn, tmp_path / "net.pt2")
    assert not done.any_size
    assert done.difference < 1e-5
    images = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
    expected = trained.logits(images)
    assert (load_network(tmp_path / "net.pt2").logits(images) - expected).abs().max() < 1e-5 * expected.abs().max()
