"""What follows from a folder of images for the network and the length of training."""

from typing import Any

from jsonargparse import Namespace
from lightning_utilities.core.rank_zero import rank_zero_info

from sepgconv.data.folders import Folder, FolderOptions, read_folder

STEPS = 1500  # of the optimiser: on two cores and at 64×64, 20 minutes for the recipe's network
EPOCHS = (10, 200)  # at least and at most


def fitting_batch(batch_size: int, images: int) -> int:
    """A batch size such that there are at least four batches in an epoch, where that can be."""
    return min(batch_size, max(2, images // 4))


def sensible_epochs(batch_size: int, images: int) -> int:
    """About as many epochs as make `STEPS` steps."""
    steps = max(1, images // fitting_batch(batch_size, images))
    return min(max(round(STEPS / steps), EPOCHS[0]), EPOCHS[1])


def complete(recipe: Namespace) -> None:
    """Sets what a recipe leaves to the folder: the network's classes, channels and image size, and the epochs.

    Args:
        recipe: with `data.folder`; its `model.network` is changed, and `trainer.max_epochs` if that is None.
    """
    data: Any = recipe.data
    options = FolderOptions(**{name: getattr(data, name) for name in FolderOptions.__dataclass_fields__})
    folder: Folder = read_folder(data.folder, options, root=data.root)
    channels, size, _ = folder.shape
    network: Any = recipe.model.network
    network.num_classes, network.in_channels, network.image_size = folder.classes, channels, size
    said = f"{folder.classes} classes, {channels} channels, {size}×{size} pixels"
    if recipe.trainer.max_epochs is None and recipe.trainer.max_steps == -1:
        images = data.limit or len(folder.train_and_valid if data.train_on_valid else folder.train)
        recipe.trainer.max_epochs = sensible_epochs(data.batch_size, images)
        said += f", {recipe.trainer.max_epochs} epochs of {images:,} images (--trainer.max_epochs)"
    rank_zero_info(f"the network is made for the folder: {said}")
