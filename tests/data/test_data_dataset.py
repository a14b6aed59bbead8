import pytest
import torch

from sepgconv.data import DataSet, Split, join
from sepgconv.data.dataset import stratified


def split(n: int, classes: int = 10, shape: tuple[int, ...] = (3, 4, 5), seed: int = 0) -> Split:
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *shape), generator=random, dtype=torch.uint8)
    return Split(images, torch.randint(0, classes, (n,), generator=random))


def test_mean_and_std_are_those_of_train_per_channel() -> None:
    data = DataSet("x", 10, split(50), split(5, seed=1), split(5, seed=2))
    pixels = data.train.images.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)
    assert len(set(data.mean)) == 3


def test_shape_splits_and_repr() -> None:
    data = DataSet("x", 10, split(50), split(5), split(6))
    assert data.shape == (3, 4, 5)
    assert [len(s) for s in data.splits.values()] == [50, 5, 6]
    assert "50 images of 3×4×5" in repr(data)


def test_take_and_join_are_inverse() -> None:
    everything = split(20)
    mask = torch.arange(20) < 7
    again = join(everything.take(mask), everything.take(~mask))
    assert torch.equal(again.images, everything.images)
    assert torch.equal(again.labels, everything.labels)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.int64), "images .* got torch.float32"),
        (torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"\(2, 3\)"),
        (torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"2 classes.*\(3,\)"),
        (torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(2), "labels .* got torch.float32"),
    ],
)
def test_split_checks_its_tensors(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(images, labels)


def test_labels_must_be_below_the_number_of_classes() -> None:
    with pytest.raises(ValueError, match=r"labels of valid must lie in \[0, 4\], found . to 9"):
        DataSet("x", 5, split(9, classes=5), split(100, classes=10), split(9, classes=5))


def test_splits_must_agree_in_shape() -> None:
    with pytest.raises(ValueError, match="image shapes differ"):
        DataSet("x", 10, split(9), split(9, shape=(1, 4, 5)), split(9))


def test_stratified_holds_every_class_in_proportion() -> None:
    counts = torch.tensor([1700, 17, 300, 983])
    labels = torch.arange(4).repeat_interleave(counts)
    labels = labels[torch.randperm(3000, generator=torch.Generator().manual_seed(5))]
    mask = stratified(labels, 300, seed=0)
    assert mask.sum() == 300
    assert (labels[mask].bincount(minlength=4) - counts / 10).abs().max() <= 1
    assert torch.equal(mask, stratified(labels, 300, seed=0))
    assert not torch.equal(mask, stratified(labels, 300, seed=1))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_stratified_gives_the_count(count: int) -> None:
    assert stratified(torch.zeros(7, dtype=torch.int64), count, seed=0).sum() == count


def test_stratified_wants_no_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="the 7 items there are, got 8"):
        stratified(torch.zeros(7, dtype=torch.int64), 8, seed=0)
