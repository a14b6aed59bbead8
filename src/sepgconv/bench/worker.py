"""A process that holds one network and runs one step of it whenever it is asked to.

It is run as a file, by any interpreter that has torch: it takes its task as JSON on the command line, the names of
steps on standard input, and answers each with a line of JSON on standard output.
"""

import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    try:
        # Not getrusage: after an exec it still knows the size of the process that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else 1024 * size


def steps(model: Any, batch: int, shape: list[int]) -> dict[str, Callable[[], float]]:
    """What can be asked for; every step returns how many seconds it took."""
    import torch
    from torch.nn import functional as F

    layout = torch.channels_last if len(shape) == 2 else torch.channels_last_3d
    images = torch.randn(batch, 1, *shape).contiguous(memory_format=layout)
    labels = torch.randint(10, (batch,))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)

    def train() -> float:
        if not model.training:
            model.train()
        start = time.perf_counter()
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()
        return time.perf_counter() - start

    def infer() -> float:
        if model.training:
            model.eval()
        with torch.no_grad():
            start = time.perf_counter()
            model(images)
            return time.perf_counter() - start

    return {"infer": infer, "train": train}


def main() -> None:
    """Builds the network, then serves until standard input ends."""
    task = json.loads(sys.argv[1])
    # Only answers go to standard output; whatever libraries print goes where errors go.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")

    if task["tune"]:
        runpy.run_path(task["tuning"])["tune"]()
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    networks = runpy.run_path(task["networks"])
    model = networks["build"](task["case"], task["width"])
    count = networks.get("multiply_adds")
    macs = count(model.eval(), torch.zeros(1, 1, *task["shape"])) if count else None
    if task["compile"]:
        model.compile()
    run = steps(model, task["batch"], task["shape"])
    parameters = sum(p.numel() for p in model.parameters())
    answer(parameters=parameters, multiply_adds=macs, torch=torch.__version__)
    for line in sys.stdin:
        answer(seconds=run[line.strip()](), memory=peak_memory())


if __name__ == "__main__":
    main()
