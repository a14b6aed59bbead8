"""One training step and a validation, in as many processes as there are; a script of test_training_ddp.py.

Normalisation and dropout are in evaluation mode: the statistics of half a batch and the masks of half a batch are not
those of a whole one, and that is not what is compared.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from training_helpers import GRID, NETWORK

from sepgconv import Grid
from sepgconv.data import DataSet
from sepgconv.training import Classifier, Images


class Watch(Callback):
    """Keeps what a process sees: its gradients, its grid's shift, its validation metrics."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for layer in pl_module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.Dropout):
                layer.eval()
        self.seen["labels"] = batch[1]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.seen["gradients"] = {k: p.grad.clone() for k, p in pl_module.named_parameters() if p.grad is not None}
        self.seen["offset"] = next(m for m in pl_module.modules() if isinstance(m, Grid)).offset.clone()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen["metrics"] = {key: value.item() for key, value in trainer.callback_metrics.items()}


def main(processes: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watch = Watch()
    data = Images(batch_size=32)
    # An odd number of images does not divide evenly.
    data._data = DataSet("digits", 10, data.data.train, data.data.valid.take(torch.arange(301)), data.data.test)
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=1,
        limit_train_batches=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(Classifier(NETWORK, GRID), datamodule=data)
    return {**watch.seen, "rank": trainer.global_rank}


if __name__ == "__main__":
    seen = main(2)
    torch.save(seen, Path(sys.argv[1]) / f"{seen['rank']}.pt")
