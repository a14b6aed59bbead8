"""What belongs to a run from its beginning to its end, and what may change when it is resumed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

MAY_CHANGE = frozenset(
    {
        # how the network is executed, not what it computes
        "model.compile",
        "model.channels_last",
        "model.network.recompute",
        # where the data lies, and how a finished run is tested, which `result.json` says
        "data.root",
        "data.rotate_test",
        "model.grid.shifts",
        "trainer.limit_test_batches",
        "trainer.limit_predict_batches",
        # how often a checkpoint is written, and where
        "checkpoint.every_n_steps",
        "trainer.default_root_dir",
        "trainer.enable_checkpointing",
        # how long to train
        *(f"trainer.{key}" for key in ("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time")),
        "trainer.fast_dev_run",
        # on what
        *(f"trainer.{key}" for key in ("accelerator", "strategy", "devices", "num_nodes", "plugins")),
        *(f"trainer.{key}" for key in ("benchmark", "deterministic", "inference_mode", "use_distributed_sampler")),
        "trainer.reload_dataloaders_every_n_epochs",
        # what is shown, logged and watched
        *(f"trainer.{key}" for key in ("logger", "log_every_n_steps", "callbacks", "profiler", "detect_anomaly")),
        *(f"trainer.enable_{key}" for key in ("progress_bar", "model_summary", "autolog_hparams")),
        *(f"trainer.{key}" for key in ("barebones", "num_sanity_val_steps", "model_registry")),
    }
)
"""Settings that a run may be resumed with whatever they were; all others must stay."""

STAY = (
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
    "limit_val_batches",
    "overfit_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "sync_batchnorm",
)
"""Settings of the trainer that change what is learnt or chosen."""


def of_trainer(trainer: Trainer) -> dict[str, Any]:
    """Those of a trainer's settings that stay, as plain values."""
    values = {key: getattr(trainer, key, None) for key in STAY}
    values["sync_batchnorm"] = bool(getattr(trainer._accelerator_connector, "sync_batchnorm", False))
    monitor = getattr(trainer.checkpoint_callback, "monitor", None)
    return _plain({"trainer": values, "checkpoint": {"monitor": monitor}})


def of_run(trainer: Trainer, model: LightningModule, data: LightningDataModule) -> dict[str, Any]:
    """All settings of a run that is to be."""
    return {"model": dict(model.hparams), "data": getattr(data, "settings", {}), **of_trainer(trainer)}


def of_checkpoint(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that a checkpoint knows; one of an earlier version does not know those of the trainer."""
    run = checkpoint.get("run", {})
    return {
        "model": checkpoint["hyper_parameters"],
        "data": checkpoint.get("Images", {}).get("settings", {}),
        **{key: run[key] for key in ("trainer", "checkpoint") if key in run},
    }


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """A line for every setting that a checkpoint has otherwise; what one side does not know is not compared."""
    before, now = dict(_flat(_plain(theirs))), dict(_flat(_plain(ours)))
    return [
        f"{key} was {before[key]!r}, is {now[key]!r}"
        for key in now
        if key in before and key not in MAY_CHANGE and before[key] != now[key]
    ]


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises a ValueError that lists all differences."""
    if changed := differences(theirs, ours):
        raise ValueError(
            f"a run must be resumed with the settings it began with: {'; '.join(changed)} "
            "(set them back, or begin a new run in another --output)"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(values: Any) -> Any:
    """As it would be read from JSON: a tuple and a list are the same."""
    return json.loads(json.dumps(values, default=str))
