"""MNIST-rot, MNIST-scale and MNIST-rot-scale, made from MNIST as the paper describes.

62,000 of the 70,000 images are drawn and split into 10,000 / 2,000 / 50,000. Each is scaled by a factor
from [0.3, 1] (padded with zeros to its old size), turned by an angle from [0°, 360°), or both in that order:
bicubic, clipped to [0, 255] and rounded. Everything is drawn from the seed; the result is kept on disk.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .dataset import Split, join
from .mnist import read_mnist
from .places import atomic_write, data_root, output_folder, search_folders
from .resample import rotate, scale

FORMAT = 1  # raise it whenever the same seed would give other images
FOLDER = "generated"
SIZES = {"train": 10_000, "valid": 2_000, "test": 50_000}
SCALES = (0.3, 1.0)
BATCH = 100


@dataclass(frozen=True)
class Variant:
    """A data set made from MNIST.

    Args:
        name: as `load` takes it.
        rotated: whether the images are turned.
        scaled: whether the images are scaled.
    """

    name: str
    rotated: bool
    scaled: bool

    def generate(self, source: Split, seed: int, sizes: dict[str, int] = SIZES) -> dict[str, Split]:
        """Draw, scale and turn: the splits by name, the same for the same source and seed."""
        total = sum(sizes.values())
        if len(source) < total:
            raise ValueError(f"{self.name} needs {total} source images, got {len(source)}")
        # All three variants of a seed draw the same numbers, so they show the same digits.
        random = torch.Generator().manual_seed(seed)
        chosen = source.take(torch.randperm(len(source), generator=random)[:total])
        angles, units = torch.rand(2, total, generator=random, dtype=torch.float64)
        factors = SCALES[0] + (SCALES[1] - SCALES[0]) * units
        batches = zip(*(v.split(BATCH) for v in (chosen.images, angles * 360, factors)), strict=True)
        bar = tqdm(batches, desc=self.name, total=-(-total // BATCH), unit_scale=BATCH, disable=None)
        with _one_thread():
            images = torch.cat([self._change(*batch) for batch in bar])
        parts = Split(images, chosen.labels)
        starts = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
        return {
            part: parts.take(torch.arange(start, start + n))
            for (part, n), start in zip(sizes.items(), starts, strict=False)
        }

    def _change(self, images: Tensor, degrees: Tensor, factors: Tensor) -> Tensor:
        pixels = images.float()
        if self.scaled:
            pixels = scale(pixels, factors)
        if self.rotated:
            pixels = rotate(pixels, degrees)
        return pixels.clamp(0, 255).round().to(torch.uint8)

    def read(
        self,
        root: str | os.PathLike[str] | None,
        seed: int,
        download: bool,
        *,
        source: Callable[[], Split] | None = None,
        sizes: dict[str, int] = SIZES,
    ) -> tuple[Split, Split, Split]:
        """The splits of a seed, from the cache if they are there, else made and cached.

        Args:
            root: where MNIST is and the result is kept, see `load`.
            seed: of every draw.
            download: whether MNIST may be downloaded.
            source: what gives the images to draw from; all of MNIST unless told.
            sizes: of the splits by name.
        """
        base = data_root(root)
        key = {"name": self.name, "seed": seed, "format": FORMAT, "sizes": sizes}
        file = f"{self.name}-seed{seed}-v{FORMAT}.npz"
        for cached in (folder / file for folder in search_folders(base, (FOLDER,))):
            if cached.exists() and (splits := _load(cached, key)) is not None:
                return splits["train"], splits["valid"], splits["test"]
        images = source() if source else join(*read_mnist(base, download))
        splits = self.generate(images, seed, sizes)
        try:
            _save(output_folder(base, FOLDER) / file, key, splits)
        except OSError as error:  # a full disk is no reason to throw the images away
            warnings.warn(f"{file} could not be kept and will be made again: {error}", stacklevel=2)
        return splits["train"], splits["valid"], splits["test"]


VARIANTS = (
    Variant("mnist-rot", rotated=True, scaled=False),
    Variant("mnist-scale", rotated=False, scaled=True),
    Variant("mnist-rot-scale", rotated=True, scaled=True),
)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core: sharing such small tensors gains little, and loses much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _save(path: Path, key: dict[str, object], splits: dict[str, Split]) -> None:
    arrays: dict[str, Any] = {"key": np.array(json.dumps(key))}
    for part, split in splits.items():
        arrays[f"{part}_images"] = split.images.numpy()
        arrays[f"{part}_labels"] = split.labels.numpy()
    with atomic_write(path) as file:
        np.savez(file, **arrays)


def _load(path: Path, key: dict[str, object]) -> dict[str, Split] | None:
    """The splits, or None with a warning if the file is not whole or not of this key."""
    try:
        with np.load(path, allow_pickle=False) as arrays:  # its zip format checks a CRC of each array
            found = json.loads(str(arrays["key"]))
            if found != key:
                raise ValueError(f"it holds {found}, not {key}")
            splits = {
                part: Split(*(torch.from_numpy(arrays[f"{part}_{kind}"]) for kind in ("images", "labels")))
                for part in SIZES
            }
            if {part: len(split) for part, split in splits.items()} != key["sizes"]:
                raise ValueError(f"it does not hold {key['sizes']} images")
            return splits
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        warnings.warn(f"{path} is damaged and is made anew: {error}", stacklevel=4)
        return None
