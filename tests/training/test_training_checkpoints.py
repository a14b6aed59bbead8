import json
import os
import random
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from training_helpers import GRID, assert_same, make_run

from sepgconv import KernelConfig
from sepgconv.training import Checkpoints, Classifier, NetworkConfig, fit, storage
from sepgconv.training.run import check_output


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict, Classifier]:
    torch.set_num_threads(1)
    run = make_run(tmp_path_factory.mktemp("finished"))
    return Path(run[0].default_root_dir), fit(*run), run[1]


@pytest.fixture
def done(finished, tmp_path) -> tuple[Path, dict, Classifier]:
    """A finished run, to do with as one likes."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    return folder, *finished[1:]


def test_a_run_leaves_all_its_files(done):
    folder, result, classifier = done
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    names = [f"checkpoints/{name}.{kind}" for name in ("last", "best") for kind in ("ckpt", "safetensors")]
    assert files == {*names, "checkpoints/previous.ckpt", "metrics.csv", "curves.png", "confusion.png", "result.json"}
    assert (folder / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
    assert_same(json.loads((folder / "result.json").read_text()), json.loads(json.dumps(result)))
    assert {"metrics", "seed", "parameters", "seconds", "versions", "commit", "hardware"} <= result.keys()
    assert {"python", "torch", "lightning", "sepgconv"} <= result["versions"].keys()
    assert {"cpu", "cores", "threads"} <= result["hardware"].keys()
    # What was tested are the best weights.
    best = storage.read(folder / "checkpoints/best.ckpt")
    assert best["global_step"] == result["metrics"]["best"]["step"]
    assert_same(dict(classifier.state_dict()), dict(best["state_dict"]))


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_a_classifier_comes_back_as_lightning_users_expect(done, suffix):
    folder, _, trained = done
    again = Classifier.load_from_checkpoint(folder / f"checkpoints/best.{suffix}")
    assert dict(again.hparams) == dict(trained.hparams)
    assert_same(dict(again.net.state_dict()), dict(trained.net.state_dict()))
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        Classifier.load_from_checkpoint(folder / "checkpoints/none.ckpt")


def test_checkpoints_hold_no_code_and_weights_are_beside_them(done):
    folder = done[0] / "checkpoints"
    for name in ("last", "best"):
        checkpoint = torch.load(folder / f"{name}.ckpt", weights_only=True)
        weights = load_file(folder / f"{name}.safetensors")
        assert_same({f"net.{key}": value for key, value in weights.items()}, dict(checkpoint["state_dict"]))
        assert_same(
            dict(storage.read(folder / f"{name}.safetensors")["hyper_parameters"]), checkpoint["hyper_parameters"]
        )
    assert (
        storage.read(folder / "previous.ckpt")["global_step"] == storage.read(folder / "last.ckpt")["global_step"] - 1
    )


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weight = storage.read(path)["state_dict"]["net.15.weight"]
    content[content.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(done, damage):
    folder = done[0] / "checkpoints"
    damage(folder / "last.ckpt")
    with pytest.warns(UserWarning, match=r"last.ckpt is not a whole checkpoint: .*previous.ckpt is used instead"):
        assert storage.newest(folder) == folder / "previous.ckpt"
    assert not (folder / "last.ckpt").exists()
    assert (folder / "last.damaged").exists()


def test_only_damaged_checkpoints_are_an_error(done):
    folder = done[0] / "checkpoints"
    for name in ("last.ckpt", "previous.ckpt"):
        _truncate(folder / name)
    with pytest.raises(ValueError, match=r"no checkpoint to resume from: .*last.ckpt.*previous.ckpt"):
        storage.newest(folder)


def test_a_pickle_is_not_loaded(tmp_path):
    class Code:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"state_dict": Code(), "hyper_parameters": {}}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        storage.read(tmp_path / "evil.ckpt")
    assert not (tmp_path / "owned").exists()


def test_a_write_that_fails_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    checkpoint = {"state_dict": {"net.a": torch.ones(2)}, "hyper_parameters": {"a": 1}}
    storage.AtomicCheckpointIO().save_checkpoint(checkpoint, path)

    def full(_object, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        storage.AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    assert_same(storage.read(path), checkpoint)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "last.safetensors"]


def test_what_a_killed_run_left_half_written_is_cleared(tiny):
    run = tiny(max_epochs=1)
    output, folder = Path(run[0].default_root_dir), Checkpoints.folder(run[0])
    folder.mkdir(parents=True)
    left = [folder / f".{name}.{kind}.abc" for name in ("last", "best") for kind in ("ckpt", "safetensors")]
    left += [output / f".{name}.abc" for name in ("result.json", "metrics.csv", "curves.png")] + [output / ".probe-1"]
    for path in left:
        path.write_bytes(b"half")
    mine = output / ".gitignore"
    mine.write_text("*")
    fit(*run)
    assert [path.name for path in left if path.exists()] == []
    assert mine.exists()


@pytest.mark.parametrize("kept", ["previous.ckpt", "best.ckpt", "last.safetensors", "result.json"])
def test_whatever_is_left_of_a_run_is_not_overwritten(done, tiny, kept):
    for path in (done[0] / "result.json", *(done[0] / "checkpoints").glob("*")):
        if path.name != kept:
            path.unlink()
    with pytest.raises(ValueError, match="already holds a run: go on with --ckpt_path last"):
        fit(*tiny())


def test_there_is_a_last_checkpoint_at_any_moment(tiny, monkeypatch):
    """A kill between the renaming of the last checkpoint and the writing of the new one."""
    run, seen, write = tiny(max_epochs=1), [], storage.AtomicCheckpointIO.save_checkpoint

    def watched(self, checkpoint, path, storage_options=None):
        folder = Path(path).parent
        seen.append({kept.name: storage.read(kept)["global_step"] for kept in folder.glob("[lp]*.ckpt")})
        write(self, checkpoint, path)

    monkeypatch.setattr(storage.AtomicCheckpointIO, "save_checkpoint", watched)
    fit(*run)
    assert seen[0] == {}
    assert seen[-1] == {"last.ckpt": 4, "previous.ckpt": 4}


def test_where_files_have_one_name_only_the_checkpoint_before_is_kept(done, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    folder = done[0] / "checkpoints"
    last = (folder / "last.ckpt").read_bytes()
    storage.keep_as_previous(folder)
    assert (folder / "previous.ckpt").read_bytes() == last
    assert storage.newest(folder) == folder / "previous.ckpt"


def test_no_flipped_bit_in_weights_goes_unnoticed(done, tmp_path):
    content = (done[0] / "checkpoints/best.safetensors").read_bytes()
    whole = storage.read(done[0] / "checkpoints/best.safetensors")
    header = 8 + int.from_bytes(content[:8], "little")
    places = random.Random(0).sample(range(8, header), 150) + random.Random(1).sample(range(header, len(content)), 100)
    path = tmp_path / "flipped.safetensors"
    unnoticed = []
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            read = storage.read(path)
        except ValueError:
            continue
        try:
            assert_same(read, whole)
        except (AssertionError, RuntimeError):
            unnoticed.append(place)
    assert unnoticed == []


def test_weights_of_before_there_was_a_checksum_still_load(done, tmp_path):
    whole = storage.read(done[0] / "checkpoints/best.safetensors")
    settings = {key: whole[key] for key in ("hyper_parameters", "Images")}
    weights = {key.removeprefix("net."): value for key, value in whole["state_dict"].items()}
    path = tmp_path / "old.safetensors"
    path.write_bytes(to_safetensors(weights, {"sepgconv": json.dumps(settings)}))
    assert_same(storage.read(path), {"state_dict": whole["state_dict"], **settings})


def test_the_checkpoint_of_another_network_names_what_differs(done):
    other = Classifier(NetworkConfig(width=0.2, kernel=KernelConfig(hidden=8, layers=1)), GRID)
    with pytest.raises(ValueError, match=r"of another network: model.network.width was 0.1, is 0.2; .*there, .*here"):
        other.load_checkpoint(storage.read(done[0] / "checkpoints/best.ckpt"))


def _unfinished(done, step: int = 5) -> Path:
    """The folder of a run that only has to be tested, and whose best weights are not its last."""
    folder = done[0] / "checkpoints"
    (done[0] / "result.json").unlink()
    last, best = (torch.load(folder / f"{name}.ckpt", weights_only=True) for name in ("last", "best"))
    last["callbacks"]["Checkpoints"]["best"] = best["run"]["best"] = {"score": 1.5, "epoch": 0, "step": step}
    best["global_step"] = step
    best["state_dict"] = {key: torch.ones_like(value) for key, value in best["state_dict"].items()}
    storage.AtomicCheckpointIO().save_checkpoint(best, folder / "best.ckpt")
    torch.save(last, folder / "last.ckpt")
    return folder


def test_a_damaged_best_checkpoint_is_replaced_by_the_weights_beside_it(done, tiny):
    folder = _unfinished(done)
    _truncate(folder / "best.ckpt")
    trainer, classifier, data = tiny()
    result = fit(trainer, classifier, data, "last", draw=False)
    assert result["metrics"]["best"] == {"score": 1.5, "epoch": 0, "step": 5}
    assert all((value == 1).all() for value in classifier.state_dict().values())


def test_best_weights_that_are_lost_are_named_and_no_others_are_tested(done, tiny, monkeypatch):
    folder = _unfinished(done)
    _truncate(folder / "best.ckpt")
    _flip_a_bit(folder / "best.safetensors")
    run = tiny()
    monkeypatch.setattr(run[0], "test", lambda *a, **k: pytest.fail("other weights were tested"))
    with pytest.raises(ValueError, match=r"the weights of step 5, .* are lost, .*best.ckpt is not.*checksum is wrong"):
        fit(*run, ckpt_path="last")
    assert storage.read(folder / "last.ckpt")["global_step"] == 10
    assert not (done[0] / "result.json").exists()


def test_the_best_weights_of_another_run_are_not_tested(done, tiny, monkeypatch):
    folder = _unfinished(done)
    best = torch.load(folder / "best.ckpt", weights_only=True)
    best["Images"]["settings"]["seed"] = 9
    storage.AtomicCheckpointIO().save_checkpoint(best, folder / "best.ckpt")
    run = tiny()
    monkeypatch.setattr(run[0], "test", lambda *a, **k: pytest.fail("other weights were tested"))
    with pytest.raises(ValueError, match=r"best.ckpt is of another run or step \(data.seed was 9, is 0\)"):
        fit(*run, ckpt_path="last")


def test_the_last_weights_are_the_best_if_they_are_of_that_step(done, tiny):
    folder = _unfinished(done, step=10)
    for path in folder.glob("best.*"):
        path.unlink()
    trainer, classifier, data = tiny()
    assert fit(trainer, classifier, data, "last", draw=False)["metrics"]["best"]["step"] == 10
    assert_same(dict(classifier.state_dict()), dict(storage.read(folder / "last.ckpt")["state_dict"]))


def test_a_score_that_is_not_a_number_does_not_stay_the_best(tiny, monkeypatch):
    run, scores = tiny(max_epochs=2), iter([float("nan"), 3.0])
    checkpoints = next(part for part in run[0].callbacks if isinstance(part, Checkpoints))
    after = Checkpoints.on_validation_end

    def scored(self, trainer, pl_module):
        trainer.callback_metrics["val/error"].fill_(next(scores))
        after(self, trainer, pl_module)

    monkeypatch.setattr(Checkpoints, "on_validation_end", scored)
    fit(*run, draw=False)
    assert checkpoints.best["score"] == 3.0


def test_a_run_does_not_go_on_from_weights_alone(done, tiny):
    (done[0] / "result.json").unlink()
    with pytest.raises(ValueError, match=r"best.ckpt holds weights only"):
        fit(*tiny(), ckpt_path="best")


def test_output_that_cannot_be_written_is_an_error_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"output must be a directory that can be written to, got '.*file'"):
        check_output(tmp_path / "file")
    with pytest.raises(OSError, match=r"got '/proc/nothing'"):
        check_output(Path("/proc/nothing"))
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OSError, match=r"locked'.*denied"):
        check_output(locked)
    with pytest.raises(OSError, match=r"MB of free space, a run needs \d{6,} MB"):
        check_output(tmp_path, need=2**60)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        check_output(tmp_path)


def test_an_unwritable_output_stops_before_the_data_is_read(tiny, tmp_path):
    (tmp_path / "run").write_text("")
    trainer, classifier, data = tiny()
    with pytest.raises(OSError, match="output must be a directory"):
        fit(trainer, classifier, data)
    assert data._data is None


@pytest.mark.parametrize("monitor", ["last", "val/error"])
def test_the_last_weights_may_be_asked_for(tmp_path, monitor):
    """Where validation gets worse and worse, the two differ."""
    trainer, classifier, data = make_run(tmp_path, max_epochs=3)
    checkpoints = next(part for part in trainer.callbacks if isinstance(part, Checkpoints))  # pyright: ignore[reportAttributeAccessIssue]
    checkpoints.monitor = monitor

    keep = checkpoints.on_validation_end

    def after_worse(trainer, module):
        trainer.callback_metrics["val/error"] = torch.tensor(float(trainer.current_epoch))
        keep(trainer, module)

    checkpoints.on_validation_end = after_worse
    result = fit(trainer, classifier, data)
    assert result["metrics"]["best"]["epoch"] == (2 if monitor == "last" else 0)
    tested = storage.read(tmp_path / "run/checkpoints/best.ckpt")
    assert tested["global_step"] == (15 if monitor == "last" else 5)
    assert_same(dict(classifier.state_dict()), dict(tested["state_dict"]))


def test_a_metric_that_is_not_there_is_named(tmp_path):
    trainer, classifier, data = make_run(tmp_path, max_epochs=1)
    next(part for part in trainer.callbacks if isinstance(part, Checkpoints)).monitor = "val/accuracy"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=r"checkpoint.monitor must be one of last, .*val/error.*, got 'val/accuracy'"):
        fit(trainer, classifier, data)
