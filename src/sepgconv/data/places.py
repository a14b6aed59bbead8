"""Where data lies: the `root` argument, else `$SEPGCONV_DATA`, else the user's cache."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pooch

ENVIRONMENT_VARIABLE = "SEPGCONV_DATA"


def user_cache() -> Path:
    """The folder that the operating system keeps for this user's caches, for this package."""
    return Path(pooch.os_cache("sepgconv"))


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that data is looked for in; it need not exist yet."""
    chosen = root or os.environ.get(ENVIRONMENT_VARIABLE) or user_cache()
    folder = Path(chosen).expanduser().absolute()
    if (file := _file_on_the_way(folder)) is not None:
        where = "" if file == folder else f"{str(folder)!r} in "
        raise ValueError(f"root must be a directory, got {where}{str(file)!r}, which is a file")
    return folder


def existing_root(root: str | os.PathLike[str]) -> Path:
    """The folder that was named, which must be there: data is not to be downloaded to a misspelt place."""
    folder = data_root(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"data.root must be a directory, got {os.fspath(root)!r}, which is not there")
    return folder


def check_outputs(*files: Path, name: str = "output") -> None:
    """Raises an OSError, before hours of work, unless files could be written; makes their folders."""
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _check_not_read_only(file.parent)
            with tempfile.TemporaryFile(dir=file.parent):
                pass
            if file.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{file.name} there is a directory")
            if file.exists():
                _check_not_read_only(file)
        except OSError as error:
            existing = _file_on_the_way(file.parent)
            reason = f"{str(existing)!r} is a file" if existing else error.strerror or error
            raise OSError(f"{name} must be a directory to write to, got {str(file.parent)!r}: {reason}") from error


def _file_on_the_way(folder: Path) -> Path | None:
    """The part of a folder's path that is no folder, if one is."""
    found = next((path for path in (folder, *folder.parents) if path.exists() or path.is_symlink()), None)
    return None if found is None or found.is_dir() else found


def search_folders(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """Every folder that may hold a set's files, in order of preference.

    What could not be written to a read-only root was put into the user's cache, so that is last.
    """
    roots = dict.fromkeys((root, user_cache().absolute()))
    return [base / folder for base in roots for folder in folders]


def output_folder(root: Path, folder: str) -> Path:
    """`root/folder`, made if need be, or its like in the user's cache when root is read-only."""
    problems = []
    for base in dict.fromkeys((root, user_cache().absolute())):
        target = base / folder
        try:
            _check_not_read_only(target)
            target.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=target):
                return target
        except OSError as error:
            problems.append(f"{target} ({error.strerror or error})")
    raise OSError(f"no folder to write data to: {'; '.join(problems)}")


def _check_not_read_only(folder: Path) -> None:
    """Respect a folder without any write permission, which the superuser could write to all the same."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.stat().st_mode & 0o222:
        raise PermissionError(f"{existing} is read-only")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that appears under its name only when whole, and never if writing fails."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
