"""Measures cases side by side: one process each, one step at a time, in turns."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sepgconv import tuning
from sepgconv.bench.cases import PLAIN, Case

HERE = Path(__file__).parent
VOLUME, FEWER = 16, 4
"""Volumes are 16³ voxels, in a quarter of the batch through networks of a quarter of the width (0.8 GB an activation
with 32 channels and a batch of 64 on 24 rotations)."""
PHASES = ("infer", "train")  # in this order: memory that training has used once is not given back


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        rounds: how often every network makes a step.
        warmup: steps before that, which do not count: so long it takes until large networks get no new memory.
        batch: images in a step.
        size: their height and width.
        width: multiplies the networks' channels.
        threads: of every process.
        compile: whether the networks are compiled.
        tune: whether the allocator is tuned, as by the command line.
        untuned: whether to measure the memory of a training step with the allocator as it comes, too: a tuned one is
            faster and keeps what it was once given.
        together: how many networks take turns with each other and with the plain CNN; all of them stay in memory.
        busy: whether another process, which does nothing but count, keeps one core busy all the time.
    """

    rounds: int = 11
    warmup: int = 4
    batch: int = 64
    size: int = 28
    width: float = 1.0
    threads: int = field(default_factory=cores)
    compile: bool = False
    tune: bool = True
    untuned: bool = True
    together: int = 3
    busy: bool = False

    def __post_init__(self) -> None:
        for name in ("rounds", "batch", "threads", "together"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def _extent(case: Case, settings: Settings) -> dict[str, Any]:
    """How large a case's images, batches and networks are."""
    if case.space == 2:
        return {"batch": settings.batch, "shape": [settings.size] * 2, "width": settings.width}
    return {"batch": max(settings.batch // FEWER, 1), "shape": [VOLUME] * 3, "width": settings.width / FEWER}


def _phases(case: Case, settings: Settings) -> tuple[str, ...]:
    """What is measured: a single image is not trained on, since the classifier's norm takes the variance of a batch."""
    return PHASES if _extent(case, settings)["batch"] > 1 else PHASES[:1]


class WorkerError(RuntimeError):
    """A worker has ended before it was asked to."""


class Worker:
    """The process that runs a case's steps."""

    def __init__(self, case: Case, settings: Settings, python: str | None = None) -> None:
        self.case = case
        networks = HERE / {"escnn": "escnn_networks.py", "export": "export_networks.py"}.get(case.kind, "networks.py")
        task = {
            **{name: getattr(settings, name) for name in ("threads", "compile", "tune")},
            **_extent(case, settings),
            "case": asdict(case),
            "networks": str(networks),
            "tuning": str(tuning.__file__),
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, it is closed with the worker
        self._process = subprocess.Popen(
            [python or sys.executable, str(HERE / "worker.py"), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(settings.threads)},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, step: str | None = None) -> dict[str, Any]:
        """Has the worker make a step and waits for its answer; without a step, waits until it is ready."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            if step is not None:
                self._process.stdin.write(f"{step}\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise WorkerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        words = [text for text in self._errors.read().splitlines() if text.strip()]
        if status == -9:
            return "killed by the system, probably for want of memory"
        return words[-1] if words else f"ended with status {status}"


@dataclass
class Measurement:
    """What came out of a case; `reference` has the plain CNN's seconds of the same rounds.

    `memory` has peaks in bytes, by phase, and as `train_untuned` with the allocator as it comes.
    """

    case: Case
    parameters: int = 0
    multiply_adds: int | None = None
    torch: str = ""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    reference: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    memory: dict[str, int] = field(default_factory=dict)
    error: str | None = None


def measure(
    cases: Sequence[Case],
    settings: Settings,
    pythons: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Measurement]:
    """Measures the plain CNN and the cases, a few at a time; the plain CNN takes part every time.

    Args:
        cases: what to measure besides the plain CNN.
        settings: how.
        pythons: interpreters by kind of case, where it is not this one.
        say: is told what goes on.

    Returns:
        The plain CNN, then the cases in their order; then the same for the anti-aliased one, and for volumes. One that
        fails has an `error`, the others go on.
    """
    if settings.busy:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as counting:
            try:
                return measure(cases, replace(settings, busy=False), pythons, say)
            finally:
                counting.kill()
    result = []
    for first in dict.fromkeys([PLAIN, *(case.plain for case in cases)]):
        alike = [case for case in cases if case.plain == first]
        plain = Measurement(first)
        result.append(plain)
        for group in list(_groups(alike, settings.together)) or [()]:
            measured = [Measurement(case) for case in group]
            _take_turns([plain, *measured], settings, pythons or {}, say)
            result += measured
    if settings.untuned and settings.tune:
        for m in (m for m in result if "train" in _phases(m.case, settings)):
            say(f"memory: {m.case.label}")
            _measure_untuned(m, replace(settings, tune=False), pythons or {})
    return result


def _groups(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


def _take_turns(
    measured: list[Measurement], settings: Settings, pythons: dict[str, str], say: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        workers = [(m, stack.enter_context(Worker(m.case, settings, pythons.get(m.case.kind)))) for m in measured]
        for m, worker in workers:
            say(f"building {m.case.label}")
            for name, value in (_try(m, worker) or {}).items():
                setattr(m, name, value)
        for phase in _phases(measured[0].case, settings):
            for turn in range(-settings.warmup, settings.rounds):
                counted: dict[str, float] = {}
                for m, worker in workers:
                    state = "warming up" if turn < 0 else f"round {turn + 1} of {settings.rounds}"
                    say(f"{phase}, {state}: {m.case.label}")
                    answer = _try(m, worker, phase)
                    if answer is None:
                        continue
                    m.memory[phase] = max(m.memory.get(phase, 0), answer["memory"])
                    counted[m.case.name] = answer["seconds"]
                    if turn >= 0:
                        m.seconds[phase].append(answer["seconds"])
                        m.reference[phase].append(counted[measured[0].case.name])


def _measure_untuned(m: Measurement, settings: Settings, pythons: dict[str, str]) -> None:
    """Two training steps, the second of which has the optimiser's state in memory, too."""
    with Worker(m.case, settings, pythons.get(m.case.kind)) as worker:
        for step in (None, "train", "train"):
            answer = _try(m, worker, step)
            if answer is not None and step is not None:
                m.memory["train_untuned"] = answer["memory"]


def _try(m: Measurement, worker: Worker, step: str | None = None) -> dict[str, Any] | None:
    """The worker's answer, or None once its case has failed; without the plain CNN there is nothing to compare with."""
    if m.error is not None:
        return None
    try:
        return worker.ask(step)
    except WorkerError as error:
        if m.case.kind == "plain":
            raise OSError(f"the plain CNN cannot be measured: {error}") from error
        m.error = str(error)
        return None
