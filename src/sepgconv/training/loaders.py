"""Data that somebody else has made: any Dataset or DataLoader of images and labels, for `fit` and `predict`."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

Source = Dataset[Any] | DataLoader[Any]


class Loaders(LightningDataModule):
    """Datasets or DataLoaders of pairs (image, label): floats `(c, y, x)`, normalised, and class numbers from 0.

    A DataModule of one's own does as well; `predict` uses its attributes `class_names`, `mean` and `std`, if any.
    A run that is resumed within an epoch does not see the rest of that epoch in the same order, as a DataLoader does
    not remember its place.

    Args:
        train: what is fitted; a Dataset is shuffled.
        valid: what weights are chosen by.
        test: what is reported, once; without it nothing is tested.
        batch_size: of Datasets; a DataLoader has its own.
        class_names: by label.
        mean: that images were normalised with, a number or one for each channel, pixels scaled to [0, 1].
        std: likewise.
    """

    def __init__(
        self,
        train: Source,
        valid: Source,
        test: Source | None = None,
        *,
        batch_size: int = 64,
        class_names: Sequence[str] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise ValueError(f"mean and std go together, got {mean} and {std}")
        self.batch_size = batch_size
        self.class_names, self.mean, self.std = class_names, mean, std
        self._train, self._valid, self._test = self._loader(train, True), self._loader(valid), self._loader(test)

    def train_dataloader(self) -> Any:
        """Shuffled batches, if a Dataset was given."""
        return self._train

    def val_dataloader(self) -> Any:
        """The validation set in order."""
        return self._valid

    def test_dataloader(self) -> Any:
        """The test set in order, or None."""
        return self._test

    def _loader(self, source: Source | None, train: bool = False) -> DataLoader[Any] | None:
        if source is None or isinstance(source, DataLoader):
            return source
        return DataLoader(source, self.batch_size, shuffle=train, drop_last=train)


def has_test(data: LightningDataModule) -> bool:
    """Whether there is something to test on."""
    if isinstance(data, Loaders):
        return data.test_dataloader() is not None
    return type(data).test_dataloader is not LightningDataModule.test_dataloader
