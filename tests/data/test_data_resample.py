import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sepgconv.data import rotate, scale
from sepgconv.data.resample import MODES, Mode


def blob(y: float, x: float, n: int = 33, sigma: float = 2.0) -> Tensor:
    """A Gaussian at an offset from the centre, y pointing down."""
    axis = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    return torch.exp(-((axis[:, None] - y) ** 2 + (axis - x) ** 2) / (2 * sigma**2))[None, None]


def centroid(images: Tensor) -> tuple[float, float]:
    n = images.shape[-1]
    axis = torch.arange(n, dtype=images.dtype) - (n - 1) / 2
    total = images.sum()
    return float((images.sum(-1) * axis).sum() / total), float((images.sum(-2) * axis).sum() / total)


@pytest.mark.parametrize("n", [7, 8])
@pytest.mark.parametrize("quarters", [-5, -1, 0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("mode", MODES)
def test_quarter_turns_are_exact(n: int, quarters: int, mode: Mode, random: torch.Generator) -> None:
    images = torch.rand(3, 2, n, n, generator=random)
    assert torch.equal(rotate(images, 90 * quarters, mode), torch.rot90(images, quarters, (-2, -1)))


def test_quarter_turns_agree_with_the_sampled_path(random: torch.Generator) -> None:
    images = torch.rand(1, 1, 9, 9, generator=random, dtype=torch.float64)
    assert torch.allclose(rotate(images, 90 + 1e-9), rotate(images, 90), atol=1e-6)


@pytest.mark.parametrize("degrees", [30.0, 90.0, 200.0, -45.0])
def test_positive_angles_turn_counter_clockwise_about_the_centre(degrees: float) -> None:
    radius, angle = 7.0, np.deg2rad(degrees)
    y, x = centroid(rotate(blob(0, radius), degrees))
    assert (y, x) == pytest.approx((-radius * np.sin(angle), radius * np.cos(angle)), abs=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_and_back_is_the_identity_on_smooth_images(mode: Mode) -> None:
    image = blob(3, -4, sigma=3)
    turned = rotate(image, 37, mode)
    assert (turned - image).abs().max() > 0.3
    error = (rotate(turned, -37, mode) - image).abs().max()
    assert error < {"bicubic": 0.005, "bilinear": 0.06, "spline": 0.0006}[mode]


def test_every_image_has_its_own_angle(random: torch.Generator) -> None:
    images = torch.rand(4, 1, 12, 12, generator=random)
    angles = torch.tensor([90.0, 12.5, 0.0, 271.0])
    each = torch.cat([rotate(i[None], float(a)) for i, a in zip(images, angles, strict=True)])
    assert torch.allclose(rotate(images, angles), each, atol=1e-6)
    assert torch.equal(rotate(images, angles)[2], images[2])


def test_outside_is_zero() -> None:
    turned = rotate(torch.ones(1, 1, 21, 21), 45)
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 10, 10] == pytest.approx(1)


@pytest.mark.parametrize("mode", MODES)
def test_linear_images_are_turned_exactly_inside(mode: Mode) -> None:
    axis = torch.arange(61, dtype=torch.float64) - 30
    image = (2 * axis[:, None] + 3 * axis)[None, None]
    angle = np.deg2rad(20)
    # The output at (y, x) is the input at the point that the turn brings there.
    y, x = axis[:, None], axis
    expected = 2 * (x * np.sin(angle) + y * np.cos(angle)) + 3 * (x * np.cos(angle) - y * np.sin(angle))
    inside = slice(23, 38)  # what a spline makes of the jump at the border has faded there
    found = rotate(image, 20, mode)[0, 0]
    assert torch.allclose(found[inside, inside], expected[inside, inside], atol=1e-6)


def test_images_that_are_not_square(random: torch.Generator) -> None:
    images = torch.rand(2, 1, 10, 16, generator=random)
    assert torch.equal(rotate(images, 180), torch.rot90(images, 2, (-2, -1)))
    middle = images[..., 3:13]
    assert torch.allclose(rotate(images, 90)[..., 3:13], torch.rot90(middle, 1, (-2, -1)), atol=1e-5)


def test_gradients_flow(random: torch.Generator) -> None:
    images = torch.rand(2, 1, 5, 5, generator=random, dtype=torch.float64, requires_grad=True)
    angles = torch.tensor([90.0, 33.0])
    assert torch.autograd.gradcheck(lambda i: rotate(i, angles), images)
    assert torch.autograd.gradcheck(lambda i: scale(i, 0.7), images)


@pytest.mark.parametrize("n", [7, 8])
def test_scale_one_is_the_identity(n: int, random: torch.Generator) -> None:
    images = torch.rand(3, 2, n, n, generator=random)
    assert torch.equal(scale(images, 1), images)


@pytest.mark.parametrize("side", [14, 10, 8])
def test_shrinking_is_pillows_bicubic(side: int, random: torch.Generator) -> None:
    # 28 and an even side share the centre, so Pillow's result is the middle of ours; but for the two
    # outermost pixels, where Pillow leaves out what is beyond the border and we count it as zeros.
    image = torch.rand(28, 28, generator=random)
    pillow = np.asarray(Image.fromarray(image.numpy()).resize((side, side), Image.Resampling.BICUBIC))
    inner = slice((28 - side) // 2 + 2, (28 + side) // 2 - 2)
    found = scale(image[None, None], side / 28)[0, 0, inner, inner]
    assert np.allclose(found, pillow[2:-2, 2:-2], atol=1e-5)


def test_enlarging_is_pillows_bicubic(random: torch.Generator) -> None:
    image = torch.rand(16, 16, generator=random)
    pillow = np.asarray(Image.fromarray(image.numpy()).resize((32, 32), Image.Resampling.BICUBIC))
    found = scale(image[None, None], 2)[0, 0]
    assert np.allclose(found[2:-2, 2:-2], pillow[10:-10, 10:-10], atol=1e-5)


@pytest.mark.parametrize("factor", [0.3, 0.55, 0.9, 1.3])
def test_the_sum_grows_with_the_square_of_the_factor(factor: float) -> None:
    image = blob(1, -2, sigma=3)
    assert scale(image, factor).sum() == pytest.approx(image.sum().item() * factor**2, rel=0.01)


@pytest.mark.parametrize("factor", [0.4, 0.75, 1.5])
def test_scaling_moves_points_away_from_the_centre_in_proportion(factor: float) -> None:
    y, x = centroid(scale(blob(3, -4), factor))
    assert (y, x) == pytest.approx((3 * factor, -4 * factor), abs=0.02)


def test_shrinking_does_not_alias() -> None:
    stripes = (torch.arange(32) % 2).float().expand(1, 1, 32, 32)
    middle = scale(stripes, 0.45)[0, 0, 14:18, 14:18]
    assert middle.sub(0.5).abs().max() < 0.02


def test_every_image_has_its_own_factor(random: torch.Generator) -> None:
    images = torch.rand(3, 1, 12, 10, generator=random)
    factors = torch.tensor([0.3, 1.0, 1.7])
    each = torch.cat([scale(i[None], float(f)) for i, f in zip(images, factors, strict=True)])
    assert torch.allclose(scale(images, factors), each, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotate(torch.zeros(1, 28, 28), 1), r"images .* got torch.float32 of shape \(1, 28, 28\)"),
        (lambda: rotate(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), 1), "images .* got torch.uint8"),
        (lambda: rotate(torch.zeros(1, 1, 4, 4), 1, "nearest"), "bicubic, bilinear, spline, got 'nearest'"),  # pyright: ignore[reportArgumentType]
        (lambda: rotate(torch.zeros(2, 1, 4, 4), torch.zeros(3)), r"each of the 2 images, got shape \(3,\)"),
        (lambda: rotate(torch.zeros(2, 1, 4, 4), float("nan")), "degrees must be finite, got nan"),
        (lambda: scale(torch.zeros(2, 1, 4, 4), torch.tensor([1, -0.5])), "positive, got -0.5"),
        (lambda: scale(torch.zeros(2, 1, 4, 4), 0), "positive, got 0"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
