"""Radio galaxies of the FIRST survey in four shapes (Griese et al.), from the package `firstgalaxydata`.

The images may be used for scholarly, educational and private non-commercial purposes, so they are fetched by the user
and never shipped. What is made of the package is a folder of PNG files, each once, and tables that divide them:
`split.csv` as the authors do (200 images to test), `fold0.csv` to `fold4.csv` for cross-validation (400 others),
and `catalogues.csv`, where all images to test are from a catalogue of their own.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pooch

from .dataset import Split
from .download import DataUnavailable, Remote, fetch
from .files import Source, damaged, locate, readable
from .places import atomic_write, data_root, output_folder, search_folders

NAME, FOLDER = "first-galaxies", "first-galaxies"
CLASSES = ("Bent", "Compact", "FRI", "FRII")
IMAGES = 2_158
SIZE, CROP = 32, 96  # pixels of an image, and of the file's middle that it shows, where the galaxy is
APART = "Gendre"  # the catalogue that is tested on in `catalogues.csv`: all four classes are in it, and in the others
FOLDS = 5
TABLES = ("split.csv", *(f"fold{k}.csv" for k in range(FOLDS)), "catalogues.csv")

REQUIREMENT = "firstgalaxydata==0.2.1"
WHEEL = "firstgalaxydata-0.2.1-py3-none-any.whl"
WHEEL_SHA256 = "5bb01ee0cc2d9f47a2f3b4dfa1282fe9f2eb94cfc1967840e60f6dc184c7a82b"
PNGS, HELD_OUT = "galaxy_data.zip", "galaxy_data_crossvalid_test_h5.zip"
ARCHIVES = {
    PNGS: "d04a5d45a7a84989e9aed31da8a0adb0a9cce3252bce92ed7585efbc8c24f42a",
    "galaxy_data_crossvalid_0_h5.zip": "4d8309acd767f83d37e6c5310615d401e7e97f22cfa96082143cef4965920391",
    "galaxy_data_crossvalid_1_h5.zip": "39e6b24a9c787e7fd9d95ce465ca10714987830005957c581695c16c0979e4b6",
    "galaxy_data_crossvalid_2_h5.zip": "4022d81ce392c65bcfa8253b77ecf9d7cc50e2bbe2fcf29b38560da81013e24f",
    "galaxy_data_crossvalid_3_h5.zip": "79c82451d97cf3a59c02107e25dd72c8b5b42ab23ab115af690cbb4d77bbfbc8",
    "galaxy_data_crossvalid_4_h5.zip": "31efad6c49579b9435fb889ab950c0e20937cc90b15b40ee4839c9513adbb8db",
    HELD_OUT: "66970c76097d24047821f5c0f1b357bff246a5a424ca2d308f47db7b6d10dc91",
}
SOURCE = Source(
    NAME,
    (FOLDER,),
    (
        *(
            Remote(name, f"sha256:{sha256}", (f"https://zenodo.org/records/7689127/files/{name}",), ())
            for name, sha256 in ARCHIVES.items()
        ),
        Remote(WHEEL, f"sha256:{WHEEL_SHA256}", (), TABLES),
    ),
)


def read(root: str | os.PathLike[str] | None, seed: int, download: bool) -> tuple[Split, Split, Split]:
    """1,405 / 353 / 400: the first fold, 32×32 pixels of the middle of each image."""
    from .folders import FolderOptions, read_folder

    found = read_folder(prepare(root, download) / "fold0.csv", FolderOptions(SIZE, 1, crop=CROP), root=_text(root))
    return found.train.loaded(), found.valid.loaded(), found.test.loaded()


def prepare(root: str | os.PathLike[str] | None = None, download: bool = True) -> Path:
    """The folder with images and tables, made from the package if it is not there.

    Raises:
        DataUnavailable: the package is not at hand and cannot be had.
    """
    base = data_root(root)
    if len(at_hand := locate(SOURCE, base)) == len(SOURCE.files):
        return next(iter(at_hand.values())).parent
    if not download and _beside(base) is None:
        raise _unavailable(base, "not downloaded, as asked")
    folder = output_folder(base, FOLDER)
    with _archives(base, folder) as archives:
        parts = _unpack(archives[PNGS], folder / "images")
        tables = {"split.csv": parts, **_folds(archives)}
    tables["catalogues.csv"] = {file: "test" if _catalogue(file) == APART else "train" for file in parts}
    for name in TABLES:
        if unknown := tables[name].keys() ^ parts.keys():
            raise damaged(folder / name, "the same images in all tables", f"{len(unknown)} that are not in some")
        _write(folder / name, tables[name])
    return folder


@contextmanager
def _archives(base: Path, folder: Path) -> Iterator[dict[str, Path]]:
    """The zip files of the package by name: out of its wheel, which pip fetches, or from where they were published."""
    with tempfile.TemporaryDirectory() as temporary:
        wheel = _beside(base) or _by_pip(Path(temporary))
        if wheel is None:
            try:
                yield {remote.name: fetch(remote, folder) for remote in SOURCE.remotes if remote.urls}
            except DataUnavailable as error:
                raise _unavailable(base, f"pip could not fetch {REQUIREMENT}, and:\n{error}") from None
            return
        if (found := pooch.file_hash(str(wheel))) != WHEEL_SHA256:
            raise damaged(wheel, f"sha256 {WHEEL_SHA256}", found)
        with readable(wheel), zipfile.ZipFile(wheel) as opened:
            for name in ARCHIVES:
                opened.extract(f"firstgalaxydata/{name}", temporary)
        yield {name: Path(temporary, "firstgalaxydata", name) for name in ARCHIVES}


def _beside(base: Path) -> Path | None:
    """The package's wheel, if somebody has put it where the data belongs."""
    places = (folder / WHEEL for folder in search_folders(base, (FOLDER, ".")))
    return next((path for path in places if path.is_file()), None)


def _by_pip(folder: Path) -> Path | None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError):
        return None
    return folder / WHEEL if (folder / WHEEL).is_file() else None


def _unavailable(base: Path, reason: str) -> DataUnavailable:
    return DataUnavailable(
        f"data set {NAME!r} is not in {base / FOLDER}: {reason}\nPut {WHEEL} of PyPI into {base / FOLDER}, or run, "
        f"where there is a network,\n  sepgconv data prepare {NAME} --root {base}"
    )


def _unpack(archive: Path, target: Path) -> dict[str, str]:
    """Writes every image once, as `images/CLASS/NAME.png`; returns the part of each by its file."""
    parts: dict[str, str] = {}
    with readable(archive), zipfile.ZipFile(archive) as opened:
        for name in sorted(opened.namelist()):
            _, part, label, file = (*PurePosixPath(name).parts, "", "", "")[:4]
            if not file.endswith(".png") or part == "all":  # which repeats all others
                continue
            (target / label).mkdir(parents=True, exist_ok=True)
            with opened.open(name) as inside, atomic_write(target / label / file) as copy:
                shutil.copyfileobj(inside, copy)
            parts[f"images/{label}/{file}"] = part
    if len(parts) != IMAGES or {PurePosixPath(file).parts[1] for file in parts} != set(CLASSES):
        raise damaged(archive, f"{IMAGES} images of {', '.join(CLASSES)}", f"{len(parts)} images")
    return parts


def _folds(archives: dict[str, Path]) -> dict[str, dict[str, str]]:
    """The parts of cross-validation, which only the HDF5 files of the package tell."""
    held_out = _parts(archives[HELD_OUT])
    folds = (_parts(archives[f"galaxy_data_crossvalid_{k}_h5.zip"]) for k in range(FOLDS))
    return {f"fold{k}.csv": {**fold, **held_out} for k, fold in enumerate(folds)}


def _parts(archive: Path) -> dict[str, str]:
    import h5py  # slow to import, and only this needs it

    with (
        readable(archive),
        zipfile.ZipFile(archive) as opened,
        tempfile.TemporaryDirectory() as temporary,
        h5py.File(opened.extract(opened.namelist()[0], temporary)) as file,
    ):
        entries: list[Any] = [file[key] for key in file]
        return {
            f"images/{entry['Img'].attrs['Filepath_literature']}": entry["Split_literature"].asstr()[()]
            for entry in entries
        }


def _catalogue(file: str) -> str:
    """Out of a file's name, `RA_DEC_LABEL_CATALOGUE.png`; one has an underscore itself."""
    return PurePosixPath(file).stem.split("_", 3)[3]


def _write(path: Path, parts: dict[str, str]) -> None:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(("file", "label", "split", "catalogue"))
    table.writerows((f, PurePosixPath(f).parts[1], parts[f], _catalogue(f)) for f in sorted(parts))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def _text(root: str | os.PathLike[str] | None) -> str | None:
    return None if root is None else os.fspath(root)
