"""Runs a recipe whole, and once more in parts that are killed; a script of test_training_resume.py."""

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from sepgconv import cli
from sepgconv.training import command, module  # noqa: F401  (imported once, for all children)

KILLS = 10
RECIPE = {
    "model.network.width": "0.1",
    "model.network.kernel.hidden": "8",
    "model.network.kernel.layers": "1",
    "model.grid.rotations": "4",
    "data.limit": "192",
    "data.batch_size": "16",
    "data.augment.shift": "2",
    "checkpoint.every_n_steps": "2",
    "trainer.max_epochs": "4",
    "trainer.limit_val_batches": "4",
    "trainer.limit_test_batches": "2",
    "trainer.enable_progress_bar": "false",
    "trainer.accelerator": "cpu",
}


def start(output: Path) -> tuple[int, int]:
    """A child that trains; returns its process number and a pipe that hears of its first training step."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        return child, reader
    os.close(reader)
    seen = module.Classifier.on_train_batch_start

    def tell(self, batch, batch_idx):
        if not os.environ.get("TOLD"):
            os.environ["TOLD"] = "1"
            os.write(writer, str(self.trainer.global_step).encode())
        return seen(self, batch, batch_idx)

    module.Classifier.on_train_batch_start = tell
    log = os.open(output.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    arguments = [f"--{key}={value}" for key, value in RECIPE.items()]
    code = 1
    try:
        code = cli.main(["fit", f"--output={output}", "--ckpt_path=last", *arguments])
    finally:
        sys.stdout.flush()
        os._exit(code)


def first_step(pipe: int) -> int | None:
    """Waits for a child to train; the step it begins at, or None if it has nothing left to train."""
    select.select([pipe], [], [])
    said = os.read(pipe, 16)
    os.close(pipe)
    return int(said) if said else None


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    child, pipe = start(folder / "whole")
    first_step(pipe)
    began = time.monotonic()
    assert os.waitpid(child, 0)[1] == 0, (folder / "whole.log").read_text()[-3000:]
    duration = time.monotonic() - began

    delays, longest = random.Random(0), 2 * duration / (KILLS + 4)
    begins: list[int | None] = []
    while len(begins) < KILLS:
        child, pipe = start(folder / "parts")
        begins.append(first_step(pipe))
        time.sleep(delays.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL or begins[-1] is None:
            # On a machine that has become faster the run ended too early: once more, with shorter delays.
            shutil.rmtree(folder / "parts")
            begins, longest = [], longest / 2
    kills = len(begins)
    child, pipe = start(folder / "parts")
    begins.append(first_step(pipe))
    assert os.waitpid(child, 0)[1] == 0, (folder / "parts.log").read_text()[-3000:]
    resumed = len({step for step in begins if step})
    print(json.dumps({"kills": kills, "begins": begins, "resumed_within_training": resumed, "duration": duration}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
