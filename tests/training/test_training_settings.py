"""A run is resumed with its own settings; what may change is a list."""

import inspect
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import OneCycleLR
from training_helpers import GRID, NETWORK, RECIPE, assert_same, make_run

from sepgconv import cli
from sepgconv.training import Checkpoints, Classifier, GridConfig, OptimiserConfig, fit, storage


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> Path:
    """All but the end of a run through the command line."""
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("settings") / "run"
    assert cli.main(["fit", *RECIPE, f"--output={output}"]) == 0
    (output / "result.json").unlink()
    return output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--model.optimiser.lr=0.5", "--model.grid.rotations=16"],
            ["model.optimiser.lr was None, is 0.5", "model.grid.rotations was 4, is 16"],
        ),
        (["--model.label_smoothing=0.1"], ["model.label_smoothing was 0.0, is 0.1"]),
        (["--model.network.dropout=0.5"], ["model.network.dropout was 1.0, is 0.5"]),
        (["--seed_everything=3"], ["model.seed was 0, is 3", "data.seed was 0, is 3"]),
        (["--data.augment.shift=2"], ["data.augment.shift was 0, is 2"]),
        (["--data.train_on_valid=true", "--checkpoint.monitor=last"], ["data.train_on_valid was False, is True"]),
        (["--trainer.precision=bf16-mixed"], ["trainer.precision was '32-true', is 'bf16-mixed'"]),
        (["--trainer.accumulate_grad_batches=2"], ["trainer.accumulate_grad_batches was 1, is 2"]),
        (["--trainer.gradient_clip_val=1"], ["trainer.gradient_clip_val was None, is 1"]),
        (["--checkpoint.monitor=val/loss"], ["checkpoint.monitor was 'val/error', is 'val/loss'"]),
    ],
    ids=str,
)
def test_other_settings_are_an_error_that_lists_them(unfinished, capsys, options, said):
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    assert cli.main(["fit", *RECIPE, *options, f"--output={unfinished}", "--ckpt_path=last"]) == 1
    shown = capsys.readouterr().err
    assert "a run must be resumed with the settings it began with" in shown
    for difference in said:
        assert difference in shown
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


def test_what_may_change_may(unfinished, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(unfinished, output)
    options = ["--trainer.max_epochs=2", "--checkpoint.every_n_steps=1", "--trainer.log_every_n_steps=1"]
    options += ["--model.channels_last=true", "--data.rotate_test=true", "--trainer.logger=false"]
    assert cli.main(["fit", *RECIPE, *options, f"--output={output}", "--ckpt_path=last"]) == 0
    assert (output / "result.json").exists()


def test_every_setting_of_the_trainer_is_on_one_of_the_lists():
    from sepgconv.training.settings import MAY_CHANGE, STAY

    known = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert not set(STAY) & {key.removeprefix("trainer.") for key in MAY_CHANGE}
    assert {key for key in known if key not in STAY and f"trainer.{key}" not in MAY_CHANGE} == set()


@pytest.mark.parametrize("where", ["last", "file"])
def test_from_python_too(tmp_path, where):
    run = make_run(tmp_path, max_epochs=1)
    fit(*run, draw=False)
    trainer, _, data = make_run(tmp_path, "run" if where == "last" else "other", max_epochs=2)
    other = Classifier(NETWORK, GridConfig(rotations=8), OptimiserConfig(lr=0.5))
    path = "last" if where == "last" else str(Checkpoints.folder(run[0]) / "last.ckpt")
    with pytest.raises(ValueError, match=r"model\.grid\.rotations was 4, is 8; model\.optimiser\.lr was None, is 0\.5"):
        fit(trainer, other, data, path)


def test_the_best_weights_of_other_settings_are_not_replaced(tmp_path):
    """A kill between the first best checkpoint and the first last one leaves the best one alone."""
    run = make_run(tmp_path, max_epochs=1)
    fit(*run, draw=False)
    output = Path(run[0].default_root_dir)
    for path in (output / "result.json", *Checkpoints.folder(run[0]).glob("[lp]*")):
        path.unlink()
    trainer, _, data = make_run(tmp_path, max_epochs=1)
    with pytest.raises(ValueError, match=r"model\.optimiser\.lr was None, is 0\.5"):
        fit(trainer, Classifier(NETWORK, GRID, OptimiserConfig(lr=0.5)), data, "last")
    fit(*make_run(tmp_path, max_epochs=1), ckpt_path="last", draw=False)


def as_before(path: Path) -> None:
    """Makes a checkpoint what the version before this one wrote."""
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["run"]
    del checkpoint["Images"]["settings"]["rotate_test"]
    for state in checkpoint.get("lr_schedulers", []):
        optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
        old = OneCycleLR(optimiser, 1e-2, total_steps=state["ends"][-1], cycle_momentum=False).state_dict()
        old.update({key: value for key, value in state.items() if key != "ends"})
        state.clear()
        state.update(old)
    torch.save(checkpoint, path)


def test_checkpoints_of_before_still_resume(tmp_path):
    expected = fit(*make_run(tmp_path, "whole"), draw=False)
    run = make_run(tmp_path, max_epochs=2)
    (output := Path(run[0].default_root_dir)).mkdir()
    shutil.copytree(tmp_path / "whole/checkpoints", output / "checkpoints")
    shutil.move(output / "checkpoints/previous.ckpt", output / "checkpoints/last.ckpt")
    for name in ("last.ckpt", "best.ckpt"):
        as_before(output / "checkpoints" / name)
    assert storage.read(output / "checkpoints/last.ckpt")["global_step"] == 9
    assert_same(fit(*run, ckpt_path="last", draw=False)["metrics"], expected["metrics"])
