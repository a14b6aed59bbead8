"""A run that is stopped by a signal ends in order: the checkpoint is whole, the status says which signal it was."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning_utilities.core.rank_zero import rank_zero_info


class Stopped(SystemExit):
    """A run was stopped by a signal; the exit status is 128 plus its number, as shells and schedulers have it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(128 + number)
        self.signal = number


@contextmanager
def stoppable(trainer: Trainer, advice: Callable[[], str]) -> Iterator[None]:
    """Turns SIGTERM and SIGINT into `Stopped`, with a line that says how to go on.

    While it trains or tests, Lightning waits for the end of the step and then ends (and, on SLURM, asks for the job to
    be queued again); outside of that the run ends at once.
    """
    try:
        with _handler(trainer):
            yield
    except BaseException as error:
        number = cause(error)
        if number is None:
            raise
        rank_zero_info(f"stopped by {number.name}: {advice()}")
        raise Stopped(number) from error


def check(trainer: Trainer) -> None:
    """Ends a run that was told to end in its very last step, which Lightning leaves to its caller."""
    if trainer.received_sigterm:
        raise SIGTERMException


@contextmanager
def _handler(trainer: Trainer) -> Iterator[None]:
    def stop(number: int, _frame: FrameType | None) -> None:
        if not trainer.received_sigterm:  # Lightning, which calls this one after its own, knows
            raise Stopped(signal.Signals(number))

    # A handler of the caller's stays, and only the main thread may have one.
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


def cause(error: BaseException) -> signal.Signals | None:
    """The signal that an exception stands for, if it does."""
    if isinstance(error, Stopped):
        return error.signal
    if isinstance(error, SIGTERMException):
        return signal.SIGTERM
    # Lightning turns an interrupt into an exit with status 1.
    if isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt)
    ):
        return signal.SIGINT
    return None
