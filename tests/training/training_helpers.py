"""What the tests of training share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from sepgconv import KernelConfig
from sepgconv.training import Augment, Checkpoints, Classifier, GridConfig, History, Images, NetworkConfig

Run = tuple[Trainer, Classifier, Images]
NETWORK = NetworkConfig(width=0.1, kernel=KernelConfig(hidden=8, layers=1))
GRID = GridConfig(rotations=4)
RECIPE = [
    "--model.network.width=0.1",
    "--model.network.kernel.hidden=8",
    "--model.network.kernel.layers=1",
    "--model.grid.rotations=4",
    "--data.limit=64",
    "--data.batch_size=32",
    "--trainer.max_epochs=1",
    "--trainer.limit_val_batches=2",
    "--trainer.limit_test_batches=2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
]


class Interrupt(Callback):
    """Stops a run before the checkpoint of a step is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


def make_run(
    parent: Path,
    folder: str = "run",
    *,
    callbacks: Sequence[Callback] = (),
    every: int = 1,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """A run of a second: a tiny net on a few embedded digits, 5 steps in an epoch."""
    torch.manual_seed(0)
    trainer = Trainer(
        default_root_dir=parent / folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[History(), Checkpoints(every_n_steps=every), *callbacks],
        **{"max_epochs": 2, "limit_val_batches": 1, "limit_test_batches": 1, **options},
    )
    images = Images(**{"limit": 160, "batch_size": 32, "augment": Augment(shift=2), **(data or {})})
    return trainer, Classifier(NETWORK, GRID), images


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Bitwise equality of nested containers; times are left out."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a.keys() - {"seconds"}:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{index}")
    else:
        assert a == b, f"{path}: {a!r} is not {b!r}"
