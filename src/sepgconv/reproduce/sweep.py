"""A sweep: the runs that are missing, executed; results kept one by one, failures named, progress shown."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sepgconv.training.config import GridConfig

from .executors import Executor, Failure, Processes, Work
from .experiment import Plain, Run, find
from .runs import Job
from .store import Store

SCRATCH = "unfinished"  # checkpoints of runs that are under way


@dataclass
class Report:
    """What a sweep did.

    Args:
        there: how many runs were finished before.
        done: how many were finished now.
        failed: the runs without a result, with the reason of each.
    """

    there: int = 0
    done: int = 0
    failed: list[tuple[Run, Failure]] = field(default_factory=list)


def sweep(
    runs: Sequence[Run],
    store: Store,
    executor: Executor,
    *,
    job: Work | None = None,
    root: str | None = None,
    console: Console | None = None,
) -> Report:
    """Executes those of the runs that have no result yet; the store must be locked.

    Args:
        runs: all runs of the sweep.
        store: where results are.
        executor: where runs are executed.
        job: from a run to its result; a `Job` unless told.
        root: where data is.
        console: what progress is shown on.
    """
    missing = sorted((run for run in runs if not there(run, store)), key=cost, reverse=True)
    report = Report(there=len(runs) - len(missing))
    scratch = store.folder / SCRATCH
    job = job or Job(str(scratch.absolute()), root, executor.threads)
    with Bar(console or Console(stderr=True), len(runs), report.there) as bar:
        for part, where, work in batches(missing, executor, job):
            for run, outcome in where(work, part):
                if isinstance(outcome, Failure):
                    store.write_failure(run, outcome.details or outcome.reason)
                    report.failed.append((run, outcome))
                else:
                    store.write(run, outcome)
                    report.done += 1
                bar.finished(run, outcome)
    for folder in (*scratch.glob("*"), scratch):
        with suppress(OSError):  # where another budget's run is unfinished, its checkpoints stay
            folder.rmdir()
    return report


def there(run: Run, store: Store) -> bool:
    """Whether a run is finished, or another experiment has finished the same, whose result is then taken."""
    if store.read(run) is not None:
        return True
    if timed(run) or (result := store.of_another_experiment(run)) is None:
        return False
    store.write(run, result)
    return True


def timed(run: Run) -> bool:
    """Whether a run measures time and must have the machine to itself."""
    return bool(find(run.experiment).recipe.get("exclusive")) and run.config["timing"] is not None


def cost(run: Run) -> float:
    """A guess at how long a run takes, to begin with the longest: so no core waits for a long one at the end."""
    config, grid = run.config, run.config["grid"]
    elements = GridConfig(**grid).build().size
    dense = config["network"]["factorisation"] in ("nonseparable", "dseparable")
    return config["epochs"] * elements * (elements if dense else 2) * config["network"]["width"]


def batches(runs: Sequence[Run], executor: Executor, job: Work) -> list[tuple[list[Run], Executor, Work]]:
    """The runs that can share the machine, then those that measure time, one by one with all its threads."""
    parts = [[run for run in runs if timed(run) is kind] for kind in (False, True)]
    single, wide = executor, job
    if isinstance(executor, Processes) and not executor.gpus:
        single = Processes(1, executor.processes * executor.threads)
        wide = replace(job, threads=single.threads) if isinstance(job, Job) else job
    found = [(parts[0], executor, job), (parts[1], single, wide)]
    return [batch for batch in found if batch[0]]


class Bar:
    """Progress over a sweep with the time left: a bar on a terminal, else a line per run."""

    def __init__(self, console: Console, total: int, there: int) -> None:
        self.console, self.total, self.there, self.ended = console, total, there, 0
        self.start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
        self.progress = Progress(*columns, *left, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("runs", total=total, completed=there)

    def __enter__(self) -> "Bar":
        if self.there:
            self.console.print(f"{self.there} of {self.total} runs are finished already")
        self.progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def finished(self, run: Run, outcome: Plain | Failure) -> None:
        """Counts a run that ended, and says so if it failed."""
        self.ended += 1
        self.progress.update(self.task, advance=1, description=run.experiment)
        if isinstance(outcome, Failure):
            self.console.print(f"FAILED {run}: {outcome.reason}", style="red", highlight=False)
        if not self.console.is_terminal:
            done = self.there + self.ended
            left = (time.monotonic() - self.start) / self.ended * (self.total - done)
            self.console.print(f"{done}/{self.total} {run} ({clock(left)} left)", highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
