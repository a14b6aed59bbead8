"""One run per directory, also where nothing but files is shared."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from sepgconv.training import fit, storage


class During(Callback):
    """Does something once, in the middle of a run."""

    def __init__(self, action) -> None:
        self.action = action

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if trainer.global_step == 3:
            self.action()


@pytest.mark.parametrize("every", [1, 100])
def test_a_second_run_in_the_directory_is_refused(tiny, monkeypatch, every):
    """Also where the first has not saved anything yet."""
    monkeypatch.setattr("sepgconv.training.lock.GRACE", 0.1, raising=False)
    refused = []

    def second() -> None:
        for ckpt_path in (None, "last"):
            with pytest.raises(ValueError, match="is in use by another run") as error:
                fit(*tiny(every=every, data={"seed": 1}), ckpt_path=ckpt_path)
            refused.append(str(error.value))

    trainer, classifier, data = tiny(callbacks=[During(second)], every=every)
    result = fit(trainer, classifier, data)
    assert len(refused) == 2
    assert f"process {os.getpid()} on {socket.gethostname()}, since 2" in refused[0]
    assert "choose another --output" in refused[0]
    assert result["settings"]["data"]["seed"] == 0
    assert list(Path(trainer.default_root_dir).glob("*.lock")) == []


def test_the_directory_is_free_after_an_error(tiny):
    def fail() -> None:
        raise InterruptedError

    run = tiny(callbacks=[During(fail)])
    with pytest.raises(InterruptedError):
        fit(*run)
    assert list(Path(run[0].default_root_dir).glob("*.lock")) == []
    fit(*tiny(), ckpt_path="last")


@pytest.fixture
def quick(monkeypatch):
    from sepgconv.training import lock

    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(lock, "PATIENCE", 0.5)
    monkeypatch.setattr(lock, "GRACE", 0.1)
    monkeypatch.setattr(lock, "POLL", 0.01)
    return lock


def holder(**changes) -> dict:
    from sepgconv.training import processes

    pid = os.getpid()
    start = {"host": socket.gethostname(), "pid": pid, "since": "2020-01-01", "place": processes.place()}
    return {**start, "started": processes.started(pid), **changes}


def write(folder: Path, head: dict, beat: int = 0) -> Path:
    path = folder / "run-theirs.lock"
    path.write_text(f"{json.dumps(head)}\n{beat:012}\n")
    return path


def test_a_dead_process_of_this_machine_is_replaced_at_once(tmp_path, quick, monkeypatch, caplog):
    monkeypatch.setattr(quick.time, "sleep", lambda _: pytest.fail("waited"))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    write(tmp_path, holder(pid=int(gone.stdout)))
    with caplog.at_level("INFO"), quick.held(tmp_path) as claim:
        assert list(tmp_path.iterdir()) == [claim.path]
    assert f"taking over from process {int(gone.stdout)} on " in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_now_is_a_dead_process(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(quick.time, "sleep", lambda _: pytest.fail("waited"))
    write(tmp_path, holder(pid=os.getppid(), started="1"))
    with quick.held(tmp_path):
        pass


def test_a_process_that_was_killed_and_not_waited_for_is_dead(tmp_path, quick):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    write(tmp_path, holder(pid=child, started=""))
    with quick.held(tmp_path):
        pass
    os.waitpid(child, 0)


def test_a_living_process_of_this_machine_is_not_replaced(tmp_path, quick):
    from sepgconv.training import processes

    parent = os.getppid()
    path = write(tmp_path, holder(pid=parent, started=processes.started(parent)))
    with pytest.raises(ValueError, match=f"process {parent} on "), quick.held(tmp_path):
        pass
    assert path.exists()


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"place": "another container"}], ids=str)
def test_a_silent_holder_elsewhere_is_replaced_and_a_beating_one_is_not(tmp_path, quick, elsewhere):
    """Its process number means nothing here, and neither do its clock nor the file's time."""
    path = write(tmp_path, holder(pid=1, **elsewhere))
    os.utime(path, (2**33, 2**33))
    with quick.held(tmp_path):
        pass
    path, ended = write(tmp_path, holder(pid=2**22 - 1, **elsewhere)), threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(0.01):
            count += 1
            with path.open("r+") as file:
                file.seek(len(json.dumps(holder(pid=2**22 - 1, **elsewhere))) + 1)
                file.write(f"{count:012}")

    os.utime(path, (0, 0))
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(ValueError, match="is in use by another run"), quick.held(tmp_path):
            pass
    finally:
        ended.set()
        heart.join()


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1]\n", b'{"pid": "x"}\n', b'{"pid": -1}\n'], ids=str)
def test_a_lock_that_says_nothing_is_replaced_after_a_while(tmp_path, quick, content):
    (tmp_path / "run-theirs.lock").write_bytes(content)
    with quick.held(tmp_path):
        pass


def test_of_many_that_start_at_once_one_goes_on(tmp_path, quick):
    """Threads stand for machines, beside a dead run of another one."""
    write(tmp_path, holder(host="elsewhere"))
    inside, most, done, gate = [], [], [], threading.Barrier(6)

    def start(number: int) -> None:
        gate.wait()
        try:
            with quick.held(tmp_path) as claim:
                inside.append(number)
                most.append(len(inside))
                threading.Event().wait(0.2)
                claim.check()
                inside.remove(number)
                done.append(number)
        except ValueError:
            pass

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert done
    assert list(tmp_path.iterdir()) == []


def test_one_that_appears_meanwhile_is_seen(tmp_path, quick, monkeypatch):
    """Another machine's file that comes between the look around and this run's own file."""
    announce = quick._announce

    def late(folder: Path):
        write(tmp_path, holder(pid=os.getppid(), started=""))
        return announce(folder)

    monkeypatch.setattr(quick, "_announce", late)
    with pytest.raises(ValueError, match="is in use by another run"), quick.held(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run-theirs.lock"]


def test_what_was_killed_while_it_started_is_cleared(tmp_path, quick):
    (tmp_path / ".run-abc.lock").write_text("half")
    with quick.held(tmp_path):
        assert len(list(tmp_path.iterdir())) == 1


def test_a_run_that_was_taken_over_stops_and_writes_nothing(tiny):
    run = tiny()
    output = Path(run[0].default_root_dir)

    def lose() -> None:
        next(output.glob("run-*.lock")).unlink()
        write(output, holder(host="elsewhere"))

    run[0].callbacks.insert(0, During(lose))
    with pytest.raises(OSError, match=r"was taken over by process \d+ on elsewhere.*writes nothing more"):
        fit(*run)
    assert storage.read(output / "checkpoints/last.ckpt")["global_step"] == 3
    assert [path.name for path in output.glob("*.lock")] == ["run-theirs.lock"]
    assert not (output / "result.json").exists()


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path, quick, monkeypatch):
    def full(_descriptor, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"), quick.held(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
