"""The LightningModule: a classifier built from plain values, so that a recipe is data."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric

from sepgconv.models._average import Average, average, mean_over_shifts

from . import contents, preparation, settings, storage
from .begin import begin_with
from .compilation import compile_in_place
from .config import GridConfig, NetworkConfig, OptimiserConfig, network_config
from .confusion import Confusion
from .error_rate import ErrorRate
from .nonfinite import NonFiniteError, advice, finite, first_bad_gradient, first_bad_output
from .seeding import derive

Batch = tuple[Tensor, Tensor]
PADDING = -1  # the label of images that only fill up a process's share of a batch


class Classifier(LightningModule):
    """Fits a network out of `sepgconv.models` to labelled images.

    Everything random in a step (the shifts of the grids, dropout) is drawn from `(seed, epoch, batch)`: a resumed run
    draws what an uninterrupted one does, and all processes of a distributed run shift their grids alike.

    Args:
        network: the model.
        grid: the group and its sampling.
        optimiser: the optimiser and its schedule.
        label_smoothing: of the cross-entropy in training.
        class_weights: whether rare classes weigh more in the loss of training: each by one over its number of images.
        channels_last: whether images go through the network in that memory format.
        compile: whether to compile the network with `torch.compile`; or the name of one of its backends.
        start: trained weights to begin with, a name out of `models.weights()` or a checkpoint; the last layer is drawn
            anew if it has other classes.
        seed: of all that is random in a step.

    Shapes:
        images `(b, c, y, x)` → logits `(b, classes)`
    """

    def __init__(
        self,
        network: NetworkConfig = NetworkConfig(),
        grid: GridConfig = GridConfig(),
        optimiser: OptimiserConfig = OptimiserConfig(),
        *,
        label_smoothing: float = 0.0,
        class_weights: bool = False,
        channels_last: bool = False,
        compile: bool | str = False,
        start: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing!r}")
        self.network, self.grid, self.optimiser = network, grid, optimiser
        self.label_smoothing, self.class_weights = label_smoothing, class_weights
        self.channels_last, self.seed = channels_last, seed
        plain = {"label_smoothing": label_smoothing, "class_weights": class_weights, "channels_last": channels_last}
        plain |= {"compile": compile, "start": start, "seed": seed}
        self.save_hyperparameters(
            {"network": asdict(network), "grid": asdict(grid), "optimiser": asdict(optimiser), **plain}
        )
        self.net: nn.Module = network.build(grid.build())
        if start is not None:
            begin_with(self.net, start)
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        if compile:
            compile_in_place(self.net, "inductor" if compile is True else compile)
        self.metrics = nn.ModuleDict(
            {
                f"{stage}_{name}": metric
                for stage in ("train", "val", "test")
                for name, metric in (("loss", MeanMetric().set_dtype(torch.float64)), ("error", ErrorRate()))
            }
        )
        self.confusion = nn.ModuleDict({stage: Confusion(network.num_classes) for stage in ("val", "test")})
        self.register_buffer("weights", None, persistent=False)  # of the classes
        self.tested = torch.zeros(0, 0, dtype=torch.int64)  # true class, predicted class, once it was tested
        self._trouble: str | None = None

    @classmethod
    def from_config(cls, plain: Mapping[str, Any]) -> "Classifier":
        """A classifier out of the plain values that a checkpoint holds."""
        try:
            contents.check_network(plain)
            known = ("label_smoothing", "class_weights", "channels_last", "seed")
            options = {key: plain[key] for key in known if key in plain}
            grid, optimiser = GridConfig(**plain["grid"]), OptimiserConfig(**plain.get("optimiser", {}))
            return cls(network_config(plain["network"]), grid, optimiser, **options)
        except Exception as error:  # values of wrong kinds fail in many ways, and all mean the same here
            reason = " ".join(str(error).split())
            raise ValueError(f"the checkpoint's settings do not describe a network: {reason}") from error

    @classmethod
    def load_from_checkpoint(  # pyright: ignore[reportIncompatibleMethodOverride]  # settings come from the file alone
        cls, checkpoint_path: str | Path, map_location: str | torch.device = "cpu"
    ) -> "Classifier":
        """A classifier as it was trained, out of a run's `.ckpt` or `.safetensors` file; `load_trained` gives more.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the file is damaged or something else.
        """
        checkpoint = storage.read(Path(checkpoint_path))
        classifier = cls.from_config(checkpoint["hyper_parameters"])
        classifier.load_checkpoint(checkpoint)
        return classifier.to(map_location)

    def setup(self, stage: str) -> None:
        """Compares the network with the data, before any work is done."""
        data = getattr(self.trainer, "datamodule", None)
        if self.class_weights and stage == "fit":
            self.weights = _weights(getattr(data, "class_counts", None)).to(self.device)
        if data is None or not hasattr(data, "shape"):
            return
        channels, *sides = data.shape
        size = self.network.image_size
        pairs = {
            "num_classes": (self.network.num_classes, data.classes),
            "in_channels": (self.network.in_channels, channels),
            "image_size": (size, size if set(sides) == {size} else "×".join(map(str, sides))),
            f"the space of grid.group={self.grid.group}": (f"R^{self.grid.build().space}", f"R^{len(sides)}"),
        }
        wrong = [
            f"{key} is {ours} but the data has {theirs}" for key, (ours, theirs) in pairs.items() if ours != theirs
        ]
        if wrong:
            name = getattr(data, "data_name", type(data).__name__)
            raise ValueError(
                f"the network does not fit the data set {name!r}: {'; '.join(wrong)} (set model.network to match)"
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.net(self._laid_out(images))

    def finished(self) -> nn.Module:
        """The network as it answers once it is trained: in `eval()`, averaged over the shifts that the grid names."""
        network = self.net.eval()
        return network if self.grid.shifts == 1 else average(network, self.grid.shifts)

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def _answers(self, images: Tensor) -> list[Tensor]:
        """Logits of each network that is fitted by itself: of the network, or of all members of an ensemble."""
        if not isinstance(self.net, Average):
            return [self(images)]
        images = self._laid_out(images)
        return [network(images) for network in self.net.networks]

    def on_train_epoch_start(self) -> None:
        """Empties the metrics; an epoch that is resumed midway does not come by here and keeps them."""
        for name in ("train_loss", "train_error"):
            self._metric(name).reset()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Draws the step's randomness from its position."""
        self._reseed(batch_idx)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of a batch; of an ensemble the mean over its members, which share nothing but the batch."""
        images, labels = batch
        answers = self._answers(images)
        losses = [F.cross_entropy(a, labels, self.weights, label_smoothing=self.label_smoothing) for a in answers]
        loss, logits = torch.stack(losses).mean(), torch.stack([a.detach() for a in answers]).mean(0)
        if not finite([loss]):
            self._reseed(batch_idx)
            self._trouble = f"the loss is {loss.item()}, first in {first_bad_output(self.net, images)}"
            if self.trainer.world_size == 1:
                raise self._non_finite()
            loss = loss * torch.nan  # reaches all processes through their gradients, so that they stop together
        self._update("train", loss.detach(), logits, labels)
        self.log("train/loss_step", loss.detach(), on_step=True, on_epoch=False, prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuses gradients that are not finite, except where a gradient scaler deals with them."""
        if self.trainer.precision == "16-mixed":
            return
        if not finite(p.grad for p in self.net.parameters() if p.grad is not None):
            self._trouble = self._trouble or first_bad_gradient(self.net) or "a gradient"
            raise self._non_finite()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Counts a batch of the validation set."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Counts a batch of the test set, with answers averaged over the shifts that the grid's settings name."""
        self._evaluate("test", batch, self.grid.shifts)

    def on_test_epoch_end(self) -> None:
        """Keeps which classes were taken for which, over all processes."""
        counts = self.confusion["test"]
        assert isinstance(counts, Confusion)
        with counts.sync_context(should_sync=self.trainer.world_size > 1):
            self.tested = counts.counts.clone().cpu()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimiser and, if the rate changes, its schedule by step."""
        optimiser, schedule = self.optimiser.build(self.net, self.trainer.estimated_stepping_batches)
        if schedule is None:
            return optimiser
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the trainer's settings, what the metrics of all processes have counted, and how images are prepared."""
        best = getattr(self.trainer.checkpoint_callback, "best", {})
        checkpoint["run"] = {**settings.of_trainer(self.trainer), "best": dict(best)}
        counts = {}
        for name in ("train_loss", "train_error"):
            with self._metric(name).sync_context(should_sync=self.trainer.world_size > 1):
                counts[name] = {
                    key: torch.as_tensor(value).clone() for key, value in self._metric(name).metric_state.items()
                }
        checkpoint["metrics"] = counts
        checkpoint[preparation.KEY] = preparation.of_data(getattr(self.trainer, "datamodule", None), self.network)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another network or, to go on with, of other settings; takes up the metrics."""
        self._check_same_network(checkpoint)
        trainer = self._trainer
        if trainer is not None and trainer.state.fn == TrainerFn.FITTING:
            ours = {"model": dict(self.hparams), **settings.of_trainer(trainer)}
            settings.check_same(settings.of_checkpoint(checkpoint), ours)
            if len(checkpoint.get("lr_schedulers", [])) != (self.optimiser.schedule == "onecycle"):
                raise ValueError("the checkpoint cannot be gone on from: its lr_schedulers are not those of this run")
        if self.global_rank == 0:  # the counts are sums over processes
            for name, states in checkpoint.get("metrics", {}).items():
                for key, value in states.items():
                    setattr(self._metric(name), key, value.to(self.device))

    def _check_same_network(self, checkpoint: dict[str, Any]) -> None:
        theirs, ours = checkpoint["state_dict"], self.state_dict()
        problems = [f"it lacks {key}" for key in ours if key not in theirs]
        problems += [f"it has {key}, which this network has not" for key in theirs if key not in ours]
        problems += [
            f"{key} is {tuple(theirs[key].shape)} there, {tuple(ours[key].shape)} here"
            for key in ours
            if key in theirs and theirs[key].shape != ours[key].shape
        ]
        if problems:
            changed = settings.differences(settings.of_checkpoint(checkpoint), {"model": dict(self.hparams)})
            more = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
            raise ValueError(f"the checkpoint is of another network: {'; '.join(changed + problems[:3] + more)}")

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes a checkpoint's weights, which must be those of this network."""
        self._check_same_network(checkpoint)
        self.load_state_dict(checkpoint["state_dict"])

    def _metric(self, name: str) -> Metric:
        metric = self.metrics[name]
        assert isinstance(metric, Metric)
        return metric

    def _reseed(self, batch_idx: int) -> None:
        torch.manual_seed(derive(self.seed, self.current_epoch, batch_idx))

    def _non_finite(self) -> NonFiniteError:
        return NonFiniteError(
            f"training stopped at step {self.trainer.global_step}: {self._trouble}. {advice(self.trainer)}"
        )

    def _evaluate(self, stage: str, batch: Batch, shifts: int = 1) -> None:
        images, labels = batch
        logits = self(images) if shifts == 1 else mean_over_shifts(self, images, shifts)
        counted = labels != PADDING
        logits, labels = logits[counted].float(), labels[counted]
        self._update(stage, F.cross_entropy(logits, labels), logits, labels)

    def _update(self, stage: str, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        mean, error = self._metric(f"{stage}_loss"), self._metric(f"{stage}_error")
        if len(labels):
            mean.update(loss.double(), len(labels))
            error.update(logits, labels)
        self.log(f"{stage}/loss", mean, on_step=False, on_epoch=True)
        self.log(f"{stage}/error", error, on_step=False, on_epoch=True, prog_bar=stage != "train")
        if stage in self.confusion:
            counts = self.confusion[stage]
            assert isinstance(counts, Confusion)
            if len(labels):
                counts.update(logits, labels)
            self.log(f"{stage}/balanced_error", counts, on_step=False, on_epoch=True)


def _weights(counts: Tensor | None) -> Tensor:
    """One over the number of images of each class, with a mean of 1 over the images."""
    if counts is None or not (counts > 0).all():
        raise ValueError(
            f"class_weights needs data that has class_counts, the training images of each class; got {counts}"
        )
    return (counts.sum() / (len(counts) * counts)).float()
