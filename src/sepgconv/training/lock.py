"""One run per directory: a file that says who holds it, with a heartbeat that says that they are alive.

Directories may lie on storage that several machines share, so this rests on nothing but that whoever has made a file
sees the files that were made before. Every run has a file of its own name: it makes it, and then looks whether there is
another. Of two runs at least one sees the other's, and no one ever removes a file in the place of another.

No clock is compared with another one. A holder on this machine is dead if its process is. A holder elsewhere is dead if
its heartbeat stands still for `PATIENCE` seconds of this process's own clock.
"""

import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info

from .processes import alive, place, started

LOCKS = "run-*.lock"
BEAT = 5.0  # seconds between two beats
PATIENCE = 40.0  # seconds without a beat, after which a holder elsewhere counts as dead
GRACE = 2.0  # seconds that a holder on this machine is given to end, as one that was just killed does
POLL = 0.2  # seconds between two looks
DIGITS = 12  # of the beat, which is written in place


@dataclass(frozen=True)
class Claim:
    """A run's hold on its directory; a plain value, so that it travels to other processes of the run.

    Args:
        path: the run's own file.
    """

    path: Path

    def check(self) -> None:
        """Raises an OSError if the directory is no longer this run's, which must then write nothing more."""
        try:
            self.path.stat()
        except FileNotFoundError as error:
            folder = self.path.parent
            others = ", ".join(_describe(_parse(_read(path))) for path in folder.glob(LOCKS)) or "another run"
            raise OSError(
                f"{folder} was taken over by {others}, as this run gave no sign of life, or its {self.path.name} was "
                "deleted; this run stops and writes nothing more"
            ) from error
        except OSError:
            pass  # storage that does not answer; a write will say more


@contextmanager
def held(folder: Path) -> Iterator[Claim]:
    """Holds a directory for one run; that of a dead run is taken over.

    Raises:
        ValueError: another run holds it; the message says which and what to do.
    """
    descriptor, offset, claim = _take(folder)
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(descriptor, offset, ended), name="heartbeat", daemon=True)
    try:
        heart.start()
        yield claim
    finally:
        ended.set()
        if heart.ident is not None:
            heart.join()
        _drop(descriptor, claim.path)


def _beat(descriptor: int, offset: int, ended: threading.Event) -> None:
    count = 0
    while not ended.wait(BEAT):
        count += 1
        with suppress(OSError):
            os.lseek(descriptor, offset, os.SEEK_SET)
            os.write(descriptor, f"{count:0{DIGITS}}".encode())
            os.fsync(descriptor)


def _take(folder: Path) -> tuple[int, int, Claim]:
    """A file of this run's, when it is the only one of a living run; its descriptor, and where in it the beat is."""
    while True:
        dead = {path: why for path in folder.glob(LOCKS) if (why := _wait(path)) is not None}
        try:
            descriptor, offset, path = _announce(folder)
        except FileNotFoundError:  # who holds the directory by now has tidied up
            if not folder.is_dir():
                raise
            continue
        try:
            others = set(folder.glob(LOCKS)) - dead.keys()
            if others == {path}:
                for gone, why in dead.items():
                    rank_zero_info(f"{folder}: taking over from {_describe(_parse(_read(gone)))}: {why}")
                    gone.unlink(missing_ok=True)
                for leftover in folder.glob(f".{LOCKS}"):
                    leftover.unlink(missing_ok=True)
                return descriptor, offset, Claim(path)
        except BaseException:
            _drop(descriptor, path)
            raise
        _drop(descriptor, path)
        time.sleep(random.uniform(0, GRACE / 4))  # others have done the same, and one must be first


def _announce(folder: Path) -> tuple[int, int, Path]:
    """Makes this run's file, which has its whole content when it appears."""
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "place": place(),
        "started": started(os.getpid()),
    }
    head = (json.dumps(holder) + "\n").encode()
    path = folder / LOCKS.replace("*", uuid.uuid4().hex)
    temporary = path.with_name(f".{path.name}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        os.write(descriptor, head + b"0" * DIGITS + b"\n")
        os.fsync(descriptor)
        temporary.rename(path)
    except BaseException:
        _drop(descriptor, temporary, path)
        raise
    return descriptor, len(head), path


def _drop(descriptor: int, *paths: Path) -> None:
    os.close(descriptor)
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _wait(path: Path) -> str | None:
    """Why the holder is dead; None if it has let go. Raises a ValueError if it lives."""
    first = _read(path)
    holder, began, said = _parse(first), time.monotonic(), False
    near = bool(holder) and (holder.get("host"), holder.get("place")) == (socket.gethostname(), place())
    while (content := _read(path)) is not None:
        waited = time.monotonic() - began
        if near and not alive(holder.get("pid"), holder.get("started")):
            return "its process is gone"
        if (near and waited > GRACE) or (not near and content != first):
            raise ValueError(
                f"{path.parent} is in use by another run ({_describe(holder)}): wait until it ends, or choose another "
                f"--output (if that process is no run of sepgconv, delete {path})"
            )
        if not near and waited > PATIENCE:
            return f"no sign of life for {PATIENCE:.0f} seconds"
        if waited > max(GRACE, 2 * BEAT) and not said:
            said = True
            rank_zero_info(f"{path.parent}: waiting {PATIENCE:.0f} s for a sign of life of {_describe(holder)}")
        time.sleep(POLL)
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(content: bytes | None) -> dict[str, Any]:
    """Who holds a directory; nothing if the file is something else."""
    try:
        found = json.loads((content or b"").split(b"\n", 1)[0])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"
