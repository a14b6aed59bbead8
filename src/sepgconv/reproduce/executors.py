"""Where runs are executed: in this process, in worker processes of this machine, or on a Ray cluster."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

from .experiment import Plain, Run

Work = Callable[[Run], Plain]


@dataclass(frozen=True)
class Failure:
    """Why a run has no result: a line for people, and the traceback."""

    reason: str
    details: str = ""


Outcome = tuple[Run, Plain | Failure]


class Executor(Protocol):
    """Executes independent runs."""

    threads: int

    def __call__(self, job: Work, runs: Sequence[Run]) -> Iterator[Outcome]:
        """Every run once, with its result or failure, in the order in which they end."""
        ...


def attempt(job: Work, run: Run) -> Plain | Failure:
    """A run's result, or why there is none."""
    try:
        return job(run)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return Failure(f"{type(error).__name__}: {text}", traceback.format_exc())


@dataclass
class InProcess:
    """One run after the other in this process."""

    threads: int = 1

    def __call__(self, job: Work, runs: Sequence[Run]) -> Iterator[Outcome]:
        """See `Executor`."""
        for run in runs:
            yield run, attempt(job, run)


@dataclass
class Processes:
    """Worker processes that each take one run at a time; one that dies takes only its own run with it.

    Args:
        processes: how many.
        threads: of each; processes × threads should not exceed the cores.
        gpus: worker n sees only the GPU n modulo this many, if there are any.
    """

    processes: int
    threads: int = 1
    gpus: int = 0

    def __call__(self, job: Work, runs: Sequence[Run]) -> Iterator[Outcome]:
        """See `Executor`."""
        waiting = list(reversed(runs))
        workers = [_Worker(job, slot, self.gpus) for slot in range(min(self.processes, len(runs)))]
        try:
            while waiting or any(worker.run for worker in workers):
                for slot, worker in enumerate(workers):
                    if worker.run is None and waiting:
                        if not worker.process.is_alive():
                            workers[slot] = worker = _Worker(job, slot, self.gpus)
                        worker.give(waiting.pop())
                busy = {worker.connection: worker for worker in workers if worker.run}
                for connection in wait(list(busy)):
                    yield busy[connection].take()  # pyright: ignore[reportArgumentType]
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A process and the run that it is at."""

    def __init__(self, job: Work, slot: int, gpus: int) -> None:
        # Not forked: a copy of a process with running threads hangs sooner or later.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.run: Run | None = None
        self.process = context.Process(target=_serve, args=(theirs, job, slot % gpus if gpus else None), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        self.run = run
        with suppress(OSError):  # the process is dead, which `take` finds out
            self.connection.send(run)

    def take(self) -> Outcome:
        run, self.run = self.run, None
        assert run is not None
        try:
            return run, self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            return run, Failure(f"its process ended {how} (out of memory?)")

    def stop(self) -> None:
        self.connection.close()
        if self.run is None:  # an idle worker leaves by itself
            self.process.join(10)
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, job: Work, gpu: int | None) -> None:
    """A worker's life: take a run, do it, send what came out."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Without its sweep a worker must end at once, or it would write where the next sweep works.
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    from sepgconv.tuning import tune

    tune()
    while True:
        try:
            run = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        connection.send(attempt(job, run))


def local(processes: int | None = None, threads: int | None = None) -> InProcess | Processes:
    """The executor of this machine: one process per GPU, else as many as cores allow with so many threads each.

    Args:
        processes: how many; 0 runs everything in this process.
        threads: of each; by default 1, or all cores where one process is asked for.
    """
    for name, value, least in (("processes", processes, 0), ("threads", threads, 1)):
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = _gpus()
    if processes is None:
        processes = gpus or max(cores // (threads or 1), 1)
    if threads is None:
        threads = max(cores // max(processes, 1), 1)
    if max(processes, 1) * threads > cores:
        raise ValueError(
            f"processes × threads must not exceed the {cores} cores of this machine, got {processes} × {threads}"
        )
    return Processes(processes, threads, gpus) if processes else InProcess(threads)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
