"""`sepgconv fit | validate | test`: recipes through LightningCLI."""

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning_utilities.core.rank_zero import rank_zero_info

from . import recipes, signals, storage
from .checkpoints import Checkpoints
from .datamodule import Images
from .from_folder import complete
from .history import History
from .module import Classifier
from .parser import RecipeParser
from .run import fit


class SaveRecipe(SaveConfigCallback):
    """Writes the run's whole recipe, defaults and overrides included, to `<output>/config.yaml`."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Replaces what an earlier part of the run has written."""
        if stage == "fit":
            path = Path(trainer.default_root_dir) / self.config_filename
            self.parser.save(self.config, path, overwrite=True)


class TrainingCLI(LightningCLI):
    """Reads recipes and the command line, builds what they describe, and runs it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(
            Classifier,
            Images,
            save_config_callback=SaveRecipe,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_defaults={"max_epochs": 10, "log_every_n_steps": 10, "enable_model_summary": False},
            seed_everything_default=0,
            parser_class=RecipeParser,
            parser_kwargs={name: {"description": text} for name, text in DESCRIPTIONS.items()},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=list(arguments),
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, with the arguments of the Trainer's methods that are not for users."""
        hidden = {"model", "datamodule", "weights_only", "verbose"}
        return {
            "fit": {*hidden, "train_dataloaders", "val_dataloaders"},
            "validate": {*hidden, "dataloaders"},
            "test": {*hidden, "dataloaders"},
        }

    def add_arguments_to_parser(self, parser: RecipeParser) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One place for a run's files, and one seed for all that is random."""
        parser.add_argument("--output", type=str, default="runs/latest", help="Directory that the run is kept in.")
        parser.add_lightning_class_args(Checkpoints, "checkpoint")
        parser.link_arguments("output", "trainer.default_root_dir")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=whole_seed)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=whole_seed)

    def parse_arguments(self, parser: RecipeParser, args: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parses what `main` was given."""
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        """A network for images of a folder is made for these."""
        recipe = self.config[self.config.subcommand]
        if recipe.data.folder is not None:
            complete(recipe)
        elif recipe.trainer.max_epochs is None and recipe.trainer.max_steps == -1 and recipe.trainer.max_time is None:
            raise ValueError("trainer.max_epochs must be a number, unless it follows from a folder: set --data.folder")

    def _parse_ckpt_path(self) -> None:
        # LightningCLI would replace the recipe's model by the checkpoint's; here the two must agree.
        pass

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        if config.get("logger") in (None, True):
            training = self.config.subcommand == "fit"
            config["logger"] = TensorBoardLogger(config["default_root_dir"], "tensorboard", "") if training else False
        return super()._instantiate_trainer(config, [History(), *callbacks])

    def fit(self, model: Classifier, ckpt_path: str | None = None, **data: Any) -> None:
        """Fits, tests once, reports."""
        fit(self.trainer, model, data["datamodule"], ckpt_path)

    def validate(self, model: Classifier, ckpt_path: str | None = None, **data: Any) -> None:
        """Evaluates on the validation set."""
        self._evaluate("validate", model, ckpt_path, data["datamodule"])

    def test(self, model: Classifier, ckpt_path: str | None = None, **data: Any) -> None:
        """Evaluates on the test set."""
        self._evaluate("test", model, ckpt_path, data["datamodule"])

    def _evaluate(self, name: str, model: Classifier, ckpt_path: str | None, data: Images) -> None:
        path = storage.find(Checkpoints.folder(self.trainer), ckpt_path or "best")
        checkpoint = storage.read(path)
        model.load_checkpoint(checkpoint)
        if checkpoint.get("Images"):
            data.load_state_dict(checkpoint["Images"])
        metrics = getattr(self.trainer, name)(model, datamodule=data, verbose=False)
        signals.check(self.trainer)
        rank_zero_info(f"{path}: " + ", ".join(f"{key} {value:.4g}" for key, value in metrics[0].items()))


DESCRIPTIONS = {
    "fit": "Train a recipe, test it once with the weights that are best on validation, write result.json.",
    "validate": "Evaluate a checkpoint on the validation set.",
    "test": "Evaluate a checkpoint on the test set.",
}


def whole_seed(seed: bool | int) -> int:
    """The seed, which must be known for a run to be repeatable."""
    if isinstance(seed, bool):
        raise ValueError(f"seed_everything must be a whole number, got {seed!r}")
    return seed


def main(arguments: Sequence[str]) -> int:
    """Runs a command."""
    quieten()
    try:
        TrainingCLI(recipes.resolve(recipes.for_folder(arguments)))
    except BaseException as error:
        if (number := signals.cause(error)) is None:
            raise
        if not isinstance(error, signals.Stopped):  # which has been said
            print(f"stopped by {number.name}", file=sys.stderr)
        return 128 + number
    return 0


def quieten() -> None:
    """Leaves out what Lightning says about things that a user of this package cannot change."""
    for text in ("does not have many workers", "treespec", "litlogger", "Checkpoint directory", "srun"):
        warnings.filterwarnings("ignore", f".*{text}.*")
    hints = ("litlogger", "litmodels", "TPU available", "HPU available", "was configured so", "to estimate number")

    class Quiet(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return not any(hint in record.getMessage() for hint in hints)

    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).addFilter(Quiet())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
