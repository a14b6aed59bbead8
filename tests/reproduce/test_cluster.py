"""A real Ray cluster of two nodes on this machine, one of which is killed in the middle of a sweep."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from sweep_jobs import Note, Trouble

from sepgconv.reproduce import Run
from sepgconv.reproduce.cluster import OnRay
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.sweep import sweep

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    from ray.cluster_utils import Cluster

    # The nodes' workers must find this checkout and the jobs of these tests.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    small = {"object_store_memory": 80 * 2**20}

    def start() -> Cluster:
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **small})
        try:
            started.second = started.add_node(num_cpus=1, **small)
            started.wait_for_nodes()
        except Exception:
            started.shutdown()
            raise
        return started

    try:
        found = start()
    except Exception:  # Ray's own time limits are short for a machine that is busy with other tests
        found = start()
    try:
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def entries(folder: Path, what: str) -> list[tuple[str, str]]:
    """Run and node of every note."""
    return [
        (path.name.removeprefix(f"{what}-"), line.split()[0])
        for path in folder.glob(f"{what}-*")
        for line in path.read_text().splitlines()
    ]


def test_a_node_is_lost_and_every_run_is_finished_once(cluster, tmp_path: Path, runs: list[Run]) -> None:
    store, folder = Store(tmp_path / "results"), tmp_path / "notes"
    folder.mkdir()
    job = Note(str(folder), seconds=0.3, doomed=cluster.second.node_id)
    killed: list[str] = []

    def kill_when_it_works() -> None:
        """Kills the second node, which is at a run that never ends there, when the first has ended two."""
        for _ in range(2400):
            if len(entries(folder, "end")) >= 2:
                killed.extend(job.begun_at(job.doomed))
                cluster.remove_node(cluster.second, allow_graceful=False)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_when_it_works)
    killer.start()
    written: list[str] = []
    keep = store.write
    store.write = lambda run, result: (written.append(run.name), keep(run, result))[1]
    with store.locked():
        report = sweep(
            runs,
            store,
            OnRay(cluster.address),
            job=job,
            console=Console(file=(tmp_path / "log").open("w")),
        )
    killer.join()
    assert killed, "the second node was not killed while it was at a run"
    assert (report.done, report.failed) == (len(runs), [])
    assert sorted(written) == sorted(run.name for run in runs)
    ends = [name for name, _ in entries(folder, "end")]
    assert sorted(ends) == sorted(run.name for run in runs)
    for name in killed:  # begun there in vain, then on the node that is left
        assert [node == job.doomed for run, node in entries(folder, "begin") if run == name] == [True, False]
    again = sweep(runs, store, OnRay(cluster.address), job=Note(str(folder)), console=Console(quiet=True))
    assert (again.there, again.done) == (len(runs), 0)


def test_a_run_that_fails_on_the_cluster_is_named(cluster, tmp_path: Path, runs: list[Run]) -> None:
    job = Trouble(raises=runs[1].name, dies="")
    report = sweep(runs[:3], Store(tmp_path), OnRay(cluster.address), job=job, console=Console(quiet=True))
    assert report.done == 2
    assert [(run.name, failure.reason) for run, failure in report.failed] == [
        (runs[1].name, "ValueError: the digits are upside down")
    ]


def test_no_cluster_is_a_clear_error(tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    # Ray also looks for processes of any cluster on this machine, and a test beside this one may have started some.
    monkeypatch.setattr("ray._private.services._find_address_from_flag", lambda _: set())
    with pytest.raises(ValueError, match=r"no Ray cluster at address 'auto'.*ray start --head"):
        list(OnRay("auto")(Note(str(tmp_path)), runs[:1]))
