"""The readers of colour images, on small files of the canonical formats, whole and damaged."""

import dataclasses
import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from sepgconv.data import cifar, galaxy10, load
from sepgconv.data.cifar import CIFAR10, CIFAR100, Cifar

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


# --- CIFAR ---


def small(kind: Cifar, n: int = 20) -> Cifar:
    return dataclasses.replace(kind, records=dict.fromkeys(kind.records, n), digests={})


def write_cifar(folder: Path, kind: Cifar) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for file, n in kind.records.items():
        labels = np.stack([np.arange(n) % c for c in kind.classes], axis=1).astype(np.uint8)
        images = pixels(n, 3, 32, 32)
        (folder / file).write_bytes(np.concatenate([labels, images.reshape(n, -1)], axis=1).tobytes())
        written[file] = (images, labels[:, -1])
    return written


@pytest.mark.parametrize("kind", [small(CIFAR10), small(CIFAR100, 200)], ids=["cifar10", "cifar100"])
@pytest.mark.parametrize("place", range(4))
def test_cifar(tmp_path: Path, kind: Cifar, place: int) -> None:
    written = write_cifar(tmp_path / kind.source.folders[place], kind)
    train, valid, test = kind.read(tmp_path, 0, download=False, validation=10)
    assert np.array_equal(test.images, written[kind.test][0])
    assert np.array_equal(test.labels, written[kind.test][1])
    images = np.concatenate([written[file][0] for file in kind.train])
    labels = np.concatenate([written[file][1] for file in kind.train])
    assert len(valid) == 10
    assert len(train) == len(images) - 10
    label_of = {i.tobytes(): label for i, label in zip(images, labels, strict=True)}
    for split in (train, valid):
        found = [label_of.pop(i.tobytes()) for i in split.images.numpy()]  # each image once
        assert found == split.labels.tolist()


def test_cifar_files_may_be_gzipped(tmp_path: Path) -> None:
    kind = small(CIFAR10)
    written = write_cifar(tmp_path, kind)
    path = tmp_path / "test_batch.bin"
    (tmp_path / "test_batch.bin.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert np.array_equal(kind.read(tmp_path, 0, False, validation=10)[2].images, written[path.name][0])


def test_cifar_validation_is_the_same_whatever_the_seed(tmp_path: Path) -> None:
    kind = small(CIFAR10)
    write_cifar(tmp_path, kind)
    first, second = (kind.read(tmp_path, seed, download=False, validation=10)[1] for seed in (0, 1))
    assert torch.equal(first.images, second.images)
    assert first.labels.bincount().tolist() == [1] * 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "expected 20 records of 3073 bytes, 61460 in all, found 61459"),
        (lambda b: b + b[:3073], "expected 20 records of 3073 bytes, 61460 in all, found 64533"),
        (lambda b: b"\x0a" + b[1:], "expected labels below 10, found 10"),
    ],
)
def test_damaged_cifar(tmp_path: Path, change, message: str) -> None:
    kind = small(CIFAR10)
    write_cifar(tmp_path, kind)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        kind.read(tmp_path, 0, download=False, validation=10)


def test_cifar_checksum_and_counts_by_default(tmp_path: Path) -> None:
    write_cifar(tmp_path, small(CIFAR10))
    with pytest.raises(ValueError, match="expected 10000 records of 3073 bytes"):
        load("cifar10", root=tmp_path)
    checked = dataclasses.replace(small(CIFAR10), digests=CIFAR10.digests)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin .* expected content of sha256 cee91656"):
        checked.read(tmp_path, 0, download=False, validation=10)


def test_cifar100_checks_both_labels(tmp_path: Path) -> None:
    kind = small(CIFAR100, 200)
    write_cifar(tmp_path, kind)
    path = tmp_path / "test.bin"
    content = bytearray(path.read_bytes())
    content[0] = 20
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"test\.bin .*expected labels below 20, found 20"):
        kind.read_file(path)


def test_names_of_classes_are_as_many_as_classes() -> None:
    assert len(cifar.CIFAR10_CLASSES) == CIFAR10.classes[-1] == 10
    assert len(galaxy10.CLASSES) == 10


# --- Galaxy10 ---


def write_galaxy(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["images"], file["ans"] = images, labels


@pytest.fixture
def galaxies(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = pixels(40, 69, 69, 3), np.arange(40).astype(np.uint8) % 10
    write_galaxy(tmp_path / "Galaxy10.h5", images, labels)
    return images, labels


def read_small_galaxy(root: Path):
    return galaxy10.read(root, 0, download=False, count=40, tenth=10, sha256=None)


def test_galaxy10(tmp_path: Path, galaxies: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = galaxies
    train, valid, test = read_small_galaxy(tmp_path)
    assert [s.labels.bincount().tolist() for s in (train, valid, test)] == [[2] * 10, [1] * 10, [1] * 10]
    label_of = {i.transpose(2, 0, 1).tobytes(): n for i, n in zip(images, labels, strict=True)}
    for split in (train, valid, test):
        assert [label_of.pop(i.tobytes()) for i in split.images.numpy()] == split.labels.tolist()
    assert not label_of


def test_galaxy10_splits_add_up() -> None:
    assert galaxy10.IMAGES - 2 * galaxy10.TENTH == 17_429


def test_galaxy10_checks_counts_and_checksum(tmp_path: Path, galaxies: tuple[np.ndarray, np.ndarray]) -> None:
    path = tmp_path / "Galaxy10.h5"
    with pytest.raises(ValueError, match=rf"{path} .*\(21785, 69, 69, 3\), found uint8 \(40, 69, 69, 3\)"):
        load("galaxy10", root=tmp_path)
    with pytest.raises(ValueError, match=f"{path} .*expected sha256 969a6b1c"):
        galaxy10.read_h5(path, count=40)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((40, 69, 69, 3)), np.zeros(40, int), "found float64"),
        (np.zeros((40, 3, 69, 69), np.uint8), np.zeros(40, int), r"found uint8 \(40, 3, 69, 69\)"),
        (np.zeros((40, 69, 69, 3), np.uint8), np.zeros(39, int), r"'ans' of 40 labels 0 to 9, found \(39,\)"),
        (np.zeros((40, 69, 69, 3), np.uint8), np.full(40, 10), "up to 10"),
    ],
)
def test_wrong_galaxies(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    path = tmp_path / "Galaxy10.h5"
    write_galaxy(path, images, labels)
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        read_small_galaxy(tmp_path)


def test_damaged_galaxies(tmp_path: Path, galaxies: tuple[np.ndarray, np.ndarray]) -> None:
    path = tmp_path / "Galaxy10.h5"
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(ValueError, match=f"{path} .*expected an HDF5 file with 'images' and 'ans', found .*trunc"):
        read_small_galaxy(tmp_path)
    with h5py.File(path, "w") as file:
        file["images"] = galaxies[0]
    with pytest.raises(ValueError, match=f"{path} .*'ans'"):
        read_small_galaxy(tmp_path)
