"""The data sets by name, and the one way to load them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import amat, cifar, first_galaxies, galaxy10, mnist, stir, variants
from .dataset import DataSet, Split
from .files import Source, locate
from .places import data_root, search_folders

Splits = tuple[Split, Split, Split]
Reader = Callable[[str | os.PathLike[str] | None, int, bool], Splits]


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before it is read.

    Args:
        name: as `load` takes it.
        shape: channels, height, width; of signals and volumes, channels and the axes of space.
        sizes: of train, valid and test.
        class_names: one per class.
        read: from root, seed and whether to download to the three splits.
        source: the files it is read or made from, if it is not embedded.
        generated: whether it is made from the source and cached.
    """

    name: str
    shape: tuple[int, ...]
    sizes: tuple[int, int, int]
    class_names: tuple[str, ...]
    read: Reader
    source: Source | None = None
    generated: bool = False

    def at_hand(self, root: str | os.PathLike[str] | None = None) -> str:
        """Whether `load` needs a network: "embedded", "yes", "can be made" from files at hand, or "no"."""
        if self.source is None:
            return "embedded"
        sources_there = len(locate(self.source, root)) == len(self.source.files)
        if not self.generated:
            return "yes" if sources_there else "no"
        folders = search_folders(data_root(root), (variants.FOLDER,))
        pattern = f"{self.name}-seed*-v{variants.FORMAT}.npz"
        if any(True for folder in folders for _ in folder.glob(pattern)):
            return "yes"
        return "can be made" if sources_there else "no"


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    download: bool = True,
) -> DataSet:
    """Read a data set into memory; make or download it if need be.

    Args:
        name: one of `names()`.
        root: where its files are, as `root/<set>/<file>` or `root/<file>`, and where it is put; by default
            `$SEPGCONV_DATA`, else the user's cache.
        seed: of the sets that are made from MNIST; the others always split the same way.
        download: whether missing files may be downloaded.

    Raises:
        ValueError: the name is unknown, or a file is damaged.
        DataUnavailable: files are missing; the message says which, and where to put them.
    """
    found = entry(name)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    data_root(root)  # a file in its place is an error for embedded sets, too
    train, valid, test = found.read(root, seed, download)
    sizes = (len(train), len(valid), len(test))
    if sizes != found.sizes:
        raise ValueError(f"data set {name!r} must have {found.sizes} images, found {sizes}")
    return DataSet(name, len(found.class_names), train, valid, test)


def names() -> tuple[str, ...]:
    """The data sets there are."""
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """What is known of a data set by its name."""
    if name not in ENTRIES:
        near = difflib.get_close_matches(name, ENTRIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"name must be one of {', '.join(ENTRIES)}, got {name!r}{hint}")
    return ENTRIES[name]


def _read_embedded(root: str | os.PathLike[str] | None, seed: int, download: bool) -> Splits:
    from .embedded import read  # here, for that module is also run as a script

    return read()


def _read_volumes(root: str | os.PathLike[str] | None, seed: int, download: bool) -> Splits:
    from .synthetic import read_volumes

    return read_volumes()


def _read_signals(root: str | os.PathLike[str] | None, seed: int, download: bool) -> Splits:
    from .synthetic import read_signals

    return read_signals(seed=seed)


_DIGITS = tuple("0123456789")
_KINDS = ("rising chirp", "falling chirp", "decaying pulse", "growing pulse", "lone pulse", "pair of pulses")
_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)

ENTRIES = {
    e.name: e
    for e in (
        Entry("digits", _GREY, (4_500, 500, 1_000), _DIGITS, _read_embedded),
        Entry("mnist", _GREY, (55_000, 5_000, 10_000), _DIGITS, mnist.read, mnist.SOURCE),
        *(
            Entry(v.name, _GREY, (10_000, 2_000, 50_000), _DIGITS, v.read, mnist.SOURCE, generated=True)
            for v in variants.VARIANTS
        ),
        *(
            Entry(
                f"{v.name}-selection",
                _GREY,
                (10_000, 2_000, variants.SELECTION),
                _DIGITS,
                partial(v.read, selection=variants.SELECTION),
                mnist.SOURCE,
                generated=True,
            )
            for v in variants.VARIANTS
        ),
        *(
            Entry(
                name, (1, size, size), (stir.COUNT, stir.COUNT, stir.COUNT), _DIGITS, read, mnist.SOURCE, generated=True
            )
            for name, size, read in (
                (stir.NAME, stir.CANVAS, stir.read),
                (stir.HALF, stir.CANVAS // 2, stir.read_half),
            )
        ),
        Entry("mnist-rot-original", _GREY, (10_000, 2_000, 50_000), _DIGITS, amat.read, amat.SOURCE),
        Entry(
            "cifar10",
            _COLOUR,
            (45_000, 5_000, 10_000),
            cifar.CIFAR10_CLASSES,
            cifar.CIFAR10.read,
            cifar.CIFAR10.source,
        ),
        Entry(
            "cifar100",
            _COLOUR,
            (45_000, 5_000, 10_000),
            tuple(str(i) for i in range(100)),
            cifar.CIFAR100.read,
            cifar.CIFAR100.source,
        ),
        Entry("digits3d", (1, 16, 16, 16), (4_500, 500, 1_000), _DIGITS, _read_volumes),
        Entry("signals", (1, 128), (3_000, 600, 1_200), _KINDS, _read_signals),
        Entry(
            first_galaxies.NAME,
            (1, first_galaxies.SIZE, first_galaxies.SIZE),
            (1_405, 353, 400),
            first_galaxies.CLASSES,
            first_galaxies.read,
            first_galaxies.SOURCE,
        ),
        Entry("galaxy10", (3, 69, 69), (17_429, 2_178, 2_178), galaxy10.CLASSES, galaxy10.read, galaxy10.SOURCE),
    )
}
