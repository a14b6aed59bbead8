"""When checkpoints are written: the best on validation, and the last with the one before it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from .history import History
from .lock import Claim
from .nonfinite import NonFiniteError, advice, finite
from .storage import BEST, LAST, AtomicCheckpointIO, keep_as_previous

USUAL = "val/error"
"""The metric that is watched unless told."""
LATEST = "last"
"""In place of a metric: the weights of the last validation are taken, whatever they score."""


class Checkpoints(Checkpoint):
    """Keeps `last.ckpt`, `previous.ckpt` and `best.ckpt` in `<output>/checkpoints`.

    The last one is written after every epoch and every so many steps, and holds all it takes to go on exactly. The
    best one holds weights, and changes only when the watched metric improves on all validations before.

    Args:
        every_n_steps: how often to write the last checkpoint within an epoch.
        monitor: the metric that is watched, lower is better; or `last`: no metric, the best weights are those of the
            last validation. Where a rate falls to zero and validation images are few, these are the better choice.
    """

    def __init__(self, every_n_steps: int = 100, monitor: str = USUAL) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps!r}")
        self.every_n_steps, self.monitor = every_n_steps, monitor
        self.best: dict[str, float | int] = {}
        self.saved: int | None = None  # the step of the last checkpoint
        self.claim: Claim | None = None  # on the run's directory
        self.inherit: Callable[[], None] | None = None  # brings along what another run has left, once
        self.began = False  # whether a checkpoint, if there was one, has been taken up
        self.keep_best = True  # whether the best so far is taken over from a checkpoint that is resumed from
        self._saved_at = 0

    @staticmethod
    def folder(trainer: Trainer) -> Path:
        """Where a trainer's checkpoints are."""
        return Path(trainer.default_root_dir) / "checkpoints"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes all of this trainer's checkpoints atomic."""
        self.began = False
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if stage == "fit" and trainer.is_global_zero:
            self.folder(trainer).mkdir(parents=True, exist_ok=True)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuses to go on from a checkpoint that lacks a part, which Lightning would do without."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        names = [
            part.state_key for part in getattr(trainer, "callbacks", []) if isinstance(part, Checkpoints | History)
        ]
        parts = {f"callbacks.{name}": bool(checkpoint["callbacks"].get(name)) for name in names}
        parts["optimizer_states"] = len(checkpoint["optimizer_states"]) == 1
        missing = [name for name, found in parts.items() if not found]
        if missing:
            raise ValueError(f"the checkpoint cannot be gone on from: it lacks {', '.join(missing)}")

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first that comes after a checkpoint was taken up, or else the start of training."""
        self.began = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts steps from where the run begins or goes on."""
        self.began, self._saved_at = True, trainer.global_step
        _check_moments(trainer)
        self.take_inheritance()
        if trainer.global_step:
            self.saved = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes the last checkpoint if it is time.

        Not while gradients are accumulated, which a checkpoint does not hold; and not just before a validation, which
        Lightning would skip on resuming: the end of the epoch or the next batch comes soon. A run that was told to end
        writes it at once; several processes do not hear of that at the same step, and so do not.
        """
        self._check_claim(trainer)
        done = batch_idx + 1
        validates = trainer.is_last_batch or (trainer.val_check_batch and done % trainer.val_check_batch == 0)
        if validates or done % trainer.accumulate_grad_batches:
            return
        ends = trainer.received_sigterm and trainer.world_size == 1 and trainer.global_step != self.saved
        if ends or trainer.global_step - self._saved_at >= self.every_n_steps:
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
        metrics, last = trainer.callback_metrics, self.monitor == LATEST
        score = metrics.get(USUAL if last else self.monitor)
        if score is None:
            known = ", ".join((LATEST, *sorted(metrics)))
            raise ValueError(f"checkpoint.monitor must be one of {known}, got {self.monitor!r}")
        # A score that is not a number is never better, and must not stay the best.
        if last or not self.best or score.item() < self.best["score"] or math.isnan(self.best["score"]):
            self.best = {"score": score.item(), "epoch": trainer.current_epoch, "step": trainer.global_step}
            self._save_best(trainer)

    def take_inheritance(self) -> None:
        """Brings along what another run has left, now that its checkpoint has proved good."""
        inherit, self.inherit = self.inherit, None
        if inherit is not None:
            inherit()

    def state_dict(self) -> dict[str, Any]:
        """The best score so far."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the best score so far."""
        self.best = dict(state_dict["best"]) if self.keep_best else {}

    def _check_claim(self, trainer: Trainer) -> None:
        if self.claim is not None and trainer.is_global_zero:
            self.claim.check()

    def _save_last(self, trainer: Trainer) -> None:
        _check_weights(trainer)
        self._check_claim(trainer)
        folder = self.folder(trainer)
        if trainer.is_global_zero:
            keep_as_previous(folder)
        trainer.save_checkpoint(folder / LAST, weights_only=False)
        self._saved_at = self.saved = trainer.global_step

    def _save_best(self, trainer: Trainer) -> None:
        _check_weights(trainer)
        self._check_claim(trainer)
        trainer.save_checkpoint(self.folder(trainer) / BEST, weights_only=True)


def _check_moments(trainer: Trainer) -> None:
    """What an optimiser has kept for a weight must have its shape, which torch does not look at when it is loaded."""
    for optimiser in trainer.optimizers:
        for parameter, state in optimiser.state.items():
            shapes = {tuple(value.shape) for key, value in state.items() if key.startswith("exp_avg")}
            if shapes - {tuple(parameter.shape)}:
                raise ValueError(
                    f"the checkpoint cannot be gone on from: the optimiser's state of a weight of shape "
                    f"{tuple(parameter.shape)} has {shapes.pop()}"
                )


def _check_weights(trainer: Trainer) -> None:
    """An optimiser can spoil weights with gradients that are finite; they must not replace good ones."""
    state = trainer.lightning_module.state_dict()
    if not finite(state.values()):
        bad = next(key for key, value in state.items() if not finite([value]))
        raise NonFiniteError(
            f"training stopped at step {trainer.global_step}: the weights {bad!r} are no longer finite. "
            f"{advice(trainer)}"
        )
