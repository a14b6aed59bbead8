"""The readers of MNIST and of MNIST-rot as published, on small files, whole and damaged."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from sepgconv.data import amat, load, mnist

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


# --- MNIST ---


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": pixels(20, 28, 28),
        "train-labels-idx1-ubyte": np.arange(20, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": pixels(10, 28, 28),
        "t10k-labels-idx1-ubyte": np.arange(10, dtype=np.uint8)[::-1].copy(),
    }
    for i, (name, array) in enumerate(arrays.items()):  # half plain, half packed
        if i % 2:
            (tmp_path / name).write_bytes(idx(array))
        else:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return arrays


def read_small_mnist(root: Path, **kwargs):
    return mnist.read_mnist(root, download=False, **({"counts": (20, 10), "digests": {}} | kwargs))


def test_mnist_is_read_plain_and_packed(tmp_path: Path, small_mnist: dict[str, np.ndarray]) -> None:
    train, test = read_small_mnist(tmp_path)
    assert np.array_equal(train.images[:, 0], small_mnist["train-images-idx3-ubyte"])
    assert np.array_equal(train.labels, small_mnist["train-labels-idx1-ubyte"])
    assert np.array_equal(test.images[:, 0], small_mnist["t10k-images-idx3-ubyte"])
    assert np.array_equal(test.labels, small_mnist["t10k-labels-idx1-ubyte"])


def test_mnist_checksums_are_of_the_content(tmp_path: Path, small_mnist: dict[str, np.ndarray]) -> None:
    digests = {name: hashlib.sha256(idx(array)).hexdigest() for name, array in small_mnist.items()}
    read_small_mnist(tmp_path, digests=digests)
    changed = small_mnist["train-images-idx3-ubyte"].copy()
    changed[3, 4, 5] ^= 1
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(changed)))
    found = hashlib.sha256(idx(changed)).hexdigest()
    expected = digests["train-images-idx3-ubyte"]
    with pytest.raises(ValueError, match=f"{path} .* expected content of sha256 {expected}, found {found}"):
        read_small_mnist(tmp_path, digests=digests)


def test_mnist_of_another_size_is_refused_by_default(tmp_path: Path, small_mnist: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"expected the sizes \(60000, 28, 28\), found \(20, 28, 28\)"):
        load("mnist", root=tmp_path)
    with pytest.raises(ValueError, match="expected content of sha256 ba891046"):
        mnist.read_mnist(tmp_path, counts=(20, 10))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-labels-idx1-ubyte", lambda b: b[:-3], "expected 28 bytes unpacked, found 25"),
        ("train-labels-idx1-ubyte", lambda b: b + b"\0", "expected 28 bytes unpacked, found 29"),
        ("train-labels-idx1-ubyte", lambda b: b[:6], r"expected the sizes \(20,\)"),
        ("train-labels-idx1-ubyte", lambda b: b"", "expected magic number 0x00000801, found 0x00000000"),
        ("t10k-labels-idx1-ubyte", lambda b: b"<htm" + b, "number 0x00000801, found 0x3c68746d"),
        ("train-images-idx3-ubyte.gz", lambda b: b[:-9], "expected a whole compressed file"),
        ("train-images-idx3-ubyte.gz", lambda b: b[:999] + b"x" + b[1000:], "damaged"),
        ("train-images-idx3-ubyte.gz", lambda b: b"<html>", "expected a whole compressed file"),
    ],
)
def test_damaged_mnist(tmp_path: Path, small_mnist: dict[str, np.ndarray], file: str, change, message: str) -> None:
    path = tmp_path / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        read_small_mnist(tmp_path)


@pytest.mark.shared
def test_real_mnist(shared: Path) -> None:
    data = load("mnist", root=shared, download=False)
    assert [len(s) for s in data.splits.values()] == [55_000, 5_000, 10_000]
    assert data.mean == pytest.approx((0.1307,), abs=5e-4)
    assert data.std == pytest.approx((0.3081,), abs=5e-4)
    assert data.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


# --- MNIST-rot as published ---


def write_amat(path: Path, table: np.ndarray) -> None:
    np.savetxt(path, table, fmt="%.7g")


@pytest.fixture
def table() -> np.ndarray:
    return np.concatenate([pixels(12, 784) / 255, np.arange(12)[:, None] % 10], axis=1)


def test_amat_is_row_major_with_the_label_last(tmp_path: Path, table: np.ndarray) -> None:
    write_amat(tmp_path / amat.TRAIN_VALID, table)
    write_amat(tmp_path / amat.TEST, table[:5])
    train, valid, test = amat.read(tmp_path, 0, download=False, sizes=(9, 3, 5))
    images = np.round(table[:, :-1] * 255).reshape(12, 28, 28)
    assert np.array_equal(train.images[:, 0], images[:9])
    assert np.array_equal(valid.images[:, 0], images[9:])
    assert np.array_equal(test.images[:, 0], images[:5])
    assert np.array_equal(valid.labels, [9, 0, 1])


def test_amat_clips_what_interpolation_left_outside(tmp_path: Path, table: np.ndarray) -> None:
    table[0, :2] = (-0.004, 1.003)
    write_amat(tmp_path / "x.amat", table)
    assert amat.read_amat(tmp_path / "x.amat", 12).images[0, 0, 0, :2].tolist() == [0, 255]


def change_at(row: int, column: int, value: float):
    def change(table: np.ndarray) -> np.ndarray:
        table[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:-1], "expected 12 rows of 785 numbers, found 11 of 785"),
        (lambda t: t[:, 1:], "expected 12 rows of 785 numbers, found 12 of 784"),
        (lambda t: t[:0], "expected 12 rows of 785 numbers"),
        (lambda t: t * 255, r"expected pixels in \[0, 1\], found 0 to 255"),
        (change_at(0, 0, float("nan")), r"expected pixels in \[0, 1\]"),
        (change_at(3, -1, 10), "expected labels 0 to 9 in the last column, found 0 to 10"),
        (change_at(3, -1, 0.5), "expected labels 0 to 9"),
    ],
)
def test_damaged_amat(tmp_path: Path, table: np.ndarray, change, message: str) -> None:
    path = tmp_path / "x.amat"
    write_amat(path, change(table))
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        amat.read_amat(path, 12)


def test_amat_cut_in_a_row(tmp_path: Path, table: np.ndarray) -> None:
    path = tmp_path / "x.amat"
    write_amat(path, table)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=f"{path} .*expected 12 rows of 785 numbers"):
        amat.read_amat(path, 12)
