"""Results on disk: one JSON per finished run, written whole or not at all, in a directory that one sweep holds."""

import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sepgconv
from sepgconv.data.places import atomic_write
from sepgconv.training.run import check_output

from .experiment import Plain, Run
from .runs import FORMAT

MARKER = "reproduction.json"
LOCK = ".lock"


class Store:
    """The results of sweeps: `<folder>/<budget>/<experiment>/runs/<run>.json`.

    Args:
        folder: where results are kept; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_version(self, *, create: bool = False) -> None:
        """Refuses a directory with results of another version, and one that holds something else."""
        marker, ours = self.folder / MARKER, {"format": FORMAT, "sepgconv": sepgconv.__version__}
        if marker.exists():
            try:
                found = json.loads(marker.read_text())
            except ValueError as error:
                raise ValueError(f"{marker} is damaged: {error}; choose another --output") from error
            if found != ours:
                raise ValueError(
                    f"{self.folder} holds results of another version, {describe(found)}; this is {describe(ours)}: "
                    "choose another --output"
                )
        elif self.folder.is_dir() and any(path.name != LOCK for path in self.folder.iterdir()):
            raise ValueError(f"--output must be empty or hold results of this command, got {str(self.folder)!r}")
        elif create:
            with atomic_write(marker) as file:
                file.write((json.dumps(ours) + "\n").encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for one sweep; the system lets go of it however the process ends."""
        check_output(self.folder)
        try:
            import fcntl
        except ImportError:  # not on this system; results are written whole all the same
            self.check_version(create=True)
            yield
            return
        with (self.folder / LOCK).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise ValueError(
                    f"{self.folder} is in use by another sweep ({holder}); wait for it, or choose another --output"
                ) from error
            self.check_version(create=True)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield
            file.truncate(0)

    def home(self, budget: str, experiment: str) -> Path:
        """Where an experiment's runs, table and figure are."""
        return self.folder / budget / experiment

    def path(self, run: Run) -> Path:
        """Where a run's result is, or will be."""
        return self.home(run.budget, run.experiment) / "runs" / f"{run.name}.json"

    def read(self, run: Run) -> Plain | None:
        """A finished run's result; None if there is none, or only a damaged one, which is set aside with a warning."""
        path = self.path(run)
        try:
            result = json.loads(path.read_text())
            if not isinstance(result, dict) or "rows" not in result or result.get("format") != FORMAT:
                raise ValueError("it is not a result of this format")
        except FileNotFoundError:
            return None
        except ValueError as error:
            warnings.warn(f"{path} is damaged and is run anew: {error}", stacklevel=2)
            path.replace(path.with_suffix(".damaged"))
            return None
        return result

    def of_another_experiment(self, run: Run) -> Plain | None:
        """The result of a run with the same settings and seed that another experiment of the budget has finished."""
        digest = run.name.rsplit("-", 1)[-1]
        for path in sorted((self.folder / run.budget).glob(f"*/runs/*-seed{run.seed}-{digest}.json")):
            with suppress(ValueError):
                result = json.loads(path.read_text())
                if result["config"] == json.loads(json.dumps(run.config)) and result.get("format") == FORMAT:
                    return {
                        **result,
                        "experiment": run.experiment,
                        "axes": run.axes,
                        "taken_from": result["experiment"],
                    }
        return None

    def write(self, run: Run, result: Plain) -> None:
        """Keeps a finished run's result."""
        path = self.path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write((json.dumps(result, indent=1, default=str) + "\n").encode())
        self.failure(run).unlink(missing_ok=True)

    def failure(self, run: Run) -> Path:
        """Where the traceback of a run that failed is kept."""
        return self.path(run).with_suffix(".failed.txt")

    def write_failure(self, run: Run, details: str) -> None:
        """Keeps why a run failed, until it is done."""
        path = self.failure(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(details, encoding="utf-8")


def describe(marker: object) -> str:
    """A directory's version, for people."""
    if not isinstance(marker, dict):
        return repr(marker)
    return f"sepgconv {marker.get('sepgconv')} (format {marker.get('format')})"
