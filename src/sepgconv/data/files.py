"""From the name of a data file to its path: looked for, unpacked or downloaded."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import pooch

from .download import DataUnavailable, Remote, fetch
from .places import atomic_write, data_root, output_folder, search_folders

ARCHIVES = (".tar.gz", ".zip")


@dataclass(frozen=True)
class Source:
    """The files that a data set is read from.

    Args:
        name: the data set's, as `sepgconv data prepare` takes it.
        folders: where under a root they may lie; downloads go to the first.
        remotes: what to download to have them all.
    """

    name: str
    folders: tuple[str, ...]
    remotes: tuple[Remote, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all data files."""
        return tuple(file for remote in self.remotes for file in remote.holds)


def locate(source: Source, root: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """The paths of those data files that are at hand, plain or gzipped, by name."""
    folders = search_folders(data_root(root), source.folders)
    found = {file: _first_of(folders, (file, f"{file}.gz")) for file in source.files}
    return {file: path for file, path in found.items() if path is not None}


def obtain(source: Source, root: str | os.PathLike[str] | None = None, download: bool = True) -> dict[str, Path]:
    """The paths of all data files by name, after unpacking or downloading what is missing.

    Raises:
        DataUnavailable: files are missing and `download` is false or did not work.
    """
    base = data_root(root)
    for remote in _lacking(source, base):
        local = _first_of(search_folders(base, source.folders), (remote.name,))
        if local is None:
            local = _download(source, remote, base, download)
        else:
            algorithm, _, _ = remote.checksum.partition(":")
            found = f"{algorithm}:{pooch.file_hash(str(local), alg=algorithm)}"
            if found != remote.checksum:
                raise damaged(local, remote.checksum, found)
        if remote.name.endswith(ARCHIVES):
            _unpack(local, remote.holds, output_folder(base, source.folders[0]))
    return locate(source, base)


def read_whole(path: Path) -> bytes:
    """A data file's content, gunzipped if its name ends in `.gz`; a file cut short is an error."""
    with readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read()


def check_digest(path: Path, content: bytes, sha256: str | None) -> None:
    """Raise if a checksum is known and a file's content has another.

    It is of the unpacked content, so that a file which someone packed anew is accepted.
    """
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise damaged(path, f"content of sha256 {sha256}", found)


def damaged(path: Path, expected: str, found: str) -> ValueError:
    """The error for a file that is not what it should be."""
    return ValueError(f"data file {path} is damaged or not the right one: expected {expected}, found {found}")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the many errors of truncated or foreign compressed files into one that names the file."""
    try:
        yield
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        lzma.LZMAError,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as e:
        raise damaged(path, "a whole compressed file", f"{path.stat().st_size} bytes that end in: {e}") from e


def _first_of(folders: Iterable[Path], names: tuple[str, ...]) -> Path | None:
    paths = (folder / name for folder in folders for name in names)
    return next((path for path in paths if path.is_file()), None)


def _lacking(source: Source, base: Path) -> list[Remote]:
    """What would have to be downloaded to have all files."""
    found = locate(source, base)
    return [remote for remote in source.remotes if not all(file in found for file in remote.holds)]


def _download(source: Source, remote: Remote, base: Path, download: bool) -> Path:
    folder = output_folder(base, source.folders[0]) if download else base / source.folders[0]
    try:
        if not download:
            raise DataUnavailable("not downloaded, as asked, from:\n  " + "\n  ".join(remote.urls))
        return fetch(remote, folder)
    except DataUnavailable as error:
        found = locate(source, base)
        missing = [file for file in source.files if file not in found]
        raise DataUnavailable(
            f"data set {source.name!r} lacks {', '.join(missing)}: "
            f"not in {', '.join(str(f) for f in search_folders(base, source.folders))}.\n{error}\n"
            f"Put {', '.join(r.name for r in _lacking(source, base))} into {folder}, "
            f"or run, where there is a network,\n  sepgconv data prepare {source.name} --root {base}"
        ) from None


def _unpack(archive: Path, files: Iterable[str], folder: Path) -> None:
    """Copy the named files out of an archive, each put in place whole."""
    with readable(archive):
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                members = {PurePosixPath(name).name: name for name in opened.namelist()}
                _copy(archive, files, members, folder, lambda name: opened.open(name))
        else:
            with tarfile.open(archive) as opened:
                members = {PurePosixPath(m.name).name: m.name for m in opened.getmembers() if m.isfile()}
                _copy(archive, files, members, folder, opened.extractfile)


def _copy(
    archive: Path,
    files: Iterable[str],
    members: Mapping[str, str],
    folder: Path,
    extract: Callable[[str], IO[bytes] | None],
) -> None:
    for file in files:
        inside = extract(members[file]) if file in members else None
        if inside is None:
            raise damaged(archive, f"an archive with {file}", f"only {', '.join(sorted(members))}")
        with inside, atomic_write(folder / file) as copy:
            shutil.copyfileobj(inside, copy)
