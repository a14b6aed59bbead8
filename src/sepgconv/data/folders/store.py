"""The pixels of a folder's images, decoded once and kept on disk; what changes is decoded again.

A store is a file of pixels, image after image, and an index that says of which file each is. A file is known by its
size, its times and its number in the file system, so that one that was written again is never mistaken for what it
was. The index is replaced whole and names its pixels, so a process that reads an older one has what it began with.
Checksums tell what was damaged on the disk; it is then made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from ..download import locked
from ..image_files import GREYS, Framing, read_image
from ..places import atomic_write

FORMAT = 2  # of the index
AT_A_TIME = 256  # files whose pixels are in memory while they are decoded
THREADS = min(4, os.cpu_count() or 1)

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Entry:
    """What is known of a file: `row` among the pixels, or -1 and the reason in `notes` if it cannot be used."""

    stamp: Stamp
    row: int
    digest: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    """Decoded images.

    Args:
        pixels: `(rows, c, y, x)`, uint8, in a file that is mapped and not read into memory.
        entries: by file.
    """

    pixels: np.ndarray
    entries: dict[str, Entry]


def open_store(root: Path, files: Sequence[str], framing: Framing, cache: Path, *, progress: bool = True) -> Store:
    """The pixels of files, decoded where that has not been done since they were written.

    Args:
        root: what files are relative to.
        files: their names.
        framing: the shape of the images.
        cache: a folder for the store.
        progress: whether to show a bar while files are decoded, if a person is watching.

    Raises:
        OSError: a file is gone, or there is no space.
    """
    key = hashlib.sha256(json.dumps({**asdict(framing), "format": FORMAT}, sort_keys=True).encode()).hexdigest()[:12]
    index = cache / f"index-{key}.json"
    with locked(cache):  # one process decodes, the others then find it
        stamps = {file: stamp(root / file) for file in files}
        known, old = _read(index, cache, framing)
        if old is not None and known.keys() == stamps.keys() and all(known[f].stamp == stamps[f] for f in stamps):
            return Store(old, known)
        name = f"pixels-{key}-{uuid.uuid4().hex[:12]}.bin"
        entries: dict[str, Entry] = {}
        rows = checksum = 0
        with atomic_write(cache / name) as out:
            for file, entry, pixels in _decoded(root, stamps, framing, known, old, progress):
                if pixels is not None:
                    out.write(content := pixels.tobytes())
                    checksum = zlib.crc32(content, checksum)
                    entry = Entry(entry.stamp, rows, entry.digest, entry.notes)
                    rows += 1
                entries[file] = entry
        found = {f: list(asdict(e).values()) for f, e in entries.items()}
        _write(index, {"format": FORMAT, "pixels": name, "checksum": checksum, "entries": found})
        for left in cache.glob(f"pixels-{key}-*.bin"):
            if left.name != name:
                left.unlink(missing_ok=True)  # who has it mapped keeps it
        return Store(_map(cache / name, rows, framing), entries)


def stamp(path: Path) -> Stamp:
    """What tells one state of a file from another: the time of its last change of any kind cannot be set back."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def headers(root: Path, files: Sequence[str], cache: Path) -> dict[str, tuple[int, int, bool]]:
    """Width, height and whether it is grey, of every file that can be opened; kept on disk as the pixels are."""
    index = cache / f"headers-{FORMAT}.json"
    stamps = {file: stamp(root / file) for file in files}
    known = {file: value for file, value in _json(index).items() if _is_header(value, stamps.get(file))}
    missing = [file for file in files if file not in known]
    if missing:
        with warnings.catch_warnings(), ThreadPoolExecutor(THREADS) as threads:
            warnings.simplefilter("ignore")
            found = threads.map(lambda file: _header(root / file), missing)
            known.update({f: [stamps[f], *header] for f, header in zip(missing, found, strict=True)})
        _write(index, known)
    return {file: (known[file][1], known[file][2], known[file][3]) for file in files if known[file][1]}


def _is_header(value: Any, of: Stamp | None) -> bool:
    """Whether what an index says is of this state of a file, and whole."""
    return of is not None and isinstance(value, list) and len(value) == 4 and value[0] == list(of)


def _header(path: Path) -> tuple[int, int, bool]:
    try:
        with Image.open(path) as image:
            return image.width, image.height, image.mode in GREYS or image.mode[0] in "IF"
    except Exception:  # what cannot be read is named when it is decoded
        return 0, 0, False


def _decoded(
    root: Path,
    stamps: dict[str, Stamp],
    framing: Framing,
    known: dict[str, Entry],
    old: np.ndarray | None,
    progress: bool,
) -> Iterator[tuple[str, Entry, np.ndarray | None]]:
    """Every file with its pixels, copied from an older store or decoded."""
    files = list(stamps)
    fresh = {file for file in files if file not in known or known[file].stamp != stamps[file] or old is None}
    with (
        warnings.catch_warnings(),  # read_image sets filters in every thread; here they are set back
        ThreadPoolExecutor(THREADS) as threads,
        tqdm(total=len(fresh), desc="reading images", unit="image", disable=None if progress else True) as bar,
    ):
        for start in range(0, len(files), AT_A_TIME):
            some = files[start : start + AT_A_TIME]
            jobs = {f: threads.submit(_decode, root / f, stamps[f], framing) for f in some if f in fresh}
            for file in some:
                if file in jobs:
                    yield file, *jobs[file].result()
                    bar.update()
                else:
                    entry = known[file]
                    yield file, entry, old[entry.row] if entry.row >= 0 and old is not None else None


def _decode(path: Path, before: Stamp, framing: Framing) -> tuple[Entry, np.ndarray | None]:
    try:
        pixels, notes = read_image(path, framing)
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except ValueError as error:
        return Entry(before, -1, "", (str(error),)), None
    if stamp(path) != before:
        raise ValueError(f"{path} changed while it was read; begin again when the folder is at rest")
    return Entry(before, 0, digest, notes), pixels.numpy()


def _read(index: Path, cache: Path, framing: Framing) -> tuple[dict[str, Entry], np.ndarray | None]:
    """The store as it was left; nothing if there is none, or if it is damaged."""
    try:
        text = _json(index)
        if text.get("format") != FORMAT:
            return {}, None
        entries = {f: Entry(tuple(s), r, d, tuple(n)) for f, (s, r, d, n) in text["entries"].items()}  # pyright: ignore
        rows = sum(entry.row >= 0 for entry in entries.values())
        if {entry.row for entry in entries.values()} - {-1} != set(range(rows)):
            raise ValueError(f"{index} names other rows than there are")
        pixels = _map(cache / text["pixels"], rows, framing)
        if _checksum(pixels) != text["checksum"]:
            raise ValueError(f"{cache / text['pixels']} is damaged")
        return entries, pixels
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, None


def _write(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file that `_json` reads, behind a line with its checksum."""
    text = json.dumps(content).encode(errors="surrogateescape")
    with atomic_write(path) as out:
        out.write(f"{zlib.crc32(text)}\n".encode() + text)


def _json(path: Path) -> dict[str, Any]:
    """What `_write` has written; nothing if it is not there or damaged."""
    try:
        checksum, text = path.read_bytes().split(b"\n", 1)
        if int(checksum) != zlib.crc32(text):
            return {}
        found = json.loads(text.decode(errors="surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _checksum(pixels: np.ndarray) -> int:
    """Of all rows, some at a time: they may not fit into memory."""
    found = 0
    for start in range(0, len(pixels), AT_A_TIME):
        found = zlib.crc32(pixels[start : start + AT_A_TIME].tobytes(), found)
    return found


def _map(path: Path, rows: int, framing: Framing) -> np.ndarray:
    shape = (rows, *framing.shape)
    if path.stat().st_size != int(np.prod(shape)):
        raise ValueError(f"{path} is cut short")
    return np.memmap(path, np.uint8, "r", shape=shape) if rows else np.zeros(shape, np.uint8)
