import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from sepgconv.data import (
    Compose,
    HorizontalFlip,
    PadCrop,
    RandomRotation,
    RandomScale,
    Transform,
    rotate,
    scale,
)

ALL = [
    RandomRotation(),
    RandomRotation(-15, 15, "bilinear"),
    RandomScale(0.7, 1.2),
    PadCrop(3),
    HorizontalFlip(),
    Compose(PadCrop(2), HorizontalFlip(), RandomRotation()),
]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_the_generator_alone_decides(transform: Transform, random: Generator) -> None:
    images = torch.rand(16, 2, 12, 12, generator=random)
    before, state = images.clone(), torch.get_rng_state()
    first = transform(images, seeded(1))
    assert torch.equal(first, transform(images, seeded(1)))
    assert not torch.equal(first, transform(images, seeded(2)))
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == images.shape
    assert first.dtype == images.dtype


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_images_of_a_batch_differ(transform: Transform, random: Generator) -> None:
    images = torch.rand(1, 1, 12, 12, generator=random).expand(32, -1, -1, -1)
    assert len(transform(images, seeded()).unique(dim=0)) > 1


def test_rotation_covers_its_range() -> None:
    points = torch.zeros(4000, 1, 21, 21)
    points[:, :, 9:12, 17:20] = 1  # at 0 degrees
    axis = torch.arange(21.0) - 10

    def angles(low: float, high: float) -> Tensor:
        turned = RandomRotation(low, high)(points, seeded())[:, 0]
        up, right = -(turned.sum(2) * axis).sum(1), (turned.sum(1) * axis).sum(1)
        return torch.atan2(up, right).rad2deg()

    found = angles(30, 60)
    assert found.min() == pytest.approx(30, abs=0.5)
    assert found.max() == pytest.approx(60, abs=0.5)
    quarters = angles(0, 360).remainder(360).div(90).long().bincount()
    assert quarters.tolist() == pytest.approx([1000] * 4, abs=100)


def test_a_range_of_one_value_is_the_deterministic_function(random: Generator) -> None:
    images = torch.rand(4, 1, 12, 12, generator=random)
    assert torch.equal(RandomRotation(25, 25)(images, seeded()), rotate(images, 25))
    assert torch.equal(RandomScale(0.6, 0.6)(images, seeded()), scale(images, 0.6))


def test_scale_covers_its_range() -> None:
    areas = RandomScale(0.5, 1.5)(torch.ones(2000, 1, 40, 40), seeded()).mean((1, 2, 3))
    # Above 1 the picture fills the canvas; below it the area is the factor's square.
    assert areas.min() == pytest.approx(0.25, abs=0.01)
    assert (areas > 0.99).float().mean() == pytest.approx(0.5, abs=0.05)


def test_pad_crop_gives_every_shift_and_no_other(random: Generator) -> None:
    image = torch.rand(1, 2, 5, 6, generator=random)
    padded = F.pad(image, [1, 1, 1, 1])
    shifts = {(y, x): padded[0, :, y : y + 5, x : x + 6].flatten().tolist() for y in range(3) for x in range(3)}
    found = PadCrop(1)(image.expand(500, -1, -1, -1), seeded()).flatten(1).tolist()
    assert {tuple(i) for i in found} == {tuple(i) for i in shifts.values()}


def test_pad_crop_of_nothing_is_the_identity(random: Generator) -> None:
    images = torch.rand(3, 2, 5, 6, generator=random)
    assert torch.equal(PadCrop(0)(images, seeded()), images)


def test_flip_mirrors_left_to_right_with_its_probability(random: Generator) -> None:
    images = torch.rand(2000, 1, 3, 4, generator=random)
    flipped = HorizontalFlip(0.25)(images, seeded())
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert mirrored.float().mean() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(HorizontalFlip(0)(images, seeded()), images)
    assert torch.equal(HorizontalFlip(1)(images, seeded()), images.flip(-1))


def test_compose_applies_in_order(random: Generator) -> None:
    images = torch.rand(4, 1, 8, 8, generator=random)
    turn, flip = RandomRotation(90, 90), HorizontalFlip(1)
    assert torch.equal(Compose(turn, flip)(images, seeded()), rotate(images, 90).flip(-1))
    assert torch.equal(Compose(flip, turn)(images, seeded()), rotate(images.flip(-1), 90))
    assert torch.equal(Compose()(images, seeded()), images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomRotation(10, -10), "low=10, high=-10"),
        (lambda: RandomRotation(mode="cubic"), "bicubic, bilinear, got 'cubic'"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomScale(0, 1), "low=0, high=1"),
        (lambda: RandomScale(1.2, 0.8), "low=1.2, high=0.8"),
        (lambda: PadCrop(-1), "padding must not be negative, got -1"),
        (lambda: HorizontalFlip(1.5), r"\[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
