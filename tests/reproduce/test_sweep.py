import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sweep_jobs import Note, Trouble, result

from sepgconv.reproduce import Run, find
from sepgconv.reproduce.executors import InProcess, Processes, local
from sepgconv.reproduce.runs import Job
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.sweep import batches, clock, cost, sweep

EXECUTORS = {"in process": InProcess(), "processes": Processes(2)}


@pytest.fixture(params=EXECUTORS.values(), ids=EXECUTORS)
def executor(request):
    return request.param


def notes(folder: Path, what: str, run: Run) -> int:
    path = folder / f"{what}-{run.name}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_only_what_is_missing_is_done(tmp_path: Path, runs: list[Run], executor) -> None:
    store = Store(tmp_path / "results")
    for run in runs[:3]:
        store.write(run, result(run))
    (tmp_path / "notes").mkdir()
    console = Console(file=(tmp_path / "log").open("w"))
    report = sweep(runs, store, executor, job=Note(str(tmp_path / "notes")), console=console)
    assert (report.there, report.done, report.failed) == (3, 5, [])
    assert [notes(tmp_path / "notes", "end", run) for run in runs] == [0] * 3 + [1] * 5
    again = sweep(runs, store, executor, job=Note(str(tmp_path / "notes")), console=console)
    assert (again.there, again.done) == (8, 0)
    log = (tmp_path / "log").read_text()
    assert "3 of 8 runs are finished already" in log
    assert "8/8" in log
    assert "left)" in log


def test_what_another_experiment_has_run_is_taken_from_there(tmp_path: Path) -> None:
    store, console = Store(tmp_path / "results"), Console(file=(tmp_path / "log").open("w"))
    theirs, ours = find("resolution").runs("long"), find("sampling").runs("long")
    same = {run.name.rsplit("-", 1)[-1]: run for run in theirs if run.axes["factorisation"] == "separable"}
    for value, run in enumerate(theirs):
        store.write(run, {**result(run, float(value)), "experiment": run.experiment})
    report = sweep(ours, store, InProcess(), job=Note(str(tmp_path)), console=console)
    assert (report.there, report.done) == (5, 25)
    for run in ours:
        shared = run.axes == {"sampling": "random", "rotations": 4}
        found, origin = store.read(run), same.get(run.name.rsplit("-", 1)[-1])
        assert found is not None
        assert (notes(tmp_path, "end", run), origin is not None) == (not shared, shared)
        if origin is not None:
            assert (found["axes"], found["experiment"], found["taken_from"]) == (run.axes, "sampling", "resolution")
            assert found["rows"][0]["metrics"]["test_error"] == theirs.index(origin)


def test_a_measured_time_is_not_taken_from_elsewhere(tmp_path: Path) -> None:
    store, console = Store(tmp_path / "results"), Console(file=(tmp_path / "log").open("w"))
    (run, *_) = find("train-time").runs("smoke")
    store.write(replace(run, experiment="resolution"), {**result(run), "experiment": "resolution"})
    report = sweep([run], store, InProcess(), job=Note(str(tmp_path)), console=console)
    assert (report.there, report.done) == (0, 1)


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path: Path, runs: list[Run]) -> None:
    store, console = Store(tmp_path / "results"), Console(file=(tmp_path / "log").open("w"))
    job = Trouble(raises=runs[1].name, dies=runs[4].name)
    report = sweep(runs, store, Processes(2), job=job, console=console)
    assert report.done == 6
    failed = {run.name: failure.reason for run, failure in report.failed}
    assert failed[runs[1].name] == "ValueError: the digits are upside down"
    assert "signal 9" in failed[runs[4].name]
    assert "Traceback" in store.failure(runs[1]).read_text()
    assert [store.read(run) is not None for run in runs] == [n not in (1, 4) for n in range(8)]
    report = sweep(runs, store, InProcess(), job=Note(str(tmp_path)), console=console)
    assert (report.there, report.done) == (6, 2)
    assert not store.failure(runs[1]).exists()


def test_the_longest_runs_come_first() -> None:
    first, *_, last = sorted(find("resolution").runs("cpu"), key=cost, reverse=True)
    assert first.axes == {"factorisation": "nonseparable", "rotations": 8}
    assert last.axes["rotations"] == 1


def test_checkpoints_of_other_sweeps_are_kept(tmp_path: Path, runs: list[Run]) -> None:
    kept = tmp_path / "unfinished" / "sampling" / "a run of another budget"
    kept.mkdir(parents=True)
    sweep(runs[:1], Store(tmp_path), InProcess(), job=Note(str(tmp_path)), console=Console(quiet=True))
    assert kept.exists()


SCRIPT = """
import sys
from pathlib import Path
from sweep_jobs import Note
from sepgconv.reproduce import find
from sepgconv.reproduce.executors import Processes
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.sweep import sweep

if __name__ == "__main__":
    store = Store(Path(sys.argv[1]) / "results")
    with store.locked():
        sweep(find("resolution").runs("cpu")[:8], store, Processes(2), job=Note(sys.argv[1], 0.4))
"""


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path, runs: list[Run]) -> None:
    """The sweep's process is killed; its workers end with it, and the next sweep does what is missing, no more."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    store = Store(tmp_path / "results")
    deadline = time.monotonic() + 120
    while sum(store.path(run).exists() for run in runs) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = [run.name for run in runs if store.path(run).exists()]
    assert 3 <= len(finished) < 8
    time.sleep(1.0)  # workers that lived on would end their runs within this time
    begun = {run.name: notes(tmp_path, "begin", run) for run in runs}
    assert sum(begun.values()) <= len(finished) + 2
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert "8/8" in done.stderr
    for run in runs:
        assert store.read(run) is not None
        assert notes(tmp_path, "begin", run) == begun[run.name] + (run.name not in finished)


def test_time_is_measured_alone(runs: list[Run]) -> None:
    timed = find("train-time").runs("smoke")
    job = Job("scratch", threads=1)
    (shared, where, work), (alone, single, wide) = batches([*timed, *runs], Processes(2, 1), job)
    assert (shared, where, work) == (runs, Processes(2, 1), job)
    assert (alone, single, wide) == (timed, Processes(1, 2), Job("scratch", threads=2))
    untimed = find("factorisations").runs("long")  # an experiment that is timed at other budgets
    assert batches(untimed, Processes(2, 1), job) == [(untimed, Processes(2, 1), job)]


def test_threads_times_processes_fit_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    found = local()
    assert isinstance(found, Processes)
    assert found.processes * found.threads <= cores
    assert local(1).threads == cores
    assert isinstance(local(0), InProcess)
    with pytest.raises(ValueError, match=f"the {cores} cores .* got {cores + 1} × 1"):
        local(cores + 1, 1)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        local(threads=0)


def test_clock() -> None:
    assert [clock(s) for s in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]
