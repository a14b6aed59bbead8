import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from sweep_jobs import result

from sepgconv.reproduce import Run
from sepgconv.reproduce.store import MARKER, Store


def test_results_come_back(tmp_path: Path, runs: list[Run]) -> None:
    store = Store(tmp_path)
    assert store.read(runs[0]) is None
    store.write(runs[0], result(runs[0], 2.5))
    found = store.read(runs[0])
    assert found is not None
    assert found["rows"][0]["metrics"]["test_error"] == 2.5
    assert store.read(runs[1]) is None


def test_a_damaged_result_is_run_anew(tmp_path: Path, runs: list[Run]) -> None:
    store = Store(tmp_path)
    store.write(runs[0], result(runs[0]))
    path = store.path(runs[0])
    path.write_text(path.read_text()[:40])
    with pytest.warns(UserWarning, match="damaged and is run anew"):
        assert store.read(runs[0]) is None
    assert path.with_suffix(".damaged").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.read(runs[0]) is None


def test_another_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    with store.locked():
        pass
    marker = tmp_path / "results" / MARKER
    found = json.loads(marker.read_text())
    marker.write_text(json.dumps({**found, "sepgconv": "0.0.1"}))
    with (
        pytest.raises(ValueError, match=r"another version, sepgconv 0\.0\.1 .* choose another --output"),
        store.locked(),
    ):
        pass
    marker.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        store.check_version()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="must be empty or hold results"), Store(tmp_path).locked():
        pass


def test_two_sweeps_cannot_share_a_directory(tmp_path: Path) -> None:
    """A real second process holds the directory; when it is killed, the lock is free."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, time; from sepgconv.reproduce.store import Store\n"
            "with Store(pathlib.Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(600)",
            str(tmp_path / "results"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        store = Store(tmp_path / "results")
        with pytest.raises(ValueError, match=f"in use by another sweep .process {holder.pid} on"), store.locked():
            pass
    finally:
        holder.kill()
        holder.wait()
    with store.locked():
        pass


def test_a_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir(mode=0o555)
    with pytest.raises(OSError, match="can be written to"), Store(folder).locked():
        pass
