"""STIR against its published recipe: the formulas one by one, and pixels of the published code."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sepgconv.data import DataUnavailable, Split, embedded, join, load, stir
from sepgconv.data.registry import entry


@pytest.fixture(scope="module")
def digits() -> Split:
    return join(*embedded.read())


@pytest.fixture(scope="module")
def made(digits: Split) -> dict[str, Split]:
    return stir.generate(digits, digits, per_class=2)


def test_the_published_places() -> None:
    """What NumPy's generator draws with seed 42 in the order of the published code: (left, top)."""
    corners = stir._places(0, 50)
    found = {key: tuple(corners[key[2], key[1], key[3] - 17, key[0]]) for key in PLACES}
    assert found == PLACES


PLACES = {  # part, digit, instance, size
    (0, 0, 0, 64): (0, 0),
    (0, 0, 0, 17): (18, 47),
    (2, 3, 7, 20): (34, 13),
    (1, 5, 49, 27): (26, 7),
    (0, 9, 49, 40): (23, 16),
    (2, 9, 49, 17): (3, 23),
}


def test_scaling_is_the_spline_of_the_published_code() -> None:
    """Values of scikit-image 0.26, `resize(ramp², …, order=3, preserve_range=True)`."""
    line = np.arange(28.0) ** 2
    for size, expected in SPLINES.items():
        assert (stir.spline_matrix(28, size) @ line)[[0, 5, size // 2, size - 1]] == pytest.approx(expected, abs=1e-6)


SPLINES = {
    17: [0.1212370489798385, 73.27002597674972, 182.2665654701995, 719.9447801600764],
    28: [0.0, 25.0, 196.0, 729.0],
    40: [0.022500000000000832, 11.222499999999549, 191.82249977505845, 727.0514745284835],
}


def test_the_blur_is_a_gaussian_of_seven_eighths_of_a_pixel_of_mnist() -> None:
    for size in (17, 28, 64):
        sigma = 7 / 8 * size / 28
        row = stir.gaussian_matrix(stir.CANVAS, sigma, mirrored=False)[32]
        places = np.arange(stir.CANVAS) - 32
        expected = np.exp(-0.5 * (places / sigma) ** 2) * (abs(places) <= int(4 * sigma + 0.5))
        assert row == pytest.approx(expected / expected.sum(), abs=1e-12)


def test_contrast_is_an_arctangent_stretched_to_all_grey_levels() -> None:
    """A wide plateau stays flat under the blur, so that its levels are those of the formula."""
    image = np.zeros((1, 28, 28))
    image[0, :, :14], image[0, 8:20, :5] = 255, 128
    found = stir.made_of(image, 64, np.zeros((1, 2), dtype=int))[0]
    level = lambda v: 2 / np.pi * np.arctan(0.02 * (v - 128))  # noqa: E731
    assert found.max() >= 254  # rounded down, as published
    assert found[0, 63] == 0
    assert found[32, 0] == pytest.approx(255 * (0 - level(0)) / (level(255) - level(0)), abs=2)


def test_every_digit_is_there_at_every_size(made: dict[str, Split]) -> None:
    for split in made.values():
        assert len(split) == 2 * 10 * 48
        assert split.labels.bincount().tolist() == [2 * 48] * 10
        sizes = stir.sizes_of(torch.arange(len(split)))
        assert sizes.bincount()[17:].tolist() == [20] * 48
        extent = torch.stack([(split.images[:, 0].amax(axis) > 60).sum(1) for axis in (1, 2)]).amax(0)
        assert (extent / sizes - 20 / 28).abs().max() < 0.2  # a digit's longer side is 20 of its 28 pixels


def test_digits_lie_anywhere_within_the_image(made: dict[str, Split]) -> None:
    small = made["train"].images[stir.sizes_of(torch.arange(960)) == 17]
    places = small.flatten(1).argmax(1)
    assert (places // 64).float().std() > 10
    assert (places % 64).float().std() > 10


def test_the_seed_decides_and_splits_share_no_digit(digits: Split, made: dict[str, Split]) -> None:
    again, other = (stir.generate(digits, digits, seed, 2)["valid"].images for seed in (0, 1))
    assert torch.equal(again, made["valid"].images)
    assert not torch.equal(other, made["valid"].images)
    drawn = [stir._drawn(digits, digit, 0) for digit in range(10)]
    assert all(len(set(numbers[:100].tolist())) == 100 for numbers in drawn)


def test_kept_small_and_read_again(digits: Split, tmp_path: Path) -> None:
    first = stir.read(tmp_path, 0, False, source=lambda: (digits, digits), per_class=1)
    half = stir.read_half(tmp_path, 0, False, per_class=1)  # made of what is kept, without a source
    again = stir.read(tmp_path, 0, False, per_class=1)
    assert torch.equal(first[2].images, again[2].images)
    assert half[2].images.shape == (480, 1, 32, 32)
    mean = first[2].images.double().unflatten(-1, (32, 2)).unflatten(-3, (32, 2)).mean((-1, -3))
    assert (half[2].images - mean).abs().max() <= 0.5
    files = {path.name: path.stat().st_size for path in (tmp_path / "generated").iterdir()}
    assert set(files) == {"stir-mnist-seed0-v1.npz", "stir-mnist-half-seed0-v1.npz"}
    assert files["stir-mnist-seed0-v1.npz"] < 0.3 * 3 * first[0].images.numel()


def test_sizes_and_scenarios() -> None:
    images = torch.zeros(stir.COUNT, 1, 1, 1, dtype=torch.uint8)
    images[:, 0, 0, 0] = stir.sizes_of(torch.arange(stir.COUNT))
    split = Split(images, torch.zeros(stir.COUNT, dtype=torch.int64))
    assert stir.at_sizes(split, (20, 40)).images.unique().tolist() == [20, 40]
    data = stir.scenario(stir.DataSet("stir-mnist", 10, split, split, split), (33, 48))
    assert (len(data.train), len(data.valid), len(data.test)) == (8_000, 8_000, 24_000)
    assert data.train.images.unique().tolist() == list(range(33, 49))
    with pytest.raises(ValueError, match=re.escape("sizes must lie between 17 and 64, got [16]")):
        stir.at_sizes(split, (16, 17))
    with pytest.raises(ValueError, match="whole splits such as of 24000 images, got 10"):
        stir.at_sizes(split.take(torch.arange(10)), (17,))


def test_too_few_digits(digits: Split) -> None:
    with pytest.raises(ValueError, match="stir-mnist needs 2000 digits of every class"):
        stir.generate(digits, digits, per_class=1000)


@pytest.mark.parametrize("name", [stir.NAME, stir.HALF])
def test_without_mnist(name: str, tmp_path: Path) -> None:
    assert entry(name).at_hand(tmp_path) == "no"
    with pytest.raises(DataUnavailable, match=r"mnist.*train-images-idx3-ubyte"):
        load(name, root=tmp_path, download=False)
