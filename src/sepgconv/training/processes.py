"""Whether a process of this machine is alive, told from another one that has got the same number since."""

import os
import sys
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def place() -> str:
    """Where process numbers mean the same as here: this machine since it was started, and this container."""
    parts = []
    for read in (
        lambda: (PROC / "sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink(PROC / "self/ns/pid"),  # noqa: PTH115  (a link to no file)
    ):
        try:
            parts.append(read())
        except OSError:
            parts.append("")
    return " ".join(parts)


def started(pid: int) -> str:
    """When a process was started, in a unit of this machine's; empty where that is not told."""
    return (_stat(pid) or ("", ""))[1]


def alive(pid: Any, since: Any = "") -> bool:
    """Whether a process of this place runs, and is the one that was started then."""
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return False
    if sys.platform == "win32":  # there, asking would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    stat = _stat(pid)
    if stat is None:
        return True
    state, begin = stat
    if since and since != begin:
        return False
    return state not in ("Z", "X") or _threads(pid) > 1  # which may be about to end, but have not yet


def _threads(pid: int) -> int:
    try:
        return len(list((PROC / str(pid) / "task").iterdir()))
    except OSError:
        return 0


def _stat(pid: int) -> tuple[str, str] | None:
    """A process's state and when it was started."""
    try:
        # The name, in brackets, may hold anything; what follows has fixed places.
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None
