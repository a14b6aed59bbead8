"""CIFAR-10 and CIFAR-100, from their binary files.

A record is the label bytes (one; for CIFAR-100 two, coarse then fine) and 3 × 32 × 32 pixels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .dataset import Split, join, stratified
from .download import Remote
from .files import Source, check_digest, damaged, obtain, read_whole

PIXELS = 3 * 32 * 32
VALIDATION = 5_000
_MINDSPORE = "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/"

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class Cifar:
    """One of the two sets.

    Args:
        source: its files.
        train: the names of the training files.
        test: the name of the test file.
        records: how many each file of `train` and `test` holds.
        classes: by label byte of a record; the last one is the label that is used.
        digests: sha256 of the files; a file without one is not compared.
    """

    source: Source
    train: tuple[str, ...]
    test: str
    records: Mapping[str, int]
    classes: tuple[int, ...]
    digests: Mapping[str, str]

    def read_file(self, path: Path) -> Split:
        """All records of a file."""
        content, name = read_whole(path), path.name.removesuffix(".gz")
        n, length = self.records[name], len(self.classes) + PIXELS
        if len(content) != n * length:
            raise damaged(path, f"{n} records of {length} bytes, {n * length} in all", str(len(content)))
        table = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(n, length).copy())
        labels, pixels = table.split((len(self.classes), PIXELS), dim=1)
        for column, classes in zip(labels.unbind(1), self.classes, strict=True):
            if column.max() >= classes:
                raise damaged(path, f"labels below {classes}", str(int(column.max())))
        check_digest(path, content, self.digests.get(name))
        return Split(pixels.reshape(n, 3, 32, 32).contiguous(), labels[:, -1].long())

    def read(
        self,
        root: str | os.PathLike[str] | None,
        seed: int,
        download: bool,
        *,
        validation: int = VALIDATION,
    ) -> tuple[Split, Split, Split]:
        """45,000 / 5,000 / 10,000: a fixed, stratified part of the training set is kept for validation."""
        paths = obtain(self.source, root, download)
        train = join(*(self.read_file(paths[file]) for file in self.train))
        held_out = stratified(train.labels, validation, seed=0)
        return train.take(~held_out), train.take(held_out), self.read_file(paths[self.test])


_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))

CIFAR10 = Cifar(
    source=Source(
        name="cifar10",
        folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
        remotes=(
            Remote(
                name="cifar-10-binary.tar.gz",
                checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
                urls=(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
                    f"{_MINDSPORE}cifar-10-binary.tar.gz",
                ),
                holds=(*_BATCHES, "test_batch.bin"),
            ),
        ),
    ),
    train=_BATCHES,
    test="test_batch.bin",
    records=dict.fromkeys((*_BATCHES, "test_batch.bin"), 10_000),
    classes=(10,),
    digests={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)

CIFAR100 = Cifar(
    source=Source(
        name="cifar100",
        folders=("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary", "."),
        remotes=(
            Remote(
                name="cifar-100-binary.tar.gz",
                checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
                urls=(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    f"{_MINDSPORE}cifar-100-binary.tar.gz",
                ),
                holds=("train.bin", "test.bin"),
            ),
        ),
    ),
    train=("train.bin",),
    test="test.bin",
    records={"train.bin": 50_000, "test.bin": 10_000},
    classes=(20, 100),
    digests={
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
)
