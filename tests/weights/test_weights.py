"""Trained networks by name: what ships works, what does not is fetched and checked."""

import functools
import hashlib
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from PIL import Image

from sepgconv import KernelConfig, cli, models, weights
from sepgconv.data import DataUnavailable, load
from sepgconv.data.download import Remote
from sepgconv.training import Classifier, GridConfig, NetworkConfig, load_trained
from sepgconv.weights.make import LARGEST, make, rounded


@pytest.fixture(scope="module")
def shipped():
    return load_trained(weights.locate("mnist-rot-se2"))


@pytest.fixture(scope="module")
def same(shipped):
    """The weights that ship, by the names they have in one network: `shipped` averages four that share them."""
    return shipped.model.networks[0].state_dict()


def config(**changes):
    """As the recipe of what ships."""
    return NetworkConfig(**{"width": 0.75, "kernel": KernelConfig(layers=1, cutoff=0.4), "antialias": True, **changes})


def test_what_ships_is_small_has_a_card_and_no_images_of_others():
    for name, path in weights.shipped().items():
        assert path.stat().st_size <= LARGEST
        card = path.with_suffix(".md").read_text(encoding="utf-8")
        for word in ("data", "licence", "test error", "seed", "commit"):
            assert f"| {word} |" in card
        assert "first" not in name


def test_the_shipped_network_reads_turned_digits(shipped):
    test = load("digits").test
    images, labels = test.images[:60], test.labels[:60]
    errors = [(shipped.logits(images.rot90(turns, (-2, -1))).argmax(1) != labels).double().mean() for turns in range(4)]
    assert max(errors) < 0.12
    assert max(errors) == min(errors)  # a quarter turn changes nothing


def test_predict_works_without_a_checkpoint(tmp_path, monkeypatch, capsys):
    """As after `pip install`, outside of a clone."""
    monkeypatch.chdir(tmp_path)
    test = load("digits").test
    for index in range(5):
        Image.fromarray(test.images[index, 0].numpy()).save(f"{index}.png")
    assert cli.main(["predict", "*.png", "--average", "rotations"]) == 0
    said = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert sum(a == str(b) for a, b in zip(said, test.labels[:5].tolist(), strict=True)) >= 4


def test_a_last_layer_of_its_own(same):
    network = models.load("mnist-rot-se2", num_classes=4)
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 4)
    ours = network.state_dict()
    assert all(torch.equal(ours[key], same[key]) for key in ours if ours[key].shape == same[key].shape)
    assert [key for key in ours if ours[key].shape != same[key].shape] == ["19.weight", "19.bias"]
    assert models.load("mnist-rot-se2")(torch.randn(1, 1, 28, 28)).shape == (1, 10)


def test_a_run_begins_with_trained_weights(same):
    """On larger images and other classes, too, since kernels are continuous."""
    network = config(num_classes=4, image_size=48)
    begun = Classifier(network, GridConfig(), start="mnist-rot-se2").net.state_dict()
    assert [key for key in begun if not torch.equal(begun[key], same[key])] == ["19.weight", "19.bias"]
    with pytest.raises(ValueError, match=r"is of another network: .* weights do not fit"):
        Classifier(config(width=0.5), GridConfig(), start="mnist-rot-se2")
    resumed = Classifier.from_config({**Classifier(network, GridConfig()).hparams, "start": "no longer there"})
    assert resumed.network == network


def test_names_that_there_are_not(data_root):
    with pytest.raises(FileNotFoundError, match="did you mean 'mnist-rot-se2'"):
        models.load("mnist-rot-se")
    with pytest.raises(
        FileNotFoundError, match="are not published; `sepgconv fit --config first_galaxies/se2_separable_cpu`"
    ):
        models.load("first-galaxies-se2")
    assert models.weights() == ["first-galaxies-se2", "mnist-rot-se2"]


def test_rounding_changes_matrices_by_half_a_thousandth_and_nothing_else():
    """Variances of norms may be far below what half precision can tell from zero."""
    matrix, variance = torch.randn(50, 50), torch.full((3,), 1e-9)
    assert torch.equal(rounded(variance), variance)
    assert rounded(matrix).nbytes == matrix.nbytes // 2
    assert ((rounded(matrix).float() - matrix).abs() <= 2**-11 * matrix.abs() + 2**-25).all()
    assert not torch.equal(rounded(matrix).float(), matrix)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "served").mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield tmp_path / "served", f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_weights_elsewhere_are_fetched_once_and_checked(server, data_root, monkeypatch, same):
    folder, url = server
    content = weights.locate("mnist-rot-se2").read_bytes()
    file = "first-galaxies-se2.safetensors"
    (folder / file).write_bytes(content)

    def published(checksum: str) -> None:
        remote = Remote(file, f"sha256:{checksum}", (f"{url}/{file}",), (file,))
        monkeypatch.setitem(weights.ELSEWHERE, "first-galaxies-se2", weights.Elsewhere("a recipe", remote))

    published("0" * 64)
    with pytest.raises(DataUnavailable, match="hash"):
        models.load("first-galaxies-se2")
    assert not (data_root / "weights" / file).exists()
    published(hashlib.sha256(content).hexdigest())
    network = models.load("first-galaxies-se2")
    assert torch.equal(network.networks[0].state_dict()["19.bias"], same["19.bias"])
    (folder / file).unlink()
    models.load("first-galaxies-se2")


def test_only_weights_that_may_be_are_made_to_be_shipped(tmp_path, monkeypatch, shipped):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.safetensors").write_bytes(weights.locate("mnist-rot-se2").read_bytes())
    result = {
        "settings": {
            "data": {"name": "digits", "limit": None, "augment": {"rotate": True, "shift": 0}, "rotate_test": True},
            "model": dict(shipped.checkpoint["hyper_parameters"]),
        },
        "parameters": 454762,
        "epochs": 5,
        "steps": 350,
        "seed": 0,
        "commit": None,
        "metrics": {"test/error": 5.0},
    }
    (run / "result.json").write_text(json.dumps(result))
    card = make("mine", run, tmp_path).read_text(encoding="utf-8")
    assert "changed in training: rotate True |" in card
    made = load_trained(tmp_path / "mine.safetensors")
    assert made.classes == tuple("0123456789")
    for name, value in made.model.state_dict().items():  # matrices are rounded, variances and biases are not
        assert torch.equal(value, rounded(shipped.model.state_dict()[name]).to(value)), name
    result["settings"]["data"] |= {"name": "mnist-rot-selection", "train_on_valid": True}
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="tested on mnist-rot-selection: give its error on the test images"):
        make("mine", run, tmp_path)
    card = make("mine", run, tmp_path, test_error=6.125).read_text(encoding="utf-8")
    assert "`mnist-rot`, 12,000 turned images" in card
    assert "| test error | 6.12 %, every test image turned" in card
    assert "| error on the 8,000 images that choices are made on | 5.00 % |" in card
    monkeypatch.setattr("sepgconv.weights.make.LARGEST", 900_000)
    with pytest.raises(ValueError, match=r"must have at most 900,000 bytes, those of .* have 9\d\d,\d\d\d"):
        make("mine", run, tmp_path, test_error=6.125)
    result["settings"]["data"] = {"images": "abc"}
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="must be trained on one of digits, mnist-rot; got a folder"):
        make("mine", run, Path(tmp_path))
