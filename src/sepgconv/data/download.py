"""Downloads that survive a cut: several mirrors, resumed, checked, and put in place whole."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pooch
from tqdm import tqdm

TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5  # per mirror, each going on where the last was cut
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


class DataUnavailable(FileNotFoundError, ConnectionError):
    """Files are not at hand and could not be downloaded; the message says which, and where to put them."""


@dataclass(frozen=True)
class Remote:
    """A file on the network.

    Args:
        name: the file's name, there and here.
        checksum: of the file as it is downloaded, `"md5:..."` or `"sha256:..."`.
        urls: the mirrors, tried in order.
        holds: the data files that are inside if it is an archive, else the one that it is.
    """

    name: str
    checksum: str
    urls: tuple[str, ...]
    holds: tuple[str, ...]


def fetch(remote: Remote, folder: Path, *, progress: bool = True) -> Path:
    """Download a file into a folder, from the first mirror that has it right.

    The bytes gather in `<name>.part`, which an interrupted download leaves behind and the next one
    goes on from. pooch compares the checksum and renames, so a wrong file never gets the name.

    Raises:
        DataUnavailable: no mirror gave the file; the message lists each with its reason.
    """
    problems = []
    with locked(folder):
        for url in remote.urls:
            downloader = _Resuming(folder / f"{remote.name}.part", progress)
            try:
                return _retrieve(remote, url, folder, downloader)
            except (*NETWORK_ERRORS, ValueError) as error:
                problems.append(f"{url}: {_reason(error)}")
    raise DataUnavailable(f"could not download {remote.name}:\n  " + "\n  ".join(problems))


def _retrieve(remote: Remote, url: str, folder: Path, downloader: _Resuming) -> Path:
    def attempt() -> Path:
        agent = cast(Any, downloader)  # pooch's own annotation of downloaders has the arguments wrong
        return Path(pooch.retrieve(url, remote.checksum, remote.name, folder, downloader=agent))

    try:
        return attempt()
    except ValueError:
        if not downloader.resumed:
            raise
        # The part that was found may have been of another file: this mirror gets one fresh start.
        return attempt()


class _Resuming:
    """A pooch downloader that gathers the bytes in a file of its own, across calls and processes."""

    def __init__(self, part: Path, progress: bool) -> None:
        self.part, self.progress = part, progress
        self.resumed = False

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        self.resumed = _size(self.part) > 0
        for attempt in range(1, ATTEMPTS + 1):
            before = _size(self.part)
            try:
                self.append(url)
                break
            except NETWORK_ERRORS:
                if attempt == ATTEMPTS or _size(self.part) <= before:
                    raise
        self.part.replace(output_file)

    def append(self, url: str) -> None:
        """Add to the part what it lacks."""
        have = _size(self.part)
        headers = {"User-Agent": "sepgconv", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
                raise
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return  # nothing is lacking
            self.part.unlink()
            self.append(url)
            return
        with response:
            if not _continues(response, have):
                have = 0  # the server sends the whole file
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            bar = tqdm(
                desc=self.part.stem,
                initial=have,
                total=total,
                unit="B",
                unit_scale=True,
                disable=None if self.progress else True,
            )
            with bar, self.part.open("ab" if have else "wb") as file:
                while chunk := response.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
        if total is not None and _size(self.part) < total:
            raise ConnectionError(f"cut after {_size(self.part)} of {total} bytes")


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    """Whether a response holds the bytes from `start`, as asked, rather than the whole file."""
    sent = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and sent is not None and int(sent[1]) == start


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time download into a folder: two that append to one part would spoil it."""
    try:
        import fcntl
    except ImportError:  # not on this system; the checksum still guards the result
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
