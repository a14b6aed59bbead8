"""A folder of images as a data set: found, decoded, divided, and described in words."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

import numpy as np
import torch
from torch import Tensor

from ..dataset import Normalised, Split
from ..image_files import Framing, Resize
from ..places import data_root, output_folder
from .layout import SHOWN, Layout, Sample, find
from .splits import PARTS, assign
from .store import Entry, Store, headers, open_store

CACHE = "folders"
KINDS_OF_NOTES = (
    (r"^\d+×\d+ to", "scaled to"),
    (r"^middle (\S+) of .*", r"only the middle \1 pixels are used"),
    (r"^cropped from .*", "cropped to the square in the middle"),
    (r"^(dark|nothing to see): .*", r"\1"),
)
LARGEST, SMALLEST, STEP = 64, 16, 4  # of the size that is chosen: the models halve it twice


@dataclass(frozen=True)
class FolderOptions:
    """How a folder is read; see `sepgconv.training.Images`."""

    size: int | None = None
    channels: int | None = None
    resize: Resize = "pad"
    crop: int | None = None
    valid: float = 0.15
    test: float = 0.15
    split_seed: int = 0
    group: str | None = None
    skip_bad: bool = False


DEFAULTS = FolderOptions()


@dataclass(frozen=True, eq=False)
class StoredSplit:
    """As `Split`, with images that stay on disk until they are asked for.

    Shapes:
        images `(n, c, y, x)`, labels `(n,)`
    """

    stored: np.ndarray
    rows: np.ndarray
    labels: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def pixels(self, index: Tensor | slice) -> Tensor:
        """The images of an index, as uint8."""
        return torch.from_numpy(self.stored[self.rows[index.numpy() if isinstance(index, Tensor) else index]])

    def take(self, index: Tensor) -> StoredSplit:
        """The images that an index tensor or a mask names, still on disk."""
        return StoredSplit(self.stored, self.rows[index.numpy()], self.labels[index])

    def loaded(self) -> Split:
        """All of it in memory."""
        return Split(self.pixels(slice(None)), self.labels)


@dataclass(frozen=True)
class Folder(Normalised[StoredSplit]):
    """A data set out of a folder.

    Args:
        name: the folder's.
        class_names: by label.
        framing: of the images.
        train: what is fitted, and what `mean` and `std` are computed from.
        valid: what weights are chosen by.
        test: what is reported, once.
        digest: of all files' content, classes and parts.
        remarks: what a user should know about what was read, a line each.
        warnings: what a user should do something about.
    """

    name: str
    class_names: tuple[str, ...]
    framing: Framing
    train: StoredSplit
    valid: StoredSplit
    test: StoredSplit
    digest: str
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def classes(self) -> int:
        """How many classes."""
        return len(self.class_names)

    @property
    def train_and_valid(self) -> StoredSplit:
        """For a last run, when all choices are made; still on disk."""
        rows = np.concatenate([self.train.rows, self.valid.rows])
        return StoredSplit(self.train.stored, rows, torch.cat([self.train.labels, self.valid.labels]))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.framing.shape


def read_folder(folder: str | Path, options: FolderOptions = DEFAULTS, *, root: str | None = None) -> Folder:
    """Reads a folder of images, or what a CSV names.

    Pixels are decoded once and kept in `folders/` of the data root (`$SEPGCONV_DATA`, else the user's cache).

    Args:
        folder: the folder or the CSV; a relative one that is not there is looked for in the data root.
        options: how it is read.
        root: the data root.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it has no images, too few, or some that cannot be used.
    """
    path = _located(Path(folder).expanduser(), data_root(root))
    layout = find(path, options.group)
    files = [sample.file for sample in layout.samples]
    name = hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
    cache = output_folder(data_root(root), f"{CACHE}/{name}")
    framing, remarks = _framing(layout, files, options, cache)
    store = open_store(layout.root, files, framing, cache)
    samples, bad = _usable(layout, store, options.skip_bad, path)
    entries = [store.entries[sample.file] for sample in samples]
    units = [sample.group or entry.digest for sample, entry in zip(samples, entries, strict=True)]
    parts = assign(samples, units, valid=options.valid, test=options.test, seed=options.split_seed)
    numbers = {label: number for number, label in enumerate(layout.classes)}
    splits = {}
    for part in PARTS:
        chosen = [i for i, of in enumerate(parts) if of == part]
        rows = np.array([entries[i].row for i in chosen], dtype=np.int64)
        labels = torch.tensor([numbers[samples[i].label] for i in chosen])
        splits[part] = StoredSplit(store.pixels, rows, labels)
    return Folder(
        name=path.name,
        class_names=layout.classes,
        framing=framing,
        **splits,
        digest=_digest(samples, entries, parts),
        remarks=(*layout.remarks, *remarks, *bad, *_said(layout, samples, entries, parts)),
        warnings=_leaks(samples, entries, parts),
    )


def _located(path: Path, root: Path) -> Path:
    return root / path if not path.exists() and not path.is_absolute() and (root / path).exists() else path


def _framing(layout: Layout, files: list[str], options: FolderOptions, cache: Path) -> tuple[Framing, list[str]]:
    """The shape of the images: as was asked for, else as the files are."""
    size, channels, remarks = options.size, options.channels, []
    if size is None or channels is None:
        found = headers(layout.root, files, cache)
        if channels is None:
            colour = sum(not grey for _, _, grey in found.values())
            channels = 3 if colour else 1
            of = f"{colour:,} of {len(found):,} are in colour" if colour else "all are grey"
            remarks.append(f"channels: {channels}, as {of} (data.channels)")
        if size is None:
            sides = [max(width, height) for width, height, _ in found.values()] or [LARGEST]
            side = min(median_low(sides), options.crop or LARGEST)
            size = min(max(STEP * round(side / STEP), SMALLEST), LARGEST)
            remarks.append(f"size: {size}×{size}, where the files' median is {median_low(sides)} (data.size)")
    return Framing(size, channels, options.resize, options.crop), remarks


def _usable(layout: Layout, store: Store, skip: bool, path: Path) -> tuple[list[Sample], list[str]]:
    """The samples whose files could be decoded; the others are an error, or a remark if they may be skipped."""
    bad = [store.entries[s.file].notes[0] for s in layout.samples if store.entries[s.file].row < 0]
    if not bad:
        return list(layout.samples), []
    listed = "".join(f"\n  {reason}" for reason in bad[:SHOWN])
    more = f"\n  and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    if not skip:
        raise ValueError(
            f"{len(bad)} of {len(layout.samples)} images in {path} cannot be used:{listed}{more}\n"
            "mend them or take them away, or leave them out with --data.skip_bad true"
        )
    good = [sample for sample in layout.samples if store.entries[sample.file].row >= 0]
    if lost := sorted(set(layout.classes) - {sample.label for sample in good}):
        raise ValueError(f"no image of class {lost[0]!r} in {path} can be used:{listed}{more}")
    return good, [f"{len(bad)} of {len(layout.samples)} images are left out:{listed}{more}"]


def _said(layout: Layout, samples: list[Sample], entries: list[Entry], parts: list[str]) -> list[str]:
    """What was done to the files, and how the classes are spread."""
    done = Counter(_in_general(note) for entry in entries for note in entry.notes)
    lines = [f"{count:,} of {len(samples):,} images: {note}" for note, count in done.most_common()]
    counts = Counter(zip((s.label for s in samples), parts, strict=True))
    width = max(map(len, layout.classes))
    for label in layout.classes:
        row = [counts[label, part] for part in PARTS]
        share = row[0] / max(parts.count("train"), 1)
        lines.append(f"{label:<{width}}  " + " / ".join(f"{n:,}" for n in row) + f"  ({share:.0%} of train)")
    of_train = [counts[label, "train"] for label in layout.classes]
    if max(of_train) > 2 * min(of_train):
        lines.append("classes are uneven: balanced accuracy is in the result; --model.class_weights true weighs them")
    return [*lines[: len(done)], f"{len(layout.classes)} classes, images in {' / '.join(PARTS)}:", *lines[len(done) :]]


def _in_general(note: str) -> str:
    """What was done to a file, without the numbers that are the file's own."""
    for pattern, general in KINDS_OF_NOTES:
        note = re.sub(pattern, general, note)
    return note


def _leaks(samples: list[Sample], entries: list[Entry], parts: list[str]) -> tuple[str, ...]:
    """Copies of one image that are in two parts, or under two classes, and groups that are in two parts."""
    copies: defaultdict[str, list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        copies[entry.digest].append(index)
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for sample, part in zip(samples, parts, strict=True):
        if sample.group:
            groups[sample.group].add(part)
    found = []
    for what, of in (("parts", parts), ("classes", [sample.label for sample in samples])):
        twice = [indices for indices in copies.values() if len({of[i] for i in indices}) > 1]
        if twice:
            names = " and ".join(samples[i].file for i in twice[0][:2])
            found.append(f"{len(twice)} images are in two {what}, for example {names}")
    if torn := [group for group, of in groups.items() if len(of) > 1]:
        found.append(f"{len(torn)} groups are in two parts, as the table says, for example {torn[0]!r}")
    return tuple(found)


def _digest(samples: list[Sample], entries: list[Entry], parts: list[str]) -> str:
    """Tells one set of images from another, wherever it lies."""
    lines = (f"{s.file}\0{s.label}\0{p}\0{e.digest}" for s, e, p in zip(samples, entries, parts, strict=True))
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
