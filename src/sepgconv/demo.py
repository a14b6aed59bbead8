"""The demo: two networks learn upright digits and are tested on turned ones."""

import argparse
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sepgconv.data import Split, rotate
from sepgconv.data.places import check_outputs
from sepgconv.grids import se2
from sepgconv.kernels import KernelConfig
from sepgconv.testing import equivariance_error
from sepgconv.training import Classifier, GridConfig, Images, NetworkConfig, OptimiserConfig
from sepgconv.training.seeding import generator

ANGLES = tuple(range(0, 360, 15))
KERNEL = KernelConfig(layers=1, cutoff=0.4)


@dataclass(frozen=True)
class Contestant:
    """One of the two networks: same architecture and widths, another group."""

    name: str
    grid: GridConfig
    factorisation: str
    colour: str


CONTESTANTS = (
    Contestant("SE(2), 8 rotations", GridConfig("se2", rotations=8), "separable", "#1b6ca8"),
    Contestant("plain CNN", GridConfig("translation2"), "nonseparable", "#c0392b"),
)


@dataclass(frozen=True)
class Outcome:
    """What is known of a trained network; errors in per cent."""

    contestant: Contestant
    parameters: int
    upright: float
    rotated: float
    by_angle: tuple[float, ...]
    quarter_turn: float
    seconds: float

    @property
    def worst(self) -> float:
        """At the worst angle."""
        return max(self.by_angle)


def train(contestant: Contestant, data: Images, *, epochs: int, width: float, seed: int, quiet: bool) -> Classifier:
    """Fits a network to the upright training digits."""
    torch.manual_seed(seed)
    network = NetworkConfig(factorisation=contestant.factorisation, kernel=KERNEL, width=width, antialias=True)
    return fit(Classifier(network, contestant.grid, OptimiserConfig(), seed=seed), data, epochs=epochs, quiet=quiet)


def fit(classifier: Classifier, data: Images, *, epochs: int, quiet: bool) -> Classifier:
    """The demo's schedule."""
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=not quiet,
        callbacks=None if quiet else [RichProgressBar()],
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(classifier, datamodule=data)
    return classifier.eval()


@contextmanager
def no_advice() -> Iterator[None]:
    """Keeps Lightning's remarks on GPUs, workers and logging out of a demo's output."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def error(classifier: Classifier, data: Images, split: Split, degrees: float | Tensor = 0.0) -> float:
    """Percentage of a split's digits, turned by these angles, that are classified wrongly."""
    angles = torch.as_tensor(degrees, dtype=torch.float64).expand(len(split))
    wrong = 0
    for images, labels, turns in zip(split.images.split(250), split.labels.split(250), angles.split(250), strict=True):
        turned = rotate(images.float(), turns).clamp(0, 255)
        wrong += (classifier(data.normaliser(turned)).argmax(1) != labels).sum().item()
    return 100 * wrong / len(split)


def evaluate(contestant: Contestant, classifier: Classifier, data: Images, seconds: float) -> Outcome:
    """Tests a network upright, at random angles, and at each of `ANGLES`."""
    test = data.data.test
    assert isinstance(test, Split)  # the embedded digits
    random = 360 * torch.rand(len(test), generator=generator(0, 360), dtype=torch.float64)
    images = data.normaliser(test.images[:8])
    # The same question to both: how much do the logits change when the image is turned by 90°, 180°, 270°?
    turns = equivariance_error(classifier.net, images, grid=se2(4)).exact
    return Outcome(
        contestant,
        sum(p.numel() for p in classifier.net.parameters()),
        error(classifier, data, test),
        error(classifier, data, test, random),
        tuple(error(classifier, data, test, float(angle)) for angle in ANGLES),
        max(entry.error for entry in turns),
        seconds,
    )


def draw(outcomes: Sequence[Outcome], digit: Tensor, path: Path) -> None:
    """Error against angle for all networks, with a digit turned accordingly above."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    pictures = figure.subplots(2, 1, height_ratios=[1, 7], sharex=True)
    strip, axes = pictures
    strip.axis("off")
    for angle in range(0, 360, 45):
        inset = strip.inset_axes((angle - 16, 0, 32, 1), transform=strip.transData)
        inset.imshow(rotate(digit[None].float(), float(angle))[0, 0].clamp(0, 255).numpy(), cmap="gray_r")
        inset.axis("off")
    strip.set_ylim(0, 1)
    for outcome in outcomes:
        closed = [*outcome.by_angle, outcome.by_angle[0]]
        colour = outcome.contestant.colour
        above = max(e for angle, e in zip(ANGLES, outcome.by_angle, strict=True) if abs(angle - 180) <= 45)
        axes.plot([*ANGLES, 360], closed, "o-", color=colour, ms=4)
        axes.annotate(
            outcome.contestant.name, (180, above), (0, 5), textcoords="offset points", ha="center", color=colour
        )
    axes.set_xlim(-18, 378)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 361, 45), [f"{angle}°" for angle in range(0, 361, 45)])
    axes.set_xlabel("the test digits are turned by")
    axes.set_ylabel("error (%)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Trained on upright digits, tested on turned ones")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def table(outcomes: Sequence[Outcome], data: Images) -> Table:
    """The outcomes side by side: errors, change of the logits by a quarter turn, time."""
    trained = data.limit or len(data.data.train)
    title = f"Error in %: trained on {trained:,} upright digits, tested on {len(data.data.test):,} turned ones"
    result = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns are enough
    for column in ("network", "weights", "0°", "45°", "worst", "random", "90° turn", "training"):
        result.add_column(column, justify="left" if column == "network" else "right", no_wrap=True)
    for o in outcomes:
        errors = (f"{e:.1f}" for e in (o.upright, o.by_angle[ANGLES.index(45)], o.worst, o.rotated))
        result.add_row(o.contestant.name, f"{o.parameters:,}", *errors, f"{o.quarter_turn:.0e}", f"{o.seconds:.0f} s")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="sepgconv demo", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/demo"), help="where the picture goes (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training digits (%(default)s)")
    parser.add_argument("--width", type=float, default=0.5, help="multiplies all channel counts (%(default)s)")
    parser.add_argument("--limit", type=int, help="train on so many digits only")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    options = parser.parse_args(arguments)
    path = options.output / "error_by_angle.png"
    check_outputs(path)  # before minutes of training
    for name in ("epochs", "width"):
        if not 0 < (value := getattr(options, name)) < float("inf"):
            raise ValueError(f"{name} must be greater than 0, got {value:g}")
    if options.seed < 0:
        raise ValueError(f"seed must be at least 0, got {options.seed}")
    console = Console()
    data = Images("digits", batch_size=64, limit=options.limit, seed=options.seed)
    data.train_dataloader()  # refuses a limit that does not fit
    outcomes = []
    for contestant in CONTESTANTS:
        console.print(f"Training: {contestant.name}")
        start = time.monotonic()
        settings = {"epochs": options.epochs, "width": options.width, "seed": options.seed, "quiet": options.quiet}
        with no_advice():
            classifier = train(contestant, data, **settings)
        outcomes.append(evaluate(contestant, classifier, data, time.monotonic() - start))
    console.print(table(outcomes, data))
    draw(outcomes, data.data.test.pixels(slice(4, 5))[0], path)
    ours, theirs = outcomes[0].rotated, outcomes[1].rotated
    console.print(f"worst: of {len(ANGLES)} angles. random: any angle, another one for each digit.")
    console.print("90° turn: relative change of the logits by a quarter turn.")
    console.print(f"On rotated digits the plain CNN errs {theirs / max(ours, 0.1):.1f} times as often.")
    console.print(f"Error against angle: {path}")
    return 0
