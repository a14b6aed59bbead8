"""The images of an audit: files of a folder, with the classes that their folders say."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sepgconv.data.folders.layout import images_below
from sepgconv.data.image_files import Framing, read_image


class Found(NamedTuple):
    """Images as pixels in [0, 1], their labels if all have one, and files that could not be read, with the reason."""

    images: Tensor
    labels: Tensor | None
    bad: dict[str, str]


def read(folder: Path, framing: Framing, classes: Sequence[str], limit: int) -> Found:
    """Images below a folder, evenly chosen if there are more than the limit; of one with parts, those of `test`.

    An image's label is the name of the nearest folder above it that is a class.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"images must be a folder, got {str(folder)!r}")
    if limit < 2:
        raise ValueError(f"limit must be at least 2, got {limit}")
    root = folder / "test" if (folder / "test").is_dir() and (folder / "train").is_dir() else folder
    files = images_below(root)
    if not files:
        raise ValueError(f"there are no images in {root}")
    if len(files) > limit:
        files = [files[int(place)] for place in torch.linspace(0, len(files) - 1, limit).round()]
    number = {name: label for label, name in enumerate(classes)}
    pixels, labels, bad = [], [], {}
    for file in files:
        try:
            pixels.append(read_image(file, framing).pixels)
        except (ValueError, OSError) as error:
            bad[str(file)] = str(error)
            continue
        above = [part for part in file.relative_to(root.parent).parts[:-1] if part in number]
        labels.append(number[above[-1]] if above else -1)
    if len(pixels) < 2:
        reason = f": {next(iter(bad.values()))}" if bad else ""
        raise ValueError(f"at least two images are needed, {root} has {len(pixels)} that can be read{reason}")
    known = torch.tensor(labels)
    return Found(torch.stack(pixels).float() / 255, known if bool((known >= 0).all()) else None, bad)
