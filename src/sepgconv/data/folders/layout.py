"""Which images a folder or a table names, and what it says of each: class, part, group."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".avif", ".jp2", ".pgm", ".ppm", ".pnm")
)
PARTS = {"train": "train", "training": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}
TABLES = (".csv", ".tsv")
COLUMNS = {"file": ("file", "filename", "path", "image"), "label": ("label", "class"), "part": ("split", "part")}
SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Sample:
    """An image file, and what is said of it.

    Args:
        file: relative to the root, with forward slashes.
        label: the name of its class.
        part: `train`, `valid`, `test`, or None if it is not said.
        group: what must not be divided between parts, or None.
    """

    file: str
    label: str
    part: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Layout:
    """What was found.

    Args:
        root: what the samples' files are relative to.
        samples: in order of their names.
        remarks: what was left out, and what else one should know.
    """

    root: Path
    samples: tuple[Sample, ...]
    remarks: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        return tuple(sorted({sample.label for sample in self.samples}))


def find(folder: Path, group: str | None = None) -> Layout:
    """The images of a folder with a subfolder per class, one with parts that have these, or a CSV.

    Args:
        folder: the folder, or a `.csv` (`.tsv`) file with the columns file and label, and perhaps split. Files are
            named relative to where the table is.
        group: the column of the table whose values are kept together, such as a patient or a field of view.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: there are no images or fewer than two classes, or the table cannot be understood.
    """
    if folder.is_file() and folder.suffix.lower() in TABLES:
        layout = _table(folder, group)
    elif group is not None:
        raise ValueError(f"group names a column of a table, but data.folder is no CSV: got {group!r} and {folder}")
    elif folder.is_dir():
        layout = _folder(folder)
    elif folder.exists():
        raise ValueError(f"data.folder must be a folder, or a table ({', '.join(TABLES)}), got {str(folder)!r}")
    else:
        raise FileNotFoundError(f"data.folder must be a folder or a CSV, got {str(folder)!r}, which is not there")
    _check(layout, folder)
    return layout


def images_below(folder: Path) -> list[Path]:
    """The image files in a folder and in those inside of it, by the endings of their names, in order."""
    return sorted(path for path in _files(folder) if path.suffix.lower() in SUFFIXES)


def _files(folder: Path) -> Iterator[Path]:
    """All files that are not hidden; links are followed, but not in circles."""
    seen: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not _hidden(name))
        yield from (Path(where, name) for name in files if not _hidden(name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _folder(folder: Path) -> Layout:
    inside = sorted(path for path in folder.iterdir() if not _hidden(path.name))
    folders = [path for path in inside if path.is_dir()]
    parts = {path: PARTS[path.name.lower()] for path in folders if path.name.lower() in PARTS}
    remarks = []
    if "train" in parts.values():
        if len(set(parts.values())) < len(parts):
            names = ", ".join(path.name for path in parts)
            raise ValueError(f"{folder} has two folders for one part: {names}")
        if others := [path.name for path in folders if path not in parts]:
            remarks.append(f"left out: the folder {_names(others, '/')} beside train")
        samples = [sample for path, part in parts.items() for sample in _classes(folder, path, part, remarks)]
    else:
        samples = _classes(folder, folder, None, remarks)
    return Layout(folder, tuple(sorted(samples, key=lambda sample: sample.file)), tuple(remarks))


def _classes(root: Path, folder: Path, part: str | None, remarks: list[str]) -> list[Sample]:
    """The images of the subfolders, each a class."""
    samples: list[Sample] = []
    loose = [path.name for path in folder.iterdir() if path.is_file() and not _hidden(path.name)]
    if images := [name for name in loose if Path(name).suffix.lower() in SUFFIXES]:
        remarks.append(f"left out: {_names(images)} in {folder}, in the folder of no class")
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not _hidden(path.name)):
        files = sorted(_files(path))
        images = [file for file in files if file.suffix.lower() in SUFFIXES]
        if len(images) < len(files):
            kinds = Counter(file.suffix or file.name for file in files if file.suffix.lower() not in SUFFIXES)
            remarks.append(f"left out: {sum(kinds.values())} files in {path} that are no images ({_names(kinds)})")
        if not images:
            raise ValueError(f"the folder {path} has no images: fill it or take it away, as a folder is a class")
        samples += [Sample(file.relative_to(root).as_posix(), path.name, part) for file in images]
    return samples


def _table(path: Path, group: str | None) -> Layout:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start})") from error
    try:
        return _rows(path, text, group)
    except csv.Error as error:
        raise ValueError(f"{path} is not a table: {error}") from error


def _rows(path: Path, text: str, group: str | None) -> Layout:
    table = io.StringIO(text, newline="")  # a quoted value may hold line breaks, which are part of it
    reader = csv.DictReader(table, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    names = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = names
    found = {key: [name for name in names if name.lower() in known] for key, known in COLUMNS.items()}
    if group is not None:
        found["group"] = [name for name in names if name == group]
    for key, several in found.items():
        if len(several) > 1:
            raise ValueError(f"{path} has {len(several)} columns for the {key}: {', '.join(several)}; leave one")
    columns = {key: next(iter(found[key]), None) for key in COLUMNS}
    for key in ("file", "label"):
        if columns[key] is None:
            allowed = " or ".join(COLUMNS[key])
            raise ValueError(f"{path} must have a column {allowed}, found {', '.join(names) or 'nothing'}")
    if group is not None and group not in names:
        raise ValueError(f"group must be a column of {path} ({', '.join(names)}), got {group!r}")
    samples: list[Sample] = []
    lines: dict[str, int] = {}
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if any(value.strip() for value in row.get(None) or ()):
            raise ValueError(f"{where}: there are more values than columns; one that holds a comma must be quoted")
        sample = _row(row, columns, group, where)
        if sample.file in lines:
            first = lines[sample.file]
            raise ValueError(f"{path} names {sample.file} twice, in lines {first} and {reader.line_num}")
        lines[sample.file] = reader.line_num
        samples.append(sample)
    root = path.absolute().parent
    if missing := [sample.file for sample in samples if not (root / sample.file).is_file()]:
        raise ValueError(f"{path} names {len(missing)} files that are not in {root}: {_names(missing)}")
    said = sum(sample.part is not None for sample in samples)
    if 0 < said < len(samples):
        raise ValueError(f"{path} says the {columns['part']} of {said} files only, of {len(samples)}")
    return Layout(root, tuple(sorted(samples, key=lambda sample: sample.file)))


def _row(row: Mapping[str, str | None], columns: Mapping[str, str | None], group: str | None, where: str) -> Sample:
    values = {key: (row.get(name) or "").strip() if name else "" for key, name in {**columns, "group": group}.items()}
    for key in ("file", "label", *(("group",) if group else ())):
        if not values[key]:
            raise ValueError(f"{where}: there is no {key}")
    part = PARTS.get(values["part"].lower())
    if values["part"] and part is None:
        raise ValueError(f"{where}: {columns['part']} must be one of {', '.join(PARTS)}; got {values['part']!r}")
    return Sample(Path(values["file"]).as_posix(), values["label"], part, values["group"] or None)


def _check(layout: Layout, folder: Path) -> None:
    if not layout.samples:
        left = f" ({'; '.join(layout.remarks)})" if layout.remarks else ""
        raise ValueError(f"{folder} has no images, in a subfolder per class or in train/, valid/ and test/{left}")
    if len(layout.classes) < 2:
        raise ValueError(f"{folder} has one class, {layout.samples[0].label!r}; there must be at least two")
    trained = {sample.label for sample in layout.samples if sample.part in ("train", None)}
    for part in ("valid", "test"):
        if unknown := sorted({s.label for s in layout.samples if s.part == part} - trained):
            raise ValueError(
                f"labels of {part} must be those of train ({_names(sorted(trained))}), found {_names(unknown)} as well"
            )


def _names(names: list[str] | Counter[str], end: str = "") -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(f"{name}{end}" for name in listed[:SHOWN]) + more
