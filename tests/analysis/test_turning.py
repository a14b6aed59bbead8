"""The experiment on turned digits: its networks, what it keeps, and its table."""

import json

import pytest
import torch

import sepgconv as sg
from sepgconv.analysis import turning
from sepgconv.analysis.turning import NETWORKS, Parts, Run, as_markdown, build, draw, logits_as_markdown
from sepgconv.data import Split
from sepgconv.demo import KERNEL
from sepgconv.training import Images


def test_all_parts_and_no_part_are_the_models_of_the_package() -> None:
    images = torch.randn(4, 1, 28, 28)
    for name, antialias, kernel in (
        ("paper", False, sg.KernelConfig(layers=1)),
        ("antialias", True, sg.KernelConfig(layers=1)),
        ("better", True, KERNEL),
    ):
        net = build(NETWORKS[name], width=0.1, seed=0).net.eval()
        model = sg.models.resnet(sg.se2(8), width=0.1, antialias=antialias, kernel=kernel).eval()
        model.load_state_dict(net.state_dict())
        with torch.no_grad():
            assert torch.equal(net(images), model(images)), name


@pytest.mark.parametrize("name", NETWORKS)
def test_quarter_turns_are_exact_whatever_the_parts(name: str) -> None:
    net = build(NETWORKS[name], width=0.1, seed=0).net
    sg.testing.assert_equivariant(net, torch.randn(3, 1, 28, 28), grid=sg.se2(4))


def test_every_part_changes_the_network() -> None:
    images = torch.randn(2, 1, 28, 28)
    outputs = {}
    for part in ("", "pool", "last", "space", "peak", "cutoff"):
        net = build(Parts(**{part: True} if part else {}), width=0.1, seed=0).net.eval()
        with torch.no_grad():
            outputs[part] = net(images)
    plain = outputs.pop("")
    assert not [part for part, found in outputs.items() if torch.allclose(found, plain, atol=1e-4)]


def test_a_run_is_kept_and_goes_on(tmp_path, monkeypatch) -> None:
    data = Images("digits", limit=128, batch_size=64)
    test = data.data.test
    assert isinstance(test, Split)
    digits = Split(test.images[:50], test.labels[:50])
    settings = {"weights": tmp_path / "weights", "epochs": 1, "width": 0.1}
    Run("better", 0, tmp_path, **settings).test(data, digits, [0.0])
    monkeypatch.setattr(turning, "fit", lambda *args, **options: pytest.fail("it trains again"))
    Run("better", 0, tmp_path, **settings).test(data, digits, [0.0, 15.0, 105.0, None])
    found = json.loads((tmp_path / "better-0.json").read_text())
    assert set(found["errors"]) == {"0", "15", "105", "random"}
    assert found["errors"]["15"] == found["errors"]["105"]
    assert found["trained logits"]["90.0"] < 1e-5 < found["trained logits"]["45.0"]
    assert found["commit"] is None or len(found["commit"]) >= 40
    Run("better-peak", 0, tmp_path, **settings).test(data, digits, [0.0])
    with pytest.raises(ValueError, match=r"another run: .*'epochs': 1.* not .*'epochs': 2"):
        Run("better", 0, tmp_path, **{**settings, "epochs": 2})
    with pytest.raises(ValueError, match="peak takes the weights of paper: train that first"):
        Run("peak", 0, tmp_path, **settings).test(data, digits, [0.0])


def test_bad_names() -> None:
    with pytest.raises(ValueError, match=r"network must be one of paper, .*; got 'best'"):
        turning.main(["--networks", "best"])


def test_the_table_has_means_and_deviations_of_seeds_that_are_complete(tmp_path) -> None:
    for name, seed, errors in (
        ("paper", 0, {"0": 3.0, "45": 8.0}),
        ("paper", 1, {"0": 4.0, "45": 10.0}),
        ("paper", 2, {"0": 5.0}),
        ("better", 0, {"0": 2.0, "45": 2.5}),
    ):
        (tmp_path / f"{name}-{seed}.json").write_text(json.dumps({"errors": errors}))
    assert as_markdown(tmp_path, [0.0, 45.0]).splitlines() == [
        "| network | seeds | 0° | 45° |",
        "|---|---|---|---|",
        "| the paper's | 2 | 3.50 ± 0.71 | 9.00 ± 1.41 |",
        "| and `cutoff=0.4` | 1 | 2.00 | 2.50 |",
    ]


def test_changes_of_logits_are_means_over_seeds(tmp_path) -> None:
    for seed, change in ((0, 0.5), (1, 0.7)):
        logits = {str(turn): change for turn in turning.TURNS}
        (tmp_path / f"paper-{seed}.json").write_text(json.dumps({"trained logits": logits}))
    assert logits_as_markdown(tmp_path).splitlines() == [
        "| network | | 10° | 22.5° | 45° | 90° |",
        "|---|---|---|---|---|---|",
        "| the paper's | trained | 0.60 | 0.60 | 0.60 | 0.60 |",
    ]


def test_the_picture_needs_results(tmp_path) -> None:
    with pytest.raises(ValueError, match="no result of paper"):
        draw(tmp_path, tmp_path / "picture.png")
    for name in ("paper", "better"):
        errors = {f"{angle:g}": 3.0 for angle in turning.ANGLES}
        (tmp_path / f"{name}-0.json").write_text(json.dumps({"errors": errors}))
    draw(tmp_path, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
