"""Runs on a Ray cluster: every run is a task, and a task of a node that is lost is done again elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .executors import Failure, Outcome, Work, attempt
from .experiment import Run

RETRIES = 5  # how often a run may lose its node


@dataclass
class OnRay:
    """Runs as Ray tasks. Results come back through Ray, so machines need not share a disk.

    Args:
        address: `auto` for the cluster that this machine belongs to, or `HOST:PORT` of its head.
        threads: cores that a run takes; where the cluster has GPUs, a run takes one of them as well.
    """

    address: str = "auto"
    threads: int = 1

    def __call__(self, job: Work, runs: Sequence[Run]) -> Iterator[Outcome]:
        """See `Executor`."""
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"no Ray cluster at address {self.address!r}: {error}; start one with `ray start --head`"
                ) from error
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        # A lost node is not the run's fault: Ray does its task again. An error of the run itself is returned, not
        # raised, so it is not tried again.
        task = ray.remote(num_cpus=self.threads, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False)(_task)
        try:
            pending: dict[Any, Run] = {task.remote(job, run): run for run in runs}
            while pending:
                (done, *_), _ = ray.wait(list(pending), num_returns=1)
                run = pending.pop(done)
                try:
                    yield run, ray.get(done)
                except ray.exceptions.RayError as error:
                    yield run, Failure(f"its node was lost {RETRIES + 1} times: {' '.join(str(error).split())}")
        finally:
            if started:
                ray.shutdown()


def _task(job: Work, run: Run) -> Any:
    from sepgconv.tuning import tune

    tune()
    return attempt(job, run)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError("the executor 'ray' needs Ray: pip install 'sepgconv[cluster]'") from error
    return ray
