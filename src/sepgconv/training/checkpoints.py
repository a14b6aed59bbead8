"""When checkpoints are written: the best on validation, and the last with the one before it."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from .nonfinite import NonFiniteError, finite
from .storage import BEST, LAST, PREVIOUS, AtomicCheckpointIO


class Checkpoints(Checkpoint):
    """Keeps `last.ckpt`, `previous.ckpt` and `best.ckpt` in `<output>/checkpoints`.

    The last one is written after every epoch and every so many steps, and holds all it takes to go on exactly. The
    best one holds weights, and changes only when the watched metric improves on all validations before.

    Args:
        every_n_steps: how often to write the last checkpoint within an epoch.
        monitor: the metric that is watched; lower is better.
    """

    def __init__(self, every_n_steps: int = 100, monitor: str = "val/error") -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps!r}")
        self.every_n_steps, self.monitor = every_n_steps, monitor
        self.best: dict[str, float | int] = {}
        self._saved_at = 0

    @staticmethod
    def folder(trainer: Trainer) -> Path:
        """Where a trainer's checkpoints are."""
        return Path(trainer.default_root_dir) / "checkpoints"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes all of this trainer's checkpoints atomic, and clears what a killed run left half written."""
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if stage == "fit" and trainer.is_global_zero:
            self.folder(trainer).mkdir(parents=True, exist_ok=True)
            for leftover in self.folder(trainer).glob(".*.ckpt.*"):
                leftover.unlink(missing_ok=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts steps from where the run begins or goes on."""
        self._saved_at = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes the last checkpoint if it is time.

        Not while gradients are accumulated, which a checkpoint does not hold; and not just before a validation, which
        Lightning would skip on resuming: the end of the epoch or the next batch comes soon.
        """
        done = batch_idx + 1
        validates = trainer.is_last_batch or (trainer.val_check_batch and done % trainer.val_check_batch == 0)
        if validates or done % trainer.accumulate_grad_batches:
            return
        if trainer.global_step - self._saved_at >= self.every_n_steps:
            self._save_last(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the last checkpoint, with the epoch's metrics in it.

        A run that is bounded by steps Lightning would resume by ending the epoch a second time: that one waits for
        the first batch of the next epoch.
        """
        if trainer.global_step < trainer.max_steps:
            self._saved_at = -self.every_n_steps
        else:
            self._save_last(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the best checkpoint if this is it."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        score = trainer.callback_metrics.get(self.monitor)
        if score is None:
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise ValueError(f"checkpoint.monitor must be one of the metrics there are ({known}), got {self.monitor!r}")
        if not self.best or score.item() < self.best["score"]:
            self.best = {"score": score.item(), "epoch": trainer.current_epoch, "step": trainer.global_step}
            self._save_best(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the best score so far."""
        self.best = dict(state_dict["best"])

    def _save_last(self, trainer: Trainer) -> None:
        _check_weights(trainer)
        folder = self.folder(trainer)
        if trainer.is_global_zero and (folder / LAST).exists():
            (folder / LAST).replace(folder / PREVIOUS)
        trainer.save_checkpoint(folder / LAST, weights_only=False)
        self._saved_at = trainer.global_step

    def _save_best(self, trainer: Trainer) -> None:
        _check_weights(trainer)
        trainer.save_checkpoint(self.folder(trainer) / BEST, weights_only=True)


def _check_weights(trainer: Trainer) -> None:
    """An optimiser can spoil weights with gradients that are finite; they must not replace good ones."""
    state = trainer.lightning_module.state_dict()
    if not finite(state.values()):
        bad = next(key for key, value in state.items() if not finite([value]))
        raise NonFiniteError(
            f"training stopped at step {trainer.global_step}: the weights {bad!r} are no longer finite. "
            "The last good checkpoint is kept; a lower optimiser.lr often helps"
        )
