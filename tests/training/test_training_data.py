import pytest
import torch
from training_helpers import GRID, NETWORK

from sepgconv.data import DataSet, DataUnavailable, Split
from sepgconv.training import Augment, Classifier, Images, NetworkConfig, fit
from sepgconv.training.batches import Batches
from sepgconv.training.datamodule import turned
from sepgconv.training.module import PADDING


def numbered(count: int) -> Split:
    """Images that show their number."""
    numbers = torch.arange(count)
    return Split(numbers.byte().reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone(), numbers)


def as_is(images, random):
    return images


def test_order_is_a_function_of_seed_and_epoch():
    def labels(seed: int, epoch: int) -> list[int]:
        loader = Batches(numbered(20), 4, as_is, seed=seed)
        loader.sampler.set_epoch(epoch)
        return torch.cat([batch[1] for batch in loader]).tolist()

    assert labels(0, 3) == labels(0, 3)
    assert sorted(labels(0, 3)) == list(range(20))
    assert len({tuple(labels(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("bent", [{}, {"elastic": 1.0}, {"stretch": 0.2}])
def test_resumed_batches_are_the_ones_that_were_left(bent):
    augment = Images(augment=Augment(rotate=True, shift=2, **bent), batch_size=8)
    whole = list(augment.train_dataloader())[:6]
    loader = augment.train_dataloader()
    first = iter(loader)
    for _ in range(4):
        next(first)
    state = loader.state_dict()
    again = augment.train_dataloader()
    again.load_state_dict(state)
    rest = iter(again)
    for images, labels in whole[4:]:
        more = next(rest)
        assert torch.equal(more[0], images)
        assert torch.equal(more[1], labels)
    again.sampler.set_epoch(1)
    assert len(list(again)) == len(again)


@pytest.mark.parametrize("count", [9, 10, 17, 24])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_an_evaluation_without_counting_twice(count, world):
    shares = [list(Batches(numbered(count), 8, as_is, rank=rank, world=world)) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    labels = torch.cat([batch[1] for share in shares for batch in share])
    assert sorted(labels[labels != PADDING].tolist()) == list(range(count))


def test_processes_share_a_training_batch():
    whole = next(iter(Batches(numbered(24), 8, as_is, seed=0)))[1]
    parts = [next(iter(Batches(numbered(24), 8, as_is, seed=0, rank=rank, world=2)))[1] for rank in (0, 1)]
    assert torch.equal(torch.cat(parts), whole)


def test_normalised_by_the_training_set():
    images = torch.cat([batch[0] for batch in Images(batch_size=450).train_dataloader()])
    assert images.mean().abs() < 1e-3
    assert abs(images.std() - 1) < 1e-3


def test_limit_keeps_the_classes_in_proportion():
    split = Images(limit=100, batch_size=10).train_dataloader().split
    assert split.labels.bincount().tolist() == [10] * 10


def test_a_last_run_may_train_on_the_validation_images_too():
    data = Images(batch_size=10, train_on_valid=True)
    split = data.train_dataloader().split
    digits = data.data
    assert len(split) == len(digits.train) + len(digits.valid)
    both = torch.cat([digits.train.images, digits.valid.images]), torch.cat([digits.train.labels, digits.valid.labels])
    assert torch.equal(split.pixels(slice(None)), both[0])
    assert torch.equal(split.labels, both[1])
    assert data.class_counts.sum() == len(split)
    assert data.normaliser.mean == Images().normaliser.mean  # networks with and without them make an ensemble
    assert len(data.val_dataloader().split) == len(digits.valid)


def test_weights_are_not_chosen_by_images_that_were_trained_on(tiny):
    trainer, classifier, _ = tiny()
    message = r"data.train_on_valid leaves no images to choose weights by, but checkpoint.monitor is 'val/error'"
    with pytest.raises(ValueError, match=message):
        fit(trainer, classifier, Images(batch_size=16, train_on_valid=True))


def test_turned_copies_are_the_same_every_time():
    split = Images().data.test.take(torch.arange(20))
    assert torch.equal(turned(split).images, turned(split).images)
    assert not torch.equal(turned(split).images, split.images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Images("digitz"), r"got 'digitz'; did you mean 'digits'"),
        (lambda: Images(batch_size=0), r"batch_size must be at least 1, got 0"),
        (
            lambda: Images(limit=5000).train_dataloader(),
            r"limit must lie between 1 and the 4500 training images, got 5000",
        ),
        (lambda: Images(batch_size=64, limit=32).train_dataloader(), r"between 1 and the 32 images there are, got 64"),
        (
            lambda: Batches(numbered(9), 9, as_is, seed=0, world=2),
            r"a multiple of the 2 processes that share it, got 9",
        ),
        (lambda: Augment(stretch=1.5), r"augment.stretch must lie in \[0, 1\), got 1.5"),
        (lambda: Augment(elastic=-1.0), r"augment.elastic must be a number of pixels, not negative, got -1.0"),
        (lambda: Augment(scale=1.5), r"augment.scale must lie in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_missing_data_is_an_error_before_training(tiny, tmp_path):
    trainer, classifier, _ = tiny()
    with pytest.raises(FileNotFoundError, match=r"data.root must be a directory, got '.*nowhere'"):
        fit(trainer, classifier, Images("cifar10", root=str(tmp_path / "nowhere")))


def test_data_that_cannot_be_had_names_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr("sepgconv.training.datamodule.load", _offline)
    with pytest.raises(DataUnavailable, match=r"cifar-10-binary.tar.gz"):
        Images("cifar10", root=str(tmp_path)).prepare_data()


def _offline(name: str, root: str | None = None) -> DataSet:
    from sepgconv.data import load

    return load(name, root=root, download=False)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (NetworkConfig(num_classes=7, width=0.1), r"'digits': num_classes is 7 but the data has 10"),
        (NetworkConfig(in_channels=3, width=0.1), r"in_channels is 3 but the data has 1"),
        (NetworkConfig(image_size=32, width=0.1), r"image_size is 32 but the data has 28×28"),
    ],
)
def test_a_network_for_other_data_is_an_error_before_training(tiny, network, message):
    trainer, _, data = tiny()
    with pytest.raises(ValueError, match=message):
        fit(trainer, Classifier(network, GRID), data)
    assert trainer.global_step == 0


def test_a_network_is_tested_with_the_normalisation_it_was_trained_with(tiny):
    run = tiny(max_epochs=1)
    fit(*run)
    other = Images(batch_size=32)
    other.load_state_dict({**run[2].state_dict(), "mean": [0.5], "std": [2.0]})
    assert (other.normaliser.mean, other.normaliser.std) == ((0.5,), (2.0,))
    assert NETWORK.num_classes == other.classes


def test_a_root_that_is_a_file_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"root must be a directory, got '.*file', which is a file"):
        _ = Images("digits", root=str(tmp_path / "file")).data
    with pytest.raises(FileNotFoundError, match=r"data.root must be a directory, got '.*none', which is not there"):
        _ = Images("digits", root=str(tmp_path / "none")).data
