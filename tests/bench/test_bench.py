"""The benchmark measures what it says, and reports it truly."""

import json
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import sepgconv as sg
from sepgconv import cli
from sepgconv.bench import measure as measuring
from sepgconv.bench import networks, report
from sepgconv.bench.cases import CASES, ESCNN, PLAIN, QUICK, Case, choose
from sepgconv.bench.command import find_escnn
from sepgconv.bench.measure import Measurement, Settings, Worker, WorkerError, measure
from sepgconv.bench.report import Spread, ratio

TINY = Settings(rounds=2, warmup=0, batch=2, width=0.05, threads=1)


def made_up(case: Case, factor: float) -> Measurement:
    m = Measurement(case, parameters=10, multiply_adds=10**7, memory={"train": 2**31, "train_untuned": 2**30})
    for phase in m.seconds:
        m.reference[phase] = [0.1, 0.2, 0.4]
        m.seconds[phase] = [factor * value for value in m.reference[phase]]
    return m


def test_cases_cover_what_the_benchmark_is_about() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {c.counts for c in CASES if (c.group, c.factorisation) == ("se2", "separable")} == {(4,), (8,), (16,), (32,)}
    on_se2 = {case.factorisation for case in CASES if (case.group, case.counts) == ("se2", (8,))}
    assert on_se2 == set(sg.FACTORISATIONS) - {"h_separable"}  # which is for products of groups
    expected = {"scale2-8-separable", "sim2-4x4-h_separable", "sim2-8x8-h_separable", "sim2-8x8-h_separable-recompute"}
    assert expected <= set(names)
    assert set(QUICK) <= set(names)


def test_choose() -> None:
    assert [case.name for case in choose(["sim2-4x4*", "se2-4-*"])] == [
        "se2-4-separable",
        "sim2-4x4-separable",
        "sim2-4x4-h_separable",
    ]
    assert choose(["plain"]) == []
    assert choose(["*"]) == list(CASES)
    with pytest.raises(ValueError, match=r"only must fit one of plain, se2-4-separable.*; got 'so2-\*'"):
        choose(["so2-*"])


def test_the_plain_cnn_is_the_same_architecture_without_groups() -> None:
    """Layer by layer: kernel sizes, channels, strides and paddings of the paper's ResNet on the trivial group."""
    plain = networks.build(asdict(PLAIN), 1.0)
    ours = sg.models.resnet(sg.translation2(), factorisation="nonseparable")
    stock = [m for m in plain.modules() if isinstance(m, nn.Conv2d)]
    group = [m for m in ours.modules() if isinstance(m, sg.LiftingConv | sg.GroupConv)]
    for a, b in zip(stock, group, strict=True):
        assert (a.in_channels, a.out_channels, a.kernel_size[0]) == (b.in_channels, b.out_channels, b.kernel_size)
        assert (a.stride[0], a.padding[0], a.bias) == (b.stride, b.padding, b.bias)
    image = torch.zeros(2, 1, 28, 28)
    assert networks.multiply_adds(plain, image) == networks.multiply_adds(ours, image)
    ours_shapes = [m.shape for m in sg.profile(ours, image, repeats=1).layers if m.kind in ("GroupConv", "LiftingConv")]
    plain_shapes = [m.shape for m in sg.profile(plain, image, repeats=1).layers if m.kind == "Conv2d"]
    assert [(b, c, y, x) for b, c, _, y, x in ours_shapes] == plain_shapes
    weight = plain[3].body[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_every_case_can_be_built() -> None:
    for case in CASES:
        spec = json.loads(json.dumps(measuring.asdict(case)))
        model = networks.build(spec, 0.05)
        grids = {m for m in model.modules() if isinstance(m, sg.Grid)}
        assert {grid.size for grid in grids} == {case.size}


def test_a_worker_makes_steps_and_reports_its_failure() -> None:
    with Worker(choose(["se2-4-separable"])[0], TINY) as worker:
        ready = worker.ask()
        assert ready["parameters"] > 0
        assert ready["multiply_adds"] > 0
        for step in ("infer", "train"):
            answer = worker.ask(step)
            assert answer["seconds"] > 0
            assert 2**26 < answer["memory"] < 2**33
        with pytest.raises(WorkerError, match="KeyError: 'dance'"):
            worker.ask("dance")


def test_a_case_that_fails_does_not_stop_the_others(monkeypatch) -> None:
    """Workers are replaced: this is about turns, not about time."""
    log = []

    class Fake:
        def __init__(self, case: Case, settings: Settings, python: str | None) -> None:
            self.case, self.tuned = case, settings.tune

        def __enter__(self) -> "Fake":
            return self

        def __exit__(self, *error: object) -> None:
            log.append(f"end {self.case.name}")

        def ask(self, step: str | None = None) -> dict:
            if step is None:
                return {"parameters": 1, "multiply_adds": None}
            if not self.tuned:
                return {"seconds": 1.0, "memory": 3}
            log.append(f"{step} {self.case.name}")
            if self.case.factorisation == "gseparable" and step == "train":
                raise WorkerError("no memory")
            return {"seconds": 1.0 if self.case == PLAIN else 3.0, "memory": 5}

    monkeypatch.setattr(measuring, "Worker", Fake)
    cases = choose(["se2-4-separable", "se2-8-gseparable", "scale2-8-separable"])
    result = measure(cases, Settings(rounds=2, warmup=1, together=2, threads=1))
    assert [m.case for m in result] == [PLAIN, *cases]
    first = [entry for entry in log if entry.startswith("train")][:5]
    turn = ["train plain", "train se2-4-separable", "train se2-8-gseparable"]
    assert first == [*turn, *turn[:2]]  # in turns; the one that failed is not asked again
    assert result[2].error == "no memory"
    assert result[2].seconds["infer"] == [3.0, 3.0]
    assert ratio(result[2], "train") is None
    assert len(result[0].seconds["train"]) == 4  # the plain CNN takes part in both groups
    assert ratio(result[3], "train") == Spread(3.0, 3.0, 3.0)
    assert result[1].memory == {"infer": 5, "train": 5, "train_untuned": 3}
    assert result[2].memory == {"infer": 5}
    assert log.index("end se2-4-separable") < log.index("infer scale2-8-separable")  # its memory is free by then


def test_anti_aliased_networks_are_compared_with_one_that_pools_alike() -> None:
    (case,) = choose(["se2-8-separable-antialias"])
    plain = networks.build(asdict(case.plain), 0.1)
    ours = networks.build(asdict(case), 0.1)
    assert case.plain.label == "plain CNN, anti-aliased"
    assert case.plain != PLAIN == CASES[0].plain
    assert any(isinstance(layer, networks.LowPassed) for layer in plain.modules())
    assert any(isinstance(layer, sg.SpatialPool) and layer.antialias for layer in ours.modules())
    images = torch.randn(2, 1, 28, 28)
    assert plain(images).shape == ours(images).shape


def test_a_single_image_is_not_trained_on() -> None:
    """The norm of the classifier has no variance of one."""
    (plain,) = measure([], replace(TINY, batch=1, tune=True, untuned=True))
    assert plain.error is None
    assert len(plain.seconds["infer"]) == TINY.rounds
    assert plain.seconds["train"] == []
    assert "train_untuned" not in plain.memory


def test_beside_a_busy_process_there_is_one_until_the_end(monkeypatch) -> None:
    started = []

    class Watched(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def take_turns(measured, settings, pythons, say) -> None:
        assert [process.poll() for process in started] == [None]
        assert not settings.busy

    monkeypatch.setattr(measuring.subprocess, "Popen", Watched)
    monkeypatch.setattr(measuring, "_take_turns", take_turns)
    measure([], replace(TINY, busy=True, untuned=False))
    assert [process.poll() for process in started] == [-signal.SIGKILL]


def test_ratios_are_taken_round_by_round() -> None:
    m = Measurement(CASES[0])
    m.reference["train"], m.seconds["train"] = [1.0, 10.0, 1.0], [2.0, 20.0, 4.0]
    assert ratio(m, "train") == Spread(2.0, 2.0, 3.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0)
    values = [3.0, 1.0, 2.0, 7.0]
    assert Spread.of(values).median == statistics.median(values)


def test_json_keeps_everything_and_the_page_says_it(tmp_path: Path) -> None:
    broken = Measurement(CASES[7], error="killed")
    escnn = made_up(ESCNN, 60.0)
    escnn.multiply_adds = None
    measured = [made_up(PLAIN, 1.0), *(made_up(case, 2.0) for case in CASES[:2]), broken, escnn]
    environment = {
        "versions": {"torch": "1", "python": "2", "sepgconv": "3"},
        "commit": "abc",
        "hardware": {"cpu": "an abacus", "cores": 8},
    }
    plain = report.to_json(measured, Settings(threads=3), environment)
    paths = report.write(plain, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "benchmarks.json",
        "benchmarks.md",
        "images/bench.png",
    ]
    assert report.from_json(json.loads(paths[0].read_text())) == measured
    assert plain["results"][1]["summary"]["ratio_train"]["median"] == pytest.approx(2.0)
    text = paths[1].read_text()
    for part in (
        "an abacus, 3 of 8 cores",
        "commit abc",
        "batch 64",
        "SE(2) 8, separable",
        "0.400 s",
        "1.00 GB",
        "2.00 GB",
    ):
        assert part in text
    assert "SE(2) 8, nonseparable: killed" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "- "))) <= 120
    with Image.open(paths[2]) as picture:
        assert picture.size[0] > 1000


def test_the_command_measures_and_redraws(tmp_path: Path, capsys) -> None:
    arguments = ["bench", "--quick", "--only", "se2-4-separable", "--rounds", "2", "--threads", "1"]
    assert cli.main([*arguments, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "SE(2) 4, separable" in shown
    plain = json.loads((tmp_path / "benchmarks.json").read_text())
    assert plain["settings"]["threads"] == 1
    assert plain["hardware"]["cpu"]
    assert {"torch", "python"} <= set(plain["versions"])
    assert [entry["name"] for entry in plain["results"]] == ["plain", "se2-4-separable"]
    assert all(len(entry["seconds"]["train"]) == 2 for entry in plain["results"])
    assert plain["results"][1]["summary"]["ratio_train"]["median"] > 0
    again = tmp_path / "again"
    redraw = ["bench", "--redraw", str(tmp_path / "benchmarks.json"), "--output", str(again)]
    assert cli.main(redraw) == 0
    assert (again / "benchmarks.md").read_text() == (tmp_path / "benchmarks.md").read_text()


def test_without_escnn_the_message_says_what_to_do(tmp_path: Path, capsys) -> None:
    output = ["--output", str(tmp_path)]
    assert cli.main(["bench", "--quick", "--against", "escnn", *output]) == 1
    assert "--escnn-python ENV/bin/python" in capsys.readouterr().err
    assert cli.main(["bench", "--quick", "--against", "escnn", "--escnn-python", sys.executable, *output]) == 1
    assert "No module named 'escnn'" in capsys.readouterr().err
    assert cli.main(["bench", "--quick", "--escnn-python", sys.executable, *output]) == 1
    assert "is for --against escnn" in capsys.readouterr().err
    with pytest.raises(ValueError, match="escnn-python must be a Python interpreter, got '/nowhere/python'"):
        find_escnn("/nowhere/python")


def test_bad_settings(tmp_path: Path, capsys) -> None:
    assert cli.main(["bench", "--quick", "--rounds", "0", "--output", str(tmp_path)]) == 1
    assert "rounds must be at least 1, got 0" in capsys.readouterr().err
    assert cli.main(["bench", "--redraw", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["file", "file/below", "folder"])
def test_an_output_that_cannot_be_written_is_found_before_measuring(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr("sepgconv.bench.command.measure", lambda *args: pytest.fail("it measures"))
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "benchmarks.md").mkdir(parents=True)
    assert cli.main(["bench", "--quick", "--output", str(tmp_path / output)]) == 1
    assert "output must be a directory to write to" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"results": [{}]}', "\x00"])
def test_what_cannot_be_redrawn_is_named(tmp_path: Path, capsys, content: str) -> None:
    (tmp_path / "old.json").write_text(content)
    assert cli.main(["bench", "--redraw", str(tmp_path / "old.json"), "--output", str(tmp_path)]) == 1
    assert f"redraw must be a benchmarks.json of this command, got '{tmp_path / 'old.json'}'" in capsys.readouterr().err
