"""MNIST-rot, MNIST-scale and MNIST-rot-scale, made from MNIST as the paper describes.

62,000 of the 70,000 images are drawn and split into 10,000 / 2,000 / 50,000. Each is scaled by a factor
from [0.3, 1] (padded with zeros to its old size), turned by an angle from [0°, 360°), or both in that order:
bicubic, clipped to [0, 255] and rounded. Everything is drawn from the seed; the result is kept on disk.

The 8,000 images that no split holds are the selection set: what networks are compared on before the winner sees the
test set. `mnist-rot-selection` is MNIST-rot with these in the place of its test images.
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
SELECTION = 8_000
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
        order = torch.randperm(len(source), generator=random)
        parts = self._drawn(source.take(order[:total]), torch.rand(2, total, generator=random, dtype=torch.float64))
        starts = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
        return {
            part: parts.take(torch.arange(start, start + n))
            for (part, n), start in zip(sizes.items(), starts, strict=False)
        }

    def select(self, source: Split, seed: int, sizes: dict[str, int] = SIZES, count: int = SELECTION) -> Split:
        """Images of the source that no split of this seed holds, scaled and turned as these are."""
        total = sum(sizes.values())
        if len(source) < total + count:
            raise ValueError(f"{self.name} needs {total + count} source images, got {len(source)}")
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(source), generator=random)
        torch.rand(2, total, generator=random, dtype=torch.float64)  # the splits' own
        numbers = torch.rand(2, count, generator=random, dtype=torch.float64)
        return self._drawn(source.take(order[total : total + count]), numbers)

    def _drawn(self, chosen: Split, numbers: Tensor) -> Split:
        """Images changed by angles and factors that numbers in [0, 1) stand for."""
        angles, factors = numbers[0] * 360, SCALES[0] + (SCALES[1] - SCALES[0]) * numbers[1]
        batches = zip(*(v.split(BATCH) for v in (chosen.images, angles, factors)), strict=True)
        bar = tqdm(batches, desc=self.name, total=-(-len(chosen) // BATCH), unit_scale=BATCH, disable=None)
        with _one_thread():
            return Split(torch.cat([self._change(*batch) for batch in bar]), chosen.labels)

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
        selection: int = 0,
    ) -> tuple[Split, Split, Split]:
        """The splits of a seed, from the cache if they are there, else made and cached.

        Args:
            root: where MNIST is and the result is kept, see `load`.
            seed: of every draw.
            download: whether MNIST may be downloaded.
            source: what gives the images to draw from; all of MNIST unless told.
            sizes: of the splits by name.
            selection: how many images that no split holds are to stand in the place of the test images; 0 for these.
        """
        base = data_root(root)

        def images() -> Split:
            return source() if source else join(*read_mnist(base, download))

        key = {"name": self.name, "seed": seed, "format": FORMAT, "sizes": sizes}
        splits = kept(base, key, lambda: self.generate(images(), seed, sizes))
        if selection:
            key |= {"name": f"{self.name}-selection", "sizes": {"selection": selection}}
            key |= {} if sizes == SIZES else {"beside": sizes}  # what is left depends on what the splits hold
            splits |= kept(base, key, lambda: {"selection": self.select(images(), seed, sizes, selection)})
        return splits["train"], splits["valid"], splits["selection" if selection else "test"]


VARIANTS = (
    Variant("mnist-rot", rotated=True, scaled=False),
    Variant("mnist-scale", rotated=False, scaled=True),
    Variant("mnist-rot-scale", rotated=True, scaled=True),
)


def kept(
    base: Path, key: dict[str, Any], make: Callable[[], dict[str, Split]], *, compress: bool = False
) -> dict[str, Split]:
    """The splits of a key, from the cache if they are there, else made and cached."""
    file = f"{key['name']}-seed{key['seed']}-v{FORMAT}.npz"
    for cached in (folder / file for folder in search_folders(base, (FOLDER,))):
        if cached.exists() and (splits := _load(cached, key)) is not None:
            return splits
    splits = make()
    try:
        _save(output_folder(base, FOLDER) / file, key, splits, compress)
    except OSError as error:  # a full disk is no reason to throw the images away
        warnings.warn(f"{file} could not be kept and will be made again: {error}", stacklevel=3)
    return splits


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core: sharing such small tensors gains little, and loses much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _save(path: Path, key: dict[str, object], splits: dict[str, Split], compress: bool) -> None:
    arrays: dict[str, Any] = {"key": np.array(json.dumps(key))}
    for part, split in splits.items():
        arrays[f"{part}_images"] = split.images.numpy()
        arrays[f"{part}_labels"] = split.labels.numpy()
    with atomic_write(path) as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)


def _load(path: Path, key: dict[str, Any]) -> dict[str, Split] | None:
    """The splits, or None with a warning if the file is not whole or not of this key."""
    try:
        with np.load(path, allow_pickle=False) as arrays:  # its zip format checks a CRC of each array
            found = json.loads(str(arrays["key"]))
            if found != key:
                raise ValueError(f"it holds {found}, not {key}")
            splits = {
                part: Split(*(torch.from_numpy(arrays[f"{part}_{kind}"]) for kind in ("images", "labels")))
                for part in key["sizes"]
            }
            if {part: len(split) for part, split in splits.items()} != key["sizes"]:
                raise ValueError(f"it does not hold {key['sizes']} images")
            return splits
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        warnings.warn(f"{path} is damaged and is made anew: {error}", stacklevel=5)
        return None
