"""Galaxy10 SDSS (Leung and Bovy), from its HDF5 file: galaxies of the Sloan survey in ten shapes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pooch
import torch

from .dataset import Split, stratified
from .download import Remote
from .files import Source, damaged, obtain

FILE = "Galaxy10.h5"
SHA256 = "969a6b1cefcc36e09fffa86febd2f699a4aa19b837ba0427f01b0bc6ded458af"
IMAGES = 21_785
TENTH = 2_178
SHAPE = (69, 69, 3)
CLASSES = (
    "disk, face-on, no spiral",
    "smooth, completely round",
    "smooth, in-between round",
    "smooth, cigar shaped",
    "disk, edge-on, rounded bulge",
    "disk, edge-on, boxy bulge",
    "disk, edge-on, no bulge",
    "disk, face-on, tight spiral",
    "disk, face-on, medium spiral",
    "disk, face-on, loose spiral",
)

SOURCE = Source(
    name="galaxy10",
    folders=("galaxy10", "."),
    remotes=(
        Remote(
            name=FILE,
            checksum=f"sha256:{SHA256}",
            urls=(
                "https://zenodo.org/records/10844811/files/Galaxy10.h5",
                "http://www.astro.utoronto.ca/~bovy/Galaxy10/Galaxy10.h5",
            ),
            holds=(FILE,),
        ),
    ),
)


def read_h5(path: Path, count: int = IMAGES, sha256: str | None = SHA256) -> Split:
    """All images of the file: its `images` `(n, 69, 69, 3)` and its labels `ans` `(n,)`."""
    import h5py  # slow to import, and only this needs it

    try:
        with h5py.File(path) as file:
            images, labels = (np.asarray(file[key]) for key in ("images", "ans"))
    except (OSError, KeyError) as error:
        raise damaged(path, "an HDF5 file with 'images' and 'ans'", str(error)) from error
    if images.shape != (count, *SHAPE) or images.dtype != np.uint8:
        raise damaged(path, f"'images' of uint8 {(count, *SHAPE)}", f"{images.dtype} {images.shape}")
    if labels.shape != (count,) or not np.isin(labels, np.arange(len(CLASSES))).all():
        raise damaged(path, f"'ans' of {count} labels 0 to 9", f"{labels.shape} up to {labels.max()}")
    if sha256 is not None and (found := pooch.file_hash(str(path))) != sha256:
        raise damaged(path, f"sha256 {sha256}", found)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return Split(pixels, torch.from_numpy(labels.astype(np.int64)))


def read(
    root: str | os.PathLike[str] | None,
    seed: int,
    download: bool,
    *,
    count: int = IMAGES,
    tenth: int = TENTH,
    sha256: str | None = SHA256,
) -> tuple[Split, Split, Split]:
    """17,429 / 2,178 / 2,178: fixed, and stratified, since the smallest class has 17 images."""
    everything = read_h5(obtain(SOURCE, root, download)[FILE], count, sha256)
    for_test = stratified(everything.labels, tenth, seed=0)
    rest = everything.take(~for_test)
    held_out = stratified(rest.labels, tenth, seed=1)
    return rest.take(~held_out), rest.take(held_out), everything.take(for_test)
