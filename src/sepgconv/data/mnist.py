"""MNIST, from its four idx files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .dataset import Split, stratified
from .download import Remote
from .files import Source, check_digest, damaged, obtain, read_whole

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
_MD5_OF_DOWNLOAD = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Checksums of the unpacked files."""

SOURCE = Source(
    name="mnist",
    folders=("mnist", "MNIST/raw", "."),
    remotes=tuple(
        Remote(f"{file}.gz", f"md5:{md5}", tuple(f"{mirror}{file}.gz" for mirror in _MIRRORS), (file,))
        for file, md5 in _MD5_OF_DOWNLOAD.items()
    ),
)

VALIDATION = 5_000


def read_idx(path: Path, shape: tuple[int, ...], sha256: str | None = None) -> np.ndarray[Any, np.dtype]:
    """The bytes of an idx file, plain or gzipped, as an array.

    Args:
        path: the file.
        shape: what it must hold.
        sha256: of the unpacked content, compared if given.
    """
    content = read_whole(path)
    # Two zero bytes, 8 for unsigned bytes, the number of axes; then the axes; all big-endian.
    magic, found_magic = 0x0800 + len(shape), int.from_bytes(content[:4], "big")
    if found_magic != magic:
        raise damaged(path, f"magic number 0x{magic:08x}", f"0x{found_magic:08x}")
    start = 4 + 4 * len(shape)
    header = tuple(np.frombuffer(content[4:start].ljust(4 * len(shape), b"\0"), ">u4").tolist())
    if header != shape:
        raise damaged(path, f"the sizes {shape}", str(header))
    if len(content) != start + math.prod(shape):
        raise damaged(path, f"{start + math.prod(shape)} bytes unpacked", str(len(content)))
    check_digest(path, content, sha256)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    *,
    counts: tuple[int, int] = (60_000, 10_000),
    digests: Mapping[str, str] = SHA256,
) -> tuple[Split, Split]:
    """The training and the test set as they were published.

    Args:
        root: where the files are, see `load`.
        download: whether missing files may be downloaded.
        counts: how many images the two sets must have.
        digests: checksums of the unpacked files by name; a file without one is not compared.
    """
    paths = obtain(SOURCE, root, download)

    def split(stem: str, n: int) -> Split:
        images, labels = (
            read_idx(paths[file], shape, digests.get(file))
            for file, shape in (
                (f"{stem}-images-idx3-ubyte", (n, 28, 28)),
                (f"{stem}-labels-idx1-ubyte", (n,)),
            )
        )
        return Split(torch.tensor(images)[:, None], torch.tensor(labels, dtype=torch.int64))

    return split("train", counts[0]), split("t10k", counts[1])


def read(root: str | os.PathLike[str] | None, seed: int, download: bool) -> tuple[Split, Split, Split]:
    """55,000 / 5,000 / 10,000: a fixed, stratified part of the training set is kept for validation."""
    train, test = read_mnist(root, download)
    held_out = stratified(train.labels, VALIDATION, seed=0)
    return train.take(~held_out), train.take(held_out), test
