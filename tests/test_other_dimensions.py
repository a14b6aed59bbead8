"""Volumes and signals: trained in one pose, tested in others; small enough for a test."""

import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.actions import transform_space
from sepgconv.data import load
from sepgconv.data.dataset import Split
from sepgconv.testing import assert_equivariant
from sepgconv.training import OptimiserConfig
from sepgconv.training.datamodule import turned

SMALL = sg.KernelConfig(hidden=16, layers=1)
BATCH = 16


def train(net: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """As recipes do, in batches of 16."""
    optimiser, schedule = OptimiserConfig(lr=1e-2).build(net, epochs * (len(images) // BATCH))
    assert schedule is not None
    for _ in range(epochs):
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def error(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    found = torch.cat([net(part).argmax(1) for part in images.split(100)])
    return 100 * (found != labels).double().mean().item()


def volume_net(grid: sg.Grid, factorisation: str, classes: int) -> nn.Sequential:
    """A small network; the mean over 2³ voxels comes first."""
    shared = {"grid": grid, "kernel": SMALL, "factorisation": factorisation}
    return nn.Sequential(
        nn.AvgPool3d(2),
        sg.LiftingConv(1, 4, 3, grid=grid, kernel=SMALL),
        sg.BatchNorm(4),
        nn.ReLU(),
        sg.GroupConv(4, 8, 3, **shared),
        sg.BatchNorm(8),
        nn.ReLU(),
        sg.SpatialPool("max", 2),
        sg.GroupConv(8, 8, 3, **shared),
        sg.BatchNorm(8),
        nn.ReLU(),
        sg.GroupPool("max"),
        nn.Linear(8, classes),
    )


def few(split: Split, count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Normalised volumes of the first classes."""
    chosen = split.take((split.labels < classes).nonzero().flatten()[:count])
    return (chosen.images.float() / 255 - 0.05) / 0.2, chosen.labels


def test_digits_as_volumes_in_all_orientations() -> None:
    """What upright digits teach SE(3) it knows in other orientations, too, and a plain network forgets it there.

    Four digits in six of the 24 orientations, with limits of three standard errors of 100 volumes.
    """
    data = load("digits3d")
    (images, labels), (held, truth) = few(data.train, 240, 4), few(data.test, 100, 4)
    group = sg.se3(24).group
    orientations = torch.cat([transform_space(held, matrix) for matrix in group.matrix(sg.se3(24).nominal[1::4])])
    found = {}
    for name, grid, factorisation in (
        ("se3", sg.se3(24, sampling="fixed"), "separable"),
        ("plain", sg.translation3(), "nonseparable"),
    ):
        torch.manual_seed(0)
        net = train(volume_net(grid, factorisation, 4), images, labels, 4)
        found[name] = error(net, held, truth), error(net, orientations, truth.repeat(6))
    print(found)
    (upright, everywhere), (known, forgotten) = found["se3"], found["plain"]
    chance, unit = 75, 100 / len(held) ** 0.5
    assert upright < chance - 3 * (0.75 * 0.25) ** 0.5 * unit  # it has learnt something
    assert abs(everywhere - upright) <= 1
    assert forgotten > known + 3 * (2 * 0.25) ** 0.5 * unit


def test_signals_at_other_time_scales() -> None:
    """What chirps and pulses at one scale teach a pyramid it knows of stretched ones; a plain network forgets it there.

    Limits of three standard errors of 300 and 600 signals, about a rate of half a percent.
    """
    data = load("signals")
    sets = [
        ((s.images[:n].float() - 128) / 40, s.labels[:n])
        for s, n in ((data.train, 640), (data.valid, 300), (data.test, 600))
    ]
    (images, labels), (held, truth), (stretched, theirs) = sets
    found = {}
    for name, grid in (("scale1", sg.scale1(11, 32.0)), ("plain", sg.translation1())):
        torch.manual_seed(0)
        net = sg.models.shallow(grid, 1, 6, kernel_size=7, finest=0.25, dropout=0.0, kernel=SMALL)
        train(net, images, labels, 5)
        found[name] = error(net, held, truth), error(net, stretched, theirs)
    print(found)
    unit = 100 * (0.005 * 0.995 * (1 / 300 + 1 / 600)) ** 0.5
    assert found["scale1"][0] < 5
    assert abs(found["scale1"][1] - found["scale1"][0]) < 3 * unit
    assert found["plain"][1] > found["plain"][0] + 3 * unit


def test_data_of_other_dimensions() -> None:
    volumes, signals = load("digits3d"), load("signals")
    assert volumes.shape == (1, 16, 16, 16)
    assert signals.shape == (1, 128)
    assert torch.equal(volumes.train.images, volumes.train.images.flip(2))  # as thick before as behind the centre
    assert torch.equal(load("signals").test.images, signals.test.images)
    assert not torch.equal(load("signals", seed=1).test.images, signals.test.images)
    some = Split(volumes.test.images[:50], volumes.test.labels[:50])
    again = turned(some)
    assert not torch.equal(again.images, some.images)
    assert torch.equal(again.images.flatten(1).sort().values, some.images.flatten(1).sort().values)


def test_the_resnet_takes_volumes_and_signals() -> None:
    net = sg.models.resnet(sg.se3(12), width=0.06, kernel_size=3, image_size=16, kernel=SMALL).double()
    report = assert_equivariant(net, torch.randn(2, 1, 16, 16, 16, dtype=torch.float64), grid=sg.se3(12))
    assert len(report.exact) == 11
    assert [net[0].kernel_size, sg.models.resnet(sg.translation3(), width=0.1)[0].kernel_size] == [3, 5]
    assert sg.models.resnet(sg.scale1(3), width=0.1).eval()(torch.randn(2, 1, 64)).shape == (2, 10)
    assert sg.models.allcnnc(sg.scale3(2), 1, width=0.05).eval()(torch.randn(1, 1, 8, 8, 8)).shape == (1, 10)
