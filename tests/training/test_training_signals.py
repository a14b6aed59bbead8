"""A run that is told to end says how it ended."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from training_helpers import RECIPE, assert_same

from sepgconv import cli
from sepgconv.training import Classifier, fit, run, storage


@pytest.fixture(autouse=True)
def _as_a_process_begins() -> Iterator[None]:
    """As in a terminal: Ray leaves a handler behind in the process that uses it, and a shell's `&` ignores SIGINT."""
    ordinary = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in ordinary.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals, step: int, monkeypatch) -> None:
    """Has a signal come in the middle of a step."""
    before = Classifier.training_step

    def interrupted(self, batch, batch_idx):
        if self.trainer.global_step == step:
            os.kill(os.getpid(), number)
        return before(self, batch, batch_idx)

    monkeypatch.setattr(Classifier, "training_step", interrupted)


@pytest.mark.parametrize(("number", "kept"), [(signal.SIGTERM, 5), (signal.SIGINT, 4)])
def test_the_exit_status_is_that_of_the_signal(tmp_path, monkeypatch, caplog, number, kept):
    arguments = ["fit", *RECIPE, "--data.batch_size=8", "--checkpoint.every_n_steps=4", f"--output={tmp_path}"]
    before = signal.getsignal(number)
    with monkeypatch.context() as patch, caplog.at_level("INFO"):
        send(number, 4, patch)
        assert cli.main(arguments) == 128 + number
    assert signal.getsignal(number) is before
    assert f"stopped by {number.name}: the checkpoint of step {kept} is kept" in caplog.text
    assert "go on with the same command and --ckpt_path last" in caplog.text
    assert storage.read(tmp_path / "checkpoints/last.ckpt")["global_step"] == kept
    assert not (tmp_path / "result.json").exists()
    assert list(tmp_path.glob("*.lock")) == []


def test_nothing_to_go_on_with_is_said(tiny, monkeypatch, caplog):
    send(signal.SIGINT, 0, monkeypatch)
    with caplog.at_level("INFO"), pytest.raises(SystemExit) as stopped:
        fit(*tiny())
    assert stopped.value.code == 130
    assert "nothing was saved yet; begin again" in caplog.text


def test_a_run_that_was_told_to_end_goes_on_exactly(tiny, monkeypatch):
    monkeypatch.setattr(run, "draw_curves", lambda *_: None)
    expected = run.fit(*tiny("whole", every=100))
    for step in (1, 4, 9):  # within an epoch, at its last batch, at the last of the run
        with monkeypatch.context() as patch:
            send(signal.SIGTERM, step, patch)
            with pytest.raises(SystemExit) as stopped:
                run.fit(*tiny(f"part{step}", every=100))
            assert stopped.value.code == 143
        assert_same(run.fit(*tiny(f"part{step}", every=100), ckpt_path="last")["metrics"], expected["metrics"])


def test_a_signal_after_training_ends_the_run_too(tiny, monkeypatch):
    """In a process of its own: without a handler it would be the tests' end."""
    trainer, classifier, data = tiny(max_epochs=1)
    monkeypatch.setattr(run, "draw_curves", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    child = os.fork()
    if child == 0:
        code = 99
        try:
            fit(trainer, classifier, data)
        except SystemExit as stopped:
            code = stopped.code
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 143
    output = Path(trainer.default_root_dir)
    assert list(output.glob("*.lock")) == []
    assert not (output / "result.json").exists()


def test_evaluation_too(tmp_path, monkeypatch, capsys):
    assert cli.main(["fit", *RECIPE, f"--output={tmp_path}"]) == 0
    monkeypatch.setattr(Classifier, "test_step", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert cli.main(["test", f"--config={tmp_path / 'config.yaml'}"]) == 143
    assert "stopped by SIGTERM" in capsys.readouterr().err


def test_slurm_still_queues_the_job_again(tiny, monkeypatch):
    """Lightning's handler for the requeue signal is in place while a run trains, and its checkpoint can be read."""
    asked = []
    monkeypatch.setattr(
        "lightning.pytorch.trainer.connectors.signal_connector.call", lambda cmd: asked.append(cmd) or 0
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    send(signal.SIGUSR1, 4, monkeypatch)
    trainer, classifier, data = tiny(max_epochs=1, plugins=[SLURMEnvironment()])
    fit(trainer, classifier, data)
    assert asked == [["scontrol", "requeue", "7"]]
    assert storage.read(Path(trainer.default_root_dir) / "hpc_ckpt_1.ckpt")["global_step"] == 4
