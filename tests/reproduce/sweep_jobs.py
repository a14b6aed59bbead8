"""Jobs that stand in for runs; in a module of their own, so that worker processes can import them."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepgconv.reproduce import Run


def result(run: Run, value: float = 1.0) -> dict[str, Any]:
    return {
        "format": 1,
        "axes": run.axes,
        "config": run.config,
        "seed": run.seed,
        "rows": [{"axes": {}, "metrics": {"test_error": value}}],
    }


@dataclass(frozen=True)
class Note:
    """Notes in a file which runs were begun and ended, and where.

    A run on the node `doomed` never ends, and none ends elsewhere before one was begun there: whoever kills that node
    then can be sure to do so in the middle of a run.
    """

    folder: str
    seconds: float = 0.0
    threads: int = 1
    doomed: str = ""

    def __call__(self, run: Run) -> dict[str, Any]:
        self.note(run, "begin")
        time.sleep(self.seconds)
        while self.doomed and (where() == self.doomed or not self.begun_at(self.doomed)):
            time.sleep(0.05)
        self.note(run, "end")
        return result(run)

    def note(self, run: Run, what: str) -> None:
        with (Path(self.folder) / f"{what}-{run.name}").open("a") as file:
            file.write(f"{where()} {os.getpid()}\n")

    def begun_at(self, node: str) -> list[str]:
        """Runs that were begun on `node`."""
        notes = Path(self.folder).glob("begin-*")
        return [path.name.removeprefix("begin-") for path in notes if node in path.read_text().split()]


def where() -> str:
    return os.environ.get("RAY_NODE_ID", "") or node()


def node() -> str:
    try:
        import ray

        return ray.get_runtime_context().get_node_id() if ray.is_initialized() else "local"
    except Exception:
        return "local"


@dataclass(frozen=True)
class Trouble:
    """One run raises, one kills its process, the others are done."""

    raises: str
    dies: str
    threads: int = 1

    def __call__(self, run: Run) -> dict[str, Any]:
        if run.name == self.raises:
            raise ValueError("the digits are upside down")
        if run.name == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result(run)
