import math

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
    RandomWarp,
    Transform,
    rotate,
    scale,
    warp,
)

ALL = [
    RandomRotation(),
    RandomRotation(-15, 15, "bilinear"),
    RandomScale(0.7, 1.2),
    RandomWarp(1.0),
    RandomWarp(0.5, rotate=True, scale=0.8),
    RandomWarp(0.0, stretch=0.2),
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


def read_from(elastic: float, images: int = 400, n: int = 65, **options: float) -> Tensor:
    """From where, down and right of the centre, `RandomWarp` reads the middle 21×21 pixels: `(b, 2, y, x)`."""
    line = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2) / 100
    # Splines read slopes exactly, so these tell from where; what they make of the border has faded after 22 pixels.
    slopes = torch.stack(torch.meshgrid(line, line, indexing="ij"))
    return 100 * RandomWarp(elastic, **options)(slopes.expand(images, -1, -1, -1), seeded())[..., 22:-22, 22:-22]


def displacements(elastic: float, images: int = 400, **options: float) -> Tensor:
    """By how much `RandomWarp` moves what it reads, down and to the right: `(b, 2, y, x)`, far from the border."""
    line = torch.arange(21, dtype=torch.float64) - 10
    return read_from(elastic, images, **options) - torch.stack(torch.meshgrid(line, line, indexing="ij"))


def test_warp_moves_pixels_by_its_deviation() -> None:
    moved = displacements(0.8)
    assert moved.mean().item() == pytest.approx(0, abs=0.05)
    # Everywhere, on points of the lattice and between them.
    assert moved.std(dim=0).mean().item() == pytest.approx(0.8, rel=0.03)
    assert moved.std(dim=0).min() > 0.6
    assert moved.std(dim=0).max() < 1.0
    assert displacements(1.6, 4) == pytest.approx(2 * displacements(0.8, 4), abs=1e-9)


def test_warp_is_smooth_over_its_spacing() -> None:
    def roughness(moved: Tensor) -> float:
        return moved.diff(dim=-1).std().item()

    fine, coarse = displacements(0.8, spacing=4.0), displacements(0.8, spacing=12.0)
    assert roughness(coarse) == pytest.approx(roughness(fine) / 3, rel=0.1)
    assert displacements(1.0).diff(dim=-1).abs().max() < 1  # pixels keep their order


@pytest.mark.parametrize("rotate", [False, True])
def test_stretch_lengthens_one_direction_and_shortens_the_other(rotate: bool) -> None:
    places = read_from(0.0, 200, stretch=0.2, rotate=rotate)
    columns = [(places[:, :, 11, 10] - places[:, :, 9, 10]) / 2, (places[:, :, 10, 11] - places[:, :, 10, 9]) / 2]
    maps = torch.stack(columns, 2)  # linear, the centre stays
    assert places[:, :, 10, 10].abs().max() < 1e-9
    line = torch.arange(21, dtype=torch.float64) - 10
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"))
    assert torch.allclose(torch.einsum("bij,jyx->biyx", maps, points), places, atol=1e-9)
    longest, shortest = torch.linalg.svdvals(maps).T
    assert torch.allclose(longest + shortest, torch.full((200,), 2.0, dtype=torch.float64))
    assert (longest - 1).max() == pytest.approx(0.2, abs=0.01)
    assert (longest - 1).mean() == pytest.approx(0.1, abs=0.015)
    directions = torch.atan2(maps[:, 0, 1] + maps[:, 1, 0], maps[:, 1, 1] - maps[:, 0, 0]).remainder(2 * math.pi)
    assert torch.linalg.vector_norm(torch.polar(torch.ones_like(directions), directions).mean()) < 0.2  # all alike
    assert (torch.linalg.det(maps) > 0).all()


def test_warped_images_keep_their_range(random: Generator) -> None:
    images = (torch.rand(50, 1, 12, 12, generator=random) > 0.5).float() * torch.rand(50, 1, 1, 1, generator=random)
    low, high = images.amin((1, 2, 3)), images.amax((1, 2, 3))
    warped = RandomWarp(0.5, rotate=True)(images, seeded())
    assert (warped.amin((1, 2, 3)) >= low).all()
    assert (warped.amax((1, 2, 3)) <= high).all()


def test_warp_of_nothing_is_the_identity(random: Generator) -> None:
    images = torch.rand(3, 2, 9, 8, generator=random)
    assert torch.allclose(RandomWarp(0.0)(images, seeded()), images, atol=1e-6)


def test_warp_turns_and_scales_as_the_single_steps_do(random: Generator) -> None:
    images = torch.rand(3, 2, 12, 12, generator=random, dtype=torch.float64)
    still = torch.zeros(3, 2, 12, 12)
    angles, factors = torch.tensor([10.0, 90.0, 250.0]), torch.tensor([1.0, 1.3, 2.0])
    assert torch.allclose(warp(images, angles, 1.0, still), rotate(images, angles), atol=1e-9)
    assert torch.allclose(warp(images, 0.0, factors, still), scale(images, factors), atol=1e-9)
    one = torch.zeros(3, 2, 12, 12)
    one[:, 0] = 1
    assert torch.allclose(warp(images, 0.0, 1.0, one)[..., :-1, :], images[..., 1:, :])


@pytest.mark.parametrize("frequency", [0.5, 1.5, 2.5])
def test_splines_keep_fine_detail(frequency: float) -> None:
    pixels = torch.arange(64, dtype=torch.float64)
    waves = torch.cos(frequency * pixels).expand(1, 1, 64, 64).contiguous()
    half = torch.zeros(1, 2, 64, 64, dtype=torch.float64)
    half[:, 1] = 0.5
    # Half way between pixels a B-spline is (1, 23, 23, 1) / 48 of its coefficients, on pixels (1, 4, 1) / 6 of them.
    between = (23 * math.cos(frequency / 2) + math.cos(1.5 * frequency)) / 24
    kept = between / ((2 + math.cos(frequency)) / 3)
    inner = (0, 0, 32, slice(24, 40))
    expected = kept * torch.cos(frequency * (pixels + 0.5))[24:40]
    assert torch.allclose(warp(waves, 0.0, 1.0, half, "spline")[inner], expected, atol=1e-9)
    assert kept > (9 * math.cos(frequency / 2) - math.cos(1.5 * frequency)) / 8  # what Keys' cubic keeps
    assert torch.allclose(warp(waves, 0.0, 1.0, 0 * half, "spline"), waves, atol=1e-12)


def test_warp_reads_an_image_once(random: Generator) -> None:
    noise = torch.randn(20, 1, 41, 41, generator=random)
    once, steps = warp(noise, 17.0, 1.05, torch.zeros(20, 2, 41, 41)), rotate(scale(noise, 1.05), 17.0)
    inner = (..., slice(10, -10), slice(10, -10))
    # Reading between pixels takes fine detail away, here about a third of the power, each time.
    assert once[inner].var() > 1.3 * steps[inner].var()


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
        (lambda: RandomRotation(mode="cubic"), "bicubic, bilinear, spline, got 'cubic'"),  # pyright: ignore[reportArgumentType]
        (lambda: RandomScale(0, 1), "low=0, high=1"),
        (lambda: RandomScale(1.2, 0.8), "low=1.2, high=0.8"),
        (lambda: RandomWarp(-1), "elastic must be a number of pixels, not negative, got -1"),
        (lambda: RandomWarp(float("nan")), "not negative, got nan"),
        (lambda: RandomWarp(1, scale=1.2), r"scale must lie in \(0, 1\], got 1.2"),
        (lambda: RandomWarp(1, stretch=1.0), r"stretch must lie in \[0, 1\), got 1.0"),
        (lambda: RandomWarp(1, spacing=0.5), "spacing must be one pixel at least, got 0.5"),
        (lambda: warp(torch.rand(2, 1, 4, 4), 0, 0, torch.zeros(2, 2, 4, 4)), "factors must be positive, got 0"),
        (lambda: warp(torch.rand(2, 1, 4, 5), 0, 1, torch.zeros(2, 4, 5)), r"here \(2, 2, 4, 5\), got \(2, 4, 5\)"),
        (lambda: PadCrop(-1), "padding must not be negative, got -1"),
        (lambda: HorizontalFlip(1.5), r"\[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
