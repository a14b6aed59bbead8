import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from training_helpers import GRID, NETWORK

from sepgconv import KernelConfig
from sepgconv.grids import GRIDS
from sepgconv.training import (
    Checkpoints,
    Classifier,
    GridConfig,
    NetworkConfig,
    NonFiniteError,
    OptimiserConfig,
    fit,
    storage,
)
from sepgconv.training.error_rate import ErrorRate
from sepgconv.training.module import PADDING
from sepgconv.training.seeding import derive


def test_a_classifier_is_made_again_from_its_plain_settings():
    first = Classifier(NETWORK, GRID, OptimiserConfig("paper"), label_smoothing=0.1, channels_last=True, seed=3)
    again = Classifier.from_config(dict(first.hparams))
    assert (again.network, again.grid, again.optimiser) == (first.network, first.grid, first.optimiser)
    assert (again.label_smoothing, again.channels_last, again.seed) == (0.1, True, 3)
    again.load_state_dict(first.state_dict())
    earlier = {**first.hparams["network"]}
    earlier["checkpoint"] = not earlier.pop("recompute")  # as it was called once
    assert Classifier.from_config({**first.hparams, "network": earlier}).network.recompute


def test_every_group_can_be_named():
    sizes = {"se2": 12, "e2": 24, "scale2": 2, "sim2": 24, "se3": 12, "scale3": 2, "scale1": 2}
    for group in GRIDS:
        config = GridConfig(group, rotations=12, scales=2, sampling="fixed", scale_sampling="random")
        grid = config.build()
        assert grid.size == sizes.get(group, 1)
        expected = {"rotations": "fixed", "scales": "random"}
        assert all(axis.sampling == expected[axis.keyword] for axis in grid.axes)


def test_every_model_can_be_named():
    network = NetworkConfig("allcnnc", width=0.05, kernel=KernelConfig(hidden=4, layers=1), in_channels=3, image_size=8)
    assert Classifier(network, GRID)(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GridConfig("se4"), r"group must be one of se2, e2, .*got 'se4'"),
        (lambda: GridConfig("se3", rotations=7).build(), r"rotations must be one of 12, 24, 60, got 7"),
        (lambda: OptimiserConfig("sgd"), r"schedule must be one of paper, onecycle; got 'sgd'"),  # pyright: ignore[reportArgumentType]
        (lambda: OptimiserConfig(lr=0.0), r"lr must be positive, got 0.0"),
        (lambda: NetworkConfig("resnett").build(GRID.build()), r"did you mean 'resnet'"),
        (
            lambda: NetworkConfig(name="allcnnc", finest=0.5).build(GRID.build()),
            r"models.allcnnc has no finest",
        ),
        (lambda: Classifier(NETWORK, GRID, label_smoothing=1.5), r"label_smoothing must lie in \[0, 1\), got 1.5"),
        (lambda: derive(-1), r"seed must be a whole number of at least 0, got -1"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules():
    network = nn.Linear(1, 1)
    paper, constant = OptimiserConfig("paper").build(network, 10)
    assert constant is None
    assert (type(paper), paper.defaults["lr"], paper.defaults["weight_decay"]) == (torch.optim.Adam, 1e-4, 1e-4)
    fast, schedule = OptimiserConfig("onecycle", lr=2e-3).build(network, 100)
    assert isinstance(fast, torch.optim.AdamW)
    assert schedule is not None
    rates = []
    for _ in range(100):
        rates.append(fast.param_groups[0]["lr"])
        fast.step()
        schedule.step() if len(rates) < 100 else None
    assert max(rates) == pytest.approx(2e-3, rel=1e-3)
    assert rates.index(max(rates)) == pytest.approx(25, abs=2)
    assert rates[-1] < 1e-6


def test_hidden_layers_of_sirens_take_the_rate_divided_by_omega0():
    network = NETWORK.build(GRID.build())
    fast, _ = OptimiserConfig("onecycle", lr=5e-3).build(network, 10)
    omega0 = NETWORK.kernel.omega0
    assert [group["max_lr"] for group in fast.param_groups] == [5e-3, 5e-3 / omega0]
    hidden = {id(p) for name, p in network.named_parameters() if ".hidden." in name}
    assert {id(p) for p in fast.param_groups[1]["params"]} == hidden
    assert sum(len(group["params"]) for group in fast.param_groups) == len(list(network.parameters()))
    paper, _ = OptimiserConfig("paper").build(network, 10)
    assert len(paper.param_groups) == 1


def test_positions_have_seeds_of_their_own():
    assert len({derive(0), derive(0, 0), derive(0, 0, 0), derive(0, 1), derive(1, 0)}) == 5
    assert derive(1, 2, 3) == derive(1, 2, 3)


def test_error_rate_counts():
    metric = ErrorRate()
    logits = torch.eye(4)
    metric.update(logits, torch.tensor([0, 1, 2, 0]))
    metric.update(logits[:2], torch.tensor([1, 1]))
    assert metric.compute().item() == pytest.approx(100 * 2 / 6)


def test_padding_does_not_count():
    classifier = Classifier(NETWORK, GRID).eval()
    classifier.log = lambda *args, **kwargs: None
    images, labels = torch.randn(4, 1, 28, 28), torch.tensor([1, 2, PADDING, PADDING])
    classifier._evaluate("val", (images, labels))
    error = classifier.metrics["val_error"]
    assert isinstance(error, ErrorRate)
    assert error.total.item() == 2


def test_channels_last_and_compilation_change_nothing():
    torch.manual_seed(0)
    plain = Classifier(NETWORK, GRID).eval()
    other = Classifier(NETWORK, GRID, channels_last=True, compile=True).eval()
    assert other.state_dict().keys() == plain.state_dict().keys()
    other.load_state_dict(plain.state_dict())
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(other(images), plain(images), rtol=1e-4, atol=1e-5)


class At(Callback):
    """Does something once, before or after a step."""

    def __init__(self, step: int, action, *, after: bool = False) -> None:
        self.step, self.action, self.after = step, action, after

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if trainer.global_step == self.step and not self.after:
            self.action(pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == self.step and self.after:
            self.action(pl_module)


def _spoil_weights(classifier: Classifier) -> None:
    next(classifier.get_submodule("net.7.conv1").parameters()).data.fill_(torch.inf)


def _spoil_gradient(classifier: Classifier) -> None:
    weight = classifier.get_parameter("net.15.weight")
    weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.parametrize(
    ("callback", "step", "layer"),
    [
        (At(3, _spoil_weights), 3, r"the loss is nan, first in the output of layer '7\.conv1"),
        (At(3, _spoil_gradient), 3, r"the gradient of '15\.weight'"),
        (At(3, _spoil_weights, after=True), 3, r"the weights 'net\.7\.conv1\..*' are no longer finite"),
    ],
    ids=["output", "gradient", "weights"],
)
def test_a_non_finite_number_stops_the_run_and_spares_the_checkpoint(tiny, callback, step, layer):
    run = tiny(callbacks=[callback])
    with pytest.raises(NonFiniteError, match=rf"stopped at step {step}: {layer}"):
        fit(*run)
    newest = storage.newest(Checkpoints.folder(run[0]))
    assert newest is not None
    kept = storage.read(newest)
    assert kept["global_step"] == step - callback.after
    assert all(value.isfinite().all() for value in kept["state_dict"].values())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (0, "There is no checkpoint yet; look at the images and at the weights that the run begins with"),
        (1, "There is no checkpoint yet; a lower optimiser.lr often helps"),
        (6, "The checkpoint of step 5 is kept; a lower optimiser.lr often helps"),
    ],
)
def test_only_what_there_is_is_said_to_be_kept(tiny, step, said):
    with pytest.raises(NonFiniteError, match=said):
        fit(*tiny(callbacks=[At(step, _spoil_weights)], every=100))


def test_mixed_precision(tiny):
    result = fit(*tiny(precision="bf16-mixed", max_epochs=1))
    assert result["metrics"]["final"]["train/loss"] < 10
