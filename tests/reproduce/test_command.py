import sys
from pathlib import Path

import pytest

from sepgconv.cli import main
from sepgconv.reproduce import command, executors, find, runs
from sepgconv.reproduce.experiment import ORDER
from sepgconv.reproduce.store import Store


def test_list(capsys) -> None:
    assert main(["reproduce", "list"]) == 0
    printed = capsys.readouterr().out
    for name in ORDER:
        assert name in printed
    assert "smoke 6, cpu 12, long 20, paper 120" in " ".join(printed.split())


def test_only_some_runs() -> None:
    sweep = find("resolution").runs("long")
    chosen = command.only(sweep, ["images=2000", "seed=3"])
    assert [(run.axes["factorisation"], run.axes["images"], run.seed) for run in chosen] == [
        ("separable", 2000, 3),
        ("nonseparable", 2000, 3),
    ]
    assert command.only(sweep, []) == sweep
    # Settings that lack an axis have no value there.
    assert len(command.only(sweep, ["images=None"])) == 10


def test_only_is_what_is_run(tmp_path: Path, capsys) -> None:
    arguments = ["reproduce", "parameters", "--output", str(tmp_path), "--processes", "0"]
    assert main([*arguments, "--only", "network=Separable"]) == 0
    assert "1 runs done, 0 were there before, 0 failed" in capsys.readouterr().err.splitlines()
    (run,) = (tmp_path / "smoke" / "parameters" / "runs").glob("*.json")
    assert run.name.startswith("network=Separable-seed0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resolutoin"], "did you mean 'resolution'?"),
        (["resolution", "--budget", "gpu"], "budget must be one of smoke, cpu, long, paper; got 'gpu'"),
        (["parameters", "--budget", "long"], "budget 'long' is for sampling, resolution,"),
        (["resolution", "--executor", "ray", "--processes", "2"], "--processes is for --executor local"),
        (["resolution", "--processes", "4096"], "cores of this machine, got 4096"),
        (["resolution", "--only", "4"], "--only takes AXIS=VALUE, such as rotations=4; got '4'"),
        (["resolution", "--only", "angles=4"], "--only knows the axes seed, factorisation, rotations; got 'angles'"),
        (["resolution", "--only", "rotations=3"], "--only rotations= must be one of 1, 2, 4; got '3'"),
    ],
)
def test_bad_input_is_a_message(arguments: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert main(["reproduce", *arguments, "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_missing_data_says_which_command_gets_it(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sepgconv.data.places.user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr("sepgconv.data.download.ATTEMPTS", 1)
    monkeypatch.setattr("sepgconv.data.files.fetch", _offline)
    (tmp_path / "data").mkdir()
    where = ["--output", str(tmp_path / "out"), "--root", str(tmp_path / "data")]
    assert main(["reproduce", "vision", "--budget", "paper", *where]) == 1
    printed = capsys.readouterr().err
    assert "sepgconv data prepare cifar10" in printed
    assert not list((tmp_path / "out").glob("*/*/runs/*"))


def _offline(*arguments, **keywords):
    from sepgconv.data import DataUnavailable

    raise DataUnavailable("no network")


def test_a_failed_run_gives_a_nonzero_exit_code(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find("parameters").runs("smoke")
    work = runs.execute

    def fail_one(run, *arguments):
        if run.name == chosen[1].name:
            raise MemoryError("too wide")
        return work(run, *arguments)

    monkeypatch.setattr(runs, "execute", fail_one)
    arguments = ["reproduce", "parameters", "--output", str(tmp_path), "--processes", "0"]
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert f"failed: {chosen[1]}: MemoryError: too wide" in printed
    assert "7 runs done, 0 were there before, 1 failed" in printed.splitlines()
    assert "**1 run of 8 missing.**" in (tmp_path / "smoke" / "parameters" / "table.md").read_text()
    monkeypatch.setattr(runs, "execute", work)
    assert main(arguments) == 0
    assert "1 runs done, 7 were there before, 0 failed" in capsys.readouterr().err.splitlines()


def test_the_page_is_made_from_results(tmp_path: Path, capsys) -> None:
    where = ["--output", str(tmp_path / "out"), "--docs", str(tmp_path / "docs" / "page.md")]
    assert main(["reproduce", "report", *where]) == 1
    assert "holds no results" in capsys.readouterr().err
    assert main(["reproduce", "parameters", "--processes", "0", "--output", str(tmp_path / "out")]) == 0
    notes = Store(tmp_path / "out").home("smoke", "parameters") / command.NOTES
    notes.write_text("The counts agree to the last digit given.\n")
    assert main(["reproduce", "report", *where]) == 0
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "| Separable | 803,000 | 803,242 |" in page
    assert "The counts agree to the last digit given." in page
    assert (tmp_path / "docs" / "images" / "page" / "parameters.png").exists()


def test_without_ray_the_message_says_how_to_get_it(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["reproduce", "parameters", "--executor", "ray", "--output", str(tmp_path)]) == 1
    assert "pip install 'sepgconv[cluster]'" in capsys.readouterr().err


def test_help(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    assert "--budget" in capsys.readouterr().out
    assert executors.local().threads >= 1


@pytest.mark.parametrize("option", ["--output", "--docs"])
def test_a_file_in_place_of_a_folder_is_found_before_any_run(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(command, "sweep", lambda *args, **options: pytest.fail("it runs"))
    (tmp_path / "file").write_text("")
    places = {"--output": str(tmp_path / "results"), option: str(tmp_path / "file" / "below")}
    assert main(["reproduce", "resolution", *(part for pair in places.items() for part in pair)]) == 1
    assert f"{option.removeprefix('--')} must be a directory" in capsys.readouterr().err
