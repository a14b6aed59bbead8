import shutil
import warnings
from pathlib import Path

import pytest
import torch

from sepgconv.data import Split, embedded, join, load
from sepgconv.data.variants import FOLDER, FORMAT, SCALES, VARIANTS, Variant

SIZES = {"train": 60, "valid": 20, "test": 120}
ROT, SCALE, BOTH = VARIANTS


@pytest.fixture(scope="module")
def digits() -> Split:
    return join(*embedded.read())


def dots(n: int) -> Split:
    """A dot 9 pixels to the right of the centre of each image."""
    images = torch.zeros(n, 1, 29, 29, dtype=torch.uint8)
    images[:, :, 13:16, 22:25] = 255
    return Split(images, torch.zeros(n, dtype=torch.int64))


def polar(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the dots are: radius and angle in degrees."""
    axis = torch.arange(29.0) - 14
    mass = images[:, 0].float()
    up, right = (-(mass.sum(d) * axis).sum(1) / mass.sum((1, 2)) for d in (2, 1))
    return torch.hypot(up, right), torch.atan2(up, -right).rad2deg().remainder(360)


def turned_dots(variant: Variant, n: int = 4000) -> torch.Tensor:
    return variant.generate(dots(n), 0, {"train": n})["train"].images


def test_rotation_is_by_all_angles_evenly_and_keeps_the_radius() -> None:
    radius, angle = polar(turned_dots(ROT))
    assert (radius - 9).abs().max() < 0.1
    assert angle.div(45).long().bincount(minlength=8).tolist() == pytest.approx([500] * 8, abs=80)


def test_scaling_is_by_all_factors_evenly_and_keeps_the_angle() -> None:
    radius, angle = polar(turned_dots(SCALE))
    factors = radius / 9
    assert factors.min() == pytest.approx(SCALES[0], abs=0.02)
    assert factors.max() == pytest.approx(SCALES[1], abs=0.01)
    assert factors.mean() == pytest.approx(0.65, abs=0.02)
    assert ((angle + 180) % 360 - 180).abs().max() < 2


def test_both_do_what_each_does() -> None:
    radius, angle = polar(turned_dots(BOTH))
    assert (radius - polar(turned_dots(SCALE))[0]).abs().max() < 0.1
    difference = (angle - polar(turned_dots(ROT))[1] + 180) % 360 - 180
    assert difference.abs().max() < 3


def test_splits_are_disjoint_and_keep_the_labels(digits: Split) -> None:
    plain = Variant("plain", rotated=False, scaled=False)
    splits = plain.generate(digits, 0, {"train": 3000, "valid": 1000, "test": 2000})
    label_of = {i.tobytes(): int(n) for i, n in zip(digits.images.numpy(), digits.labels, strict=True)}
    for split in splits.values():
        assert [label_of.pop(i.tobytes()) for i in split.images.numpy()] == split.labels.tolist()
    assert not label_of


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_the_seed_decides(variant: Variant, digits: Split) -> None:
    first, again, other = (variant.generate(digits, seed, SIZES)["test"].images for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_too_few_images(digits: Split) -> None:
    with pytest.raises(ValueError, match="mnist-rot needs 62000 source images, got 6000"):
        ROT.generate(digits, 0)


def unexpected() -> Split:
    raise AssertionError("the cache should have been used")


def same(first: tuple[Split, ...], second: tuple[Split, ...]) -> bool:
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in zip(first, second, strict=True)
    )


def cache_file(root: Path, seed: int = 0) -> Path:
    return root / FOLDER / f"mnist-rot-seed{seed}-v{FORMAT}.npz"


def test_it_is_made_once(tmp_path: Path, digits: Split) -> None:
    first = ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES)
    assert [len(s) for s in first] == [60, 20, 120]
    with warnings.catch_warnings(action="error"):
        assert same(first, ROT.read(tmp_path, 0, False, source=unexpected, sizes=SIZES))
    assert [f.name for f in (tmp_path / FOLDER).iterdir()] == [cache_file(tmp_path).name]
    with pytest.raises(AssertionError, match="cache"):
        ROT.read(tmp_path, 1, False, source=unexpected, sizes=SIZES)


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda b: b[:-5000], lambda b: b"", lambda b: b"PK" + b[2:100]])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, digits: Split, damage) -> None:
    first = ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES)
    path = cache_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=f"{path} is damaged and is made anew"):
        assert same(first, ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES))
    assert path.read_bytes() == whole


def test_a_cache_of_another_seed_is_not_taken(tmp_path: Path, digits: Split) -> None:
    ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES)
    shutil.copy(cache_file(tmp_path, 0), cache_file(tmp_path, 1))
    with pytest.warns(UserWarning, match="'seed': 0"):
        found = ROT.read(tmp_path, 1, False, source=lambda: digits, sizes=SIZES)
    assert torch.equal(found[2].images, ROT.generate(digits, 1, SIZES)["test"].images)


def test_a_read_only_root_is_left_alone(tmp_path: Path, private_cache: Path, digits: Split) -> None:
    tmp_path.chmod(0o555)
    try:
        first = ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES)
        assert not list(tmp_path.iterdir())
        assert cache_file(private_cache).exists()
        assert same(first, ROT.read(tmp_path, 0, False, source=unexpected, sizes=SIZES))
    finally:
        tmp_path.chmod(0o755)


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path: Path, private_cache: Path, digits: Split) -> None:
    for folder in (tmp_path, private_cache):
        (folder / FOLDER).write_text("a file, where a folder is wanted")
    with pytest.warns(UserWarning, match=r"mnist-rot-seed0-v1\.npz could not be kept"):
        made = ROT.read(tmp_path, 0, False, source=lambda: digits, sizes=SIZES)
    assert torch.equal(made[2].images, ROT.generate(digits, 0, SIZES)["test"].images)


@pytest.mark.shared
def test_mnist_rot_is_made_from_mnist(shared: Path, private_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "mnist").symlink_to(shared / "mnist")
    data = load("mnist-rot", root=tmp_path, download=False)
    assert [len(s) for s in data.splits.values()] == [10_000, 2_000, 50_000]
    assert data.train.labels.bincount().min() > 800
    assert data.mean == pytest.approx((0.1307,), abs=0.005)


def test_the_selection_set_is_what_no_split_holds(digits: Split, tmp_path: Path) -> None:
    sizes = {"train": 2000, "valid": 500, "test": 3000}
    plain = Variant("plain", rotated=False, scaled=False)
    held = join(*plain.generate(digits, 3, sizes).values())
    selected = plain.select(digits, 3, sizes, 500)
    seen = {image.tobytes() for image in held.images.numpy()}
    assert not any(image.tobytes() in seen for image in selected.images.numpy())
    assert len({*seen, *(image.tobytes() for image in selected.images.numpy())}) == 6000
    train, valid, selection = ROT.read(tmp_path, 3, False, source=lambda: digits, sizes=SIZES, selection=40)
    splits = ROT.generate(digits, 3, SIZES)
    assert torch.equal(train.images, splits["train"].images)
    assert torch.equal(valid.images, splits["valid"].images)
    again = ROT.read(tmp_path, 3, False, source=lambda: pytest.fail("it is kept"), sizes=SIZES, selection=40)
    assert torch.equal(again[2].images, selection.images)
    assert len(selection) == 40
    other = ROT.read(
        tmp_path, 3, False, source=lambda: digits, sizes={**SIZES, "train": SIZES["train"] + 1}, selection=40
    )
    assert not torch.equal(other[2].images, selection.images)  # images that other splits leave
    with pytest.raises(ValueError, match="mnist-rot needs 70000 source images, got 6000"):
        ROT.select(digits, 0)
