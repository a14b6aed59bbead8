"""6,000 digits of MNIST that come with the package, so that everything runs offline.

They are drawn from MNIST's training set, 600 of each class, and interleaved: image i shows the digit
i mod 10. The first 5,000 are for fitting (4,500 train, 500 valid), the last 1,000 for testing, so all splits
are balanced and no image is in two of them. `assets/digits.xz` is nothing but the pixels, compressed.

`python -m sepgconv.data.embedded --make MNIST_DIR` made that file.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np
import torch

from .dataset import Split
from .files import check_digest, damaged, read_whole, readable
from .mnist import read_mnist
from .places import atomic_write

ASSET = Path(__file__).parent / "assets" / "digits.xz"
SHA256 = "aa43611ae0b607b1015adb0f8890cd397ec28a399340c4bb749105c2af1a06c1"
"""Of the pixels."""

CLASSES = 10
PER_CLASS = 600
SIZES = (4_500, 500, 1_000)


def read(root: object = None, seed: int = 0, download: bool = False) -> tuple[Split, Split, Split]:
    """4,500 / 500 / 1,000 digits, each split balanced; the arguments make no difference."""
    with readable(ASSET):
        pixels = lzma.decompress(read_whole(ASSET))
    if len(pixels) != CLASSES * PER_CLASS * 28 * 28:
        raise damaged(ASSET, f"{CLASSES * PER_CLASS * 28 * 28} bytes unpacked", str(len(pixels)))
    check_digest(ASSET, pixels, SHA256)
    images = torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).copy())
    labels = torch.arange(len(images)) % CLASSES
    train, valid, test = (Split(i, n) for i, n in zip(images.split(SIZES), labels.split(SIZES), strict=True))
    return train, valid, test


def draw(source: Split) -> bytes:
    """The pixels of the embedded digits: of each class the first 600 in a fixed random order."""
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    by_class = [order[source.labels[order] == digit][:PER_CLASS] for digit in range(CLASSES)]
    return source.images[torch.stack(by_class, dim=1).flatten()].numpy().tobytes()


def make(mnist: str, path: Path = ASSET) -> str:
    """Write the asset from MNIST's files; returns the checksum to note above."""
    pixels = draw(read_mnist(mnist, download=False)[0])
    with atomic_write(path) as file:
        file.write(lzma.compress(pixels, preset=9 | lzma.PRESET_EXTREME))
    return hashlib.sha256(pixels).hexdigest()


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sepgconv.data.embedded", description="Make the asset.")
    parser.add_argument("--make", metavar="MNIST_DIR", required=True, help="folder with MNIST's idx files")
    digest = make(parser.parse_args(argv).make)
    print(f"wrote {ASSET}: {ASSET.stat().st_size} bytes, sha256 of the pixels {digest}")


if __name__ == "__main__":
    main()
