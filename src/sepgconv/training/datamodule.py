"""The DataModule: a data set in memory, normalised, augmented, and shared between processes."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Generator, Tensor

from sepgconv.actions import transform_space
from sepgconv.data import (
    Compose,
    DataSet,
    HorizontalFlip,
    PadCrop,
    RandomRotation,
    RandomScale,
    RandomWarp,
    Split,
    Transform,
    load,
    rotate,
)
from sepgconv.data.dataset import stratified
from sepgconv.data.folders import Folder, FolderOptions, StoredSplit, read_folder
from sepgconv.data.image_files import Framing, Resize
from sepgconv.data.places import existing_root
from sepgconv.data.registry import entry
from sepgconv.groups import SO3

from .batches import Batches
from .from_folder import fitting_batch
from .preparation import Preparation, normalise
from .seeding import generator
from .settings import check_same

EVAL_FACTOR = 4  # without gradients there is room for larger batches


@dataclass(frozen=True)
class Augment:
    """Random changes of the training images; by default none.

    Args:
        rotate: whether to turn images by any angle.
        scale: scale by a factor between this and its inverse; 1 is no change.
        shift: move by up to this many pixels.
        flip: whether to mirror half of the images.
        elastic: bend images, moving their parts by about so many pixels. They are turned and scaled in the same step.
        stretch: lengthen images along a random direction and shorten them across it, by up to this part of their size.
    """

    rotate: bool = False
    scale: float = 1.0
    shift: int = 0
    flip: bool = False
    elastic: float = 0.0
    stretch: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise ValueError(f"augment.scale must lie in (0, 1], got {self.scale!r}")
        if not 0 <= self.elastic < float("inf"):
            raise ValueError(f"augment.elastic must be a number of pixels, not negative, got {self.elastic!r}")
        if not 0 <= self.stretch < 1:
            raise ValueError(f"augment.stretch must lie in [0, 1), got {self.stretch!r}")

    def build(self) -> Transform | None:
        """One transform, or None if nothing changes."""
        chosen: list[Transform] = []
        if self.flip:
            chosen.append(HorizontalFlip())
        if self.elastic or self.stretch:
            chosen.append(RandomWarp(self.elastic, self.rotate, self.scale, stretch=self.stretch))
        else:
            if self.scale != 1:
                chosen.append(RandomScale(self.scale, 1 / self.scale))
            if self.rotate:
                chosen.append(RandomRotation())
        if self.shift:
            chosen.append(PadCrop(self.shift))
        return Compose(*chosen) if chosen else None


@dataclass
class Normaliser:
    """From uint8 images to a network's input: floats in [0, 1], changed, minus the mean, over the deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    transform: Transform | None = field(default=None)

    def __call__(self, images: Tensor, random: Generator | None = None) -> Tensor:
        """Only what comes with a generator is changed."""
        pixels = images.float() / 255
        if self.transform is not None and random is not None:
            pixels = self.transform(pixels, random).clamp_(0, 1)
        return normalise(pixels, self.mean, self.std)


class Images(LightningDataModule):
    """A data set of `sepgconv.data`, or the images of a folder.

    Args:
        name: as `sepgconv data list` has it.
        folder: images of one's own, in place of a name: a folder with a subfolder per class, or with `train/`, `valid/`
            and `test/` that have these, or a CSV with the columns file and label, and perhaps split.
        size: height and width that the folder's images are scaled to; by default their median, at most 64.
        channels: 1 for grey, 3 for colour; by default as the folder's images are.
        resize: of files that are not square: `pad` them with black, or `crop` them to the square in the middle.
        crop: use only so many pixels from the middle of each file.
        valid: the share of the images to choose weights by, where the folder has none set aside.
        test: the share to report, likewise.
        split_seed: of the division into parts.
        group: the column of the CSV whose images are kept in one part (patients, fields of view).
        skip_bad: whether files that cannot be read are left out and named; otherwise they are an error.
        root: where its files are; by default `$SEPGCONV_DATA`, else the user's cache.
        batch_size: images in a training batch, over all processes; fewer for a folder of less than four batches.
        augment: random changes of the training images.
        limit: train on so many of the images only, with every class in proportion.
        train_on_valid: whether to train on the validation images, too: a last run, when all choices are made. Their
            errors are then of images that were seen, so weights cannot be chosen by them.
        rotate_test: whether to turn every test image by an angle of its own, the same in every run; volumes are turned
            by one of the 24 rotations of the cube.
        seed: of the order and the augmentations.
    """

    def __init__(
        self,
        name: str = "digits",
        *,
        folder: str | None = None,
        size: int | None = None,
        channels: int | None = None,
        resize: Resize = "pad",
        crop: int | None = None,
        valid: float = 0.15,
        test: float = 0.15,
        split_seed: int = 0,
        group: str | None = None,
        skip_bad: bool = False,
        root: str | None = None,
        batch_size: int = 64,
        augment: Augment = Augment(),
        limit: int | None = None,
        train_on_valid: bool = False,
        rotate_test: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self.folder, self.root, self.batch_size, self.augment = folder, root, batch_size, augment
        self.options = FolderOptions(size, channels, resize, crop, valid, test, split_seed, group, skip_bad)
        if folder is None and self.options != FolderOptions():
            told = [f.name for f in fields(FolderOptions) if getattr(self.options, f.name) != f.default]
            raise ValueError(f"data.{told[0]} is about images of a folder: set data.folder, too")
        self.data_name = name if folder is None else str(folder)
        self.limit, self.train_on_valid, self.rotate_test, self.seed = limit, train_on_valid, rotate_test, seed
        self._names = () if folder is not None else entry(name).class_names
        self._data: DataSet | Folder | None = None
        self._statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self._train: Batches | None = None
        self._position: dict[str, int] = {}

    @property
    def data(self) -> DataSet | Folder:
        """The data set, read at first use."""
        if self._data is None:
            if self.root is not None:
                existing_root(self.root)
            if self.folder is None:
                self._data = load(self.data_name, root=self.root)
            else:
                self._data = read_folder(self.folder, self.options, root=self.root)
                self._fit_batches(self._data)
        return self._data

    def _fit_batches(self, folder: Folder) -> None:
        """What was found is said once, and small folders get small batches."""
        for line in folder.remarks:
            rank_zero_info(line)
        for line in folder.warnings:
            rank_zero_warn(line)
        fitting = fitting_batch(self.batch_size, self.limit or len(self._fitted(folder)))
        if fitting != self.batch_size:
            rank_zero_info(f"batch_size: {fitting} instead of {self.batch_size}, as there are few images")
            self.batch_size = fitting

    @property
    def class_names(self) -> tuple[str, ...]:
        """By label."""
        return self._names if self.folder is None else cast(Folder, self.data).class_names

    @property
    def class_counts(self) -> Tensor:
        """Training images of each class."""
        return self._training_split().labels.bincount(minlength=self.classes)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.data.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image; of signals and volumes, channels and the axes of space."""
        return self.data.shape

    @property
    def normaliser(self) -> Normaliser:
        """With the statistics of this data set, or of the one that a loaded checkpoint was trained on."""
        return Normaliser(*(self._statistics or (self.data.mean, self.data.std)), self.augment.build())

    @property
    def preparation(self) -> Preparation:
        """How an image file becomes an image of this data, for the checkpoint."""
        channels, height = self.shape[:2]
        framing = self.data.framing if isinstance(self.data, Folder) else Framing(height, channels)
        return Preparation(framing, self.normaliser.mean, self.normaliser.std)

    def prepare_data(self) -> None:
        """Reads the data in one process, which downloads or makes it if need be; the others then find it."""
        _ = self.data

    def _fitted(self, data: DataSet | Folder) -> Split | StoredSplit:
        return data.train_and_valid if self.train_on_valid else data.train

    def _training_split(self) -> Split | StoredSplit:
        split = self._fitted(self.data)
        if self.limit is None:
            return split
        if not 1 <= self.limit <= len(split):
            raise ValueError(f"limit must lie between 1 and the {len(split)} training images, got {self.limit!r}")
        return split.take(stratified(split.labels, self.limit, seed=0))

    def train_dataloader(self) -> Batches:
        """Shuffled batches."""
        split = self._training_split()
        if self.augment != Augment() and len(self.data.shape) != 3:
            raise ValueError(f"augment is for images, but {self.data_name!r} holds {split}")
        self._train = Batches(split, self.batch_size, self.normaliser, seed=self.seed, **self._process())
        self._train.load_state_dict(self._position)
        return self._train

    def val_dataloader(self) -> Batches:
        """The validation set in order."""
        return self._evaluation(self.data.valid)

    def test_dataloader(self) -> Batches:
        """The test set in order, turned if that was asked for."""
        split = self.data.test
        if not self.rotate_test:
            return self._evaluation(split)
        return self._evaluation(turned(split.loaded() if isinstance(split, StoredSplit) else split))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must know: how to go on, and how to prepare an image for the network."""
        return {
            "settings": self.settings,
            "position": self._train.state_dict() if self._train else {},
            "mean": list(self.normaliser.mean),
            "std": list(self.normaliser.std),
            "class_names": list(self.class_names),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A run goes on with the data it began with; a trained network is tested with its own normalisation."""
        self._statistics = (tuple(state_dict["mean"]), tuple(state_dict["std"]))
        if self.trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        check_same({"data": state_dict["settings"]}, {"data": self.settings})
        # Lightning restores a loader by itself, but not if the optimiser asked for the number of steps before.
        self._position = state_dict["position"]

    @property
    def settings(self) -> dict[str, Any]:
        """All that says which images are seen, as plain values."""
        images: dict[str, Any] = {"name": self.data_name}
        if self.folder is not None:  # wherever it lies, its images must be the same
            folder = cast(Folder, self.data)
            images = {"images": folder.digest, "framing": asdict(folder.framing)}
        chosen = {**images, "batch_size": self.batch_size, "limit": self.limit, "seed": self.seed}
        chosen["train_on_valid"] = self.train_on_valid
        return {**chosen, "augment": asdict(self.augment), "rotate_test": self.rotate_test}

    def _evaluation(self, split: Split | StoredSplit) -> Batches:
        size = min(EVAL_FACTOR * self.batch_size, len(split))
        return Batches(split, size, self.normaliser, **self._process())

    def _process(self) -> dict[str, int]:
        if self.trainer is None:
            return {}
        return {"rank": self.trainer.global_rank, "world": self.trainer.world_size}


def turned(split: Split, seed: int = 0) -> Split:
    """Every image turned by an angle of its own, every volume by a rotation of the cube, drawn from the seed."""
    if split.images.ndim == 3:
        raise ValueError("rotate_test is for images and volumes, got signals")
    if split.images.ndim == 5:
        matrices = SO3().matrix(SO3().sample(24, 0.0))
        turns = torch.randint(len(matrices), (len(split),), generator=generator(seed))
        pairs = zip(split.images, turns.tolist(), strict=True)
        return Split(torch.stack([transform_space(image, matrices[turn]) for image, turn in pairs]), split.labels)
    angles = 360 * torch.rand(len(split), generator=generator(seed), dtype=torch.float64)
    parts = zip(split.images.split(1000), angles.split(1000), strict=True)
    images = torch.cat([rotate(part.float(), angle).clamp(0, 255).round().byte() for part, angle in parts])
    return Split(images, split.labels)
