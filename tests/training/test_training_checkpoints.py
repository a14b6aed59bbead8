import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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
    assert files == {*names, "checkpoints/previous.ckpt", "metrics.csv", "curves.png", "result.json"}
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
    folder = Checkpoints.folder(run[0])
    folder.mkdir(parents=True)
    (folder / ".last.ckpt.abc").write_bytes(b"half")
    fit(*run)
    assert not (folder / ".last.ckpt.abc").exists()


def test_the_checkpoint_of_another_network_names_both(done, tiny):
    other = NetworkConfig(width=0.2, kernel=KernelConfig(hidden=8, layers=1))
    trainer, _, data = tiny(max_epochs=3)
    (done[0] / "result.json").unlink()
    with pytest.raises(ValueError, match=r"(?s)of another network.*width 0.1.*width 0.2.*there.*here"):
        fit(trainer, Classifier(other, GRID), data, ckpt_path="last")


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
