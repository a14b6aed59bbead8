"""One run per directory: a lock file that says who holds it, with a heartbeat that says that they are alive.

Directories may lie on storage that several machines share, so the lock rests on nothing but the exclusive creation of
a file, and no clock is compared with another one. A holder on this machine is dead if its process is. A holder
elsewhere is dead if its heartbeat stands still for `PATIENCE` seconds of this process's own clock.
"""

import json
import os
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

LOCK = "run.lock"
BEAT = 5.0  # seconds between two beats
PATIENCE = 40.0  # seconds without a beat, after which a holder elsewhere counts as dead
GRACE = 2.0  # seconds that a holder on this machine is given to end, as one that was just killed does
POLL = 0.2  # seconds between two looks
DIGITS = 12  # of the beat, which is written in place


@dataclass(frozen=True)
class Claim:
    """A run's hold on its directory; plain values, so that it travels to other processes of the run.

    Args:
        path: the lock file.
        token: what this run has written into it.
    """

    path: Path
    token: str

    def check(self) -> None:
        """Raises an OSError if the directory is no longer this run's, which must then write nothing more."""
        for _ in range(5):
            try:
                found = _parse(self.path.read_bytes())
            except FileNotFoundError:
                time.sleep(POLL)  # someone who took it by mistake is putting it back
                continue
            except OSError:
                return  # storage that does not answer; a write will say more
            if found.get("token") == self.token:
                return
            raise OSError(
                f"{self.path.parent} was taken over by {_describe(found)}, which saw no sign of life of this run; "
                "this run stops and writes nothing more"
            )
        raise OSError(f"{self.path} is gone: this run no longer holds its directory, stops and writes nothing more")


@contextmanager
def held(folder: Path) -> Iterator[Claim]:
    """Holds a directory for one run; the lock of a dead run is taken over.

    Raises:
        ValueError: another run holds it; the message says which and what to do.
    """
    path, token = folder / LOCK, uuid.uuid4().hex
    descriptor, offset = _take(path, token)
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(descriptor, offset, ended), name="heartbeat", daemon=True)
    claim = Claim(path, token)
    try:
        heart.start()
        yield claim
    finally:
        ended.set()
        if heart.ident is not None:
            heart.join()
        os.close(descriptor)
        _release(claim)


def _release(claim: Claim) -> None:
    with suppress(OSError):
        if _parse(claim.path.read_bytes()).get("token") == claim.token:
            claim.path.unlink()
        for leftover in claim.path.parent.glob(f".{LOCK}.*"):  # of one that was killed while it took over
            leftover.unlink(missing_ok=True)


def _beat(descriptor: int, offset: int, ended: threading.Event) -> None:
    """Writes through the descriptor: if the lock is taken over, the new holder's file is not touched."""
    count = 0
    while not ended.wait(BEAT):
        count += 1
        with suppress(OSError):
            os.lseek(descriptor, offset, os.SEEK_SET)
            os.write(descriptor, f"{count:0{DIGITS}}".encode())
            os.fsync(descriptor)


def _take(path: Path, token: str) -> tuple[int, int]:
    """Creates the lock; its descriptor, and where in it the beat is."""
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "place": place(),
        "started": started(os.getpid()),
        "token": token,
    }
    head = (json.dumps(holder) + "\n").encode()
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            _clear(path)
            continue
        try:
            os.write(descriptor, head + b"0" * DIGITS + b"\n")
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return descriptor, len(head)


def _clear(path: Path) -> None:
    """Returns once the lock is worth another try: it was released, or its holder is dead and it is out of the way."""
    first = _read(path)
    if first is None:
        return None
    holder, began, said = _parse(first), time.monotonic(), False
    near = bool(holder) and (holder.get("host"), holder.get("place")) == (socket.gethostname(), place())
    while (content := _read(path)) is not None:
        waited = time.monotonic() - began
        if near:
            lives = alive(holder.get("pid"), holder.get("started"))
            if lives and (waited > GRACE or holder.get("pid") == os.getpid()):
                raise ValueError(_in_use(path, holder))
            if not lives:
                return _set_aside(path, content, "its process is gone")
        elif content != first:
            if holder.get("token") != _parse(content).get("token"):
                return None  # another run's, or one that was being written
            raise ValueError(_in_use(path, holder))
        elif waited > PATIENCE:
            return _set_aside(path, content, f"no sign of life for {PATIENCE:.0f} seconds")
        elif waited > 2 * BEAT and not said:
            said = True
            rank_zero_info(
                f"{path.parent}: waiting for a sign of life of {_describe(holder)}, {PATIENCE:.0f} s at most"
            )
        time.sleep(POLL)
    return None


def _set_aside(path: Path, content: bytes, why: str) -> None:
    """Removes a dead run's lock, unless it has become another's in the meantime: that one is put back."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if _read(aside) == content:
        rank_zero_info(f"{path.parent}: taking over from {_describe(_parse(content))}: {why}")
    else:
        try:
            os.link(aside, path)
        except (FileExistsError, FileNotFoundError):
            pass  # a third one was quicker, and the one that was removed notices and stops; or that one has ended
        except OSError:  # a file system without hard links
            with suppress(FileNotFoundError):
                if not path.exists():
                    aside.rename(path)
    aside.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(content: bytes) -> dict[str, Any]:
    """Who holds a lock; nothing if it is being written, or something else."""
    try:
        found = json.loads(content.split(b"\n", 1)[0])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"


def _in_use(path: Path, holder: dict[str, Any]) -> str:
    return (
        f"{path.parent} is in use by another run ({_describe(holder)}): wait until it ends, "
        f"or choose another --output (if that process is no run of sepgconv, delete {path})"
    )
