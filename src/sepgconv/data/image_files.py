"""Image files of many kinds as uint8 tensors of one shape: right, or an error in one line that names the file.

What was done to a file on the way is said in notes, so that nothing is lost in silence.
"""

from __future__ import annotations

import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base
from torch import Tensor

KINDS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")
GREYS = ("1", "L", "LA", "La")
BITS, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0  # TIFF tags, and a value of the second
JPEG2000_START, JPEG2000_END = b"\xff\x4f\xff\x51", b"\xff\xd9"  # between them no byte above 8f follows an ff
DARK = 64  # a picture without a brighter pixel is said to be dark
LARGEST_SIZE = 4096
Resize = Literal["pad", "crop"]


@dataclass(frozen=True)
class Framing:
    """How a file of any size becomes an image of one shape, never distorted.

    Args:
        size: height and width of the images.
        channels: 1 or 3.
        resize: of a file that is not square: `pad` scales all of it into the image and fills up with black, `crop`
            scales the largest square in its middle.
        crop: take only so many pixels from the middle of the file, before it is scaled; what is smaller is padded.
    """

    size: int
    channels: int = 1
    resize: Resize = "pad"
    crop: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not 1 <= self.size <= LARGEST_SIZE:
            raise ValueError(f"size must be a whole number of 1 to {LARGEST_SIZE} pixels, got {self.size!r}")
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {self.channels!r}")
        if self.resize not in get_args(Resize):
            raise ValueError(f"resize must be one of {', '.join(get_args(Resize))}; got {self.resize!r}")
        if self.crop is not None and not (isinstance(self.crop, int) and 1 <= self.crop <= LARGEST_SIZE):
            raise ValueError(f"crop must be a whole number of 1 to {LARGEST_SIZE} pixels, got {self.crop!r}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.channels, self.size, self.size


class Picture(NamedTuple):
    """An image as a network takes it, and what was done to the file's."""

    pixels: UInt8[Tensor, "c y x"]
    notes: tuple[str, ...]


def read_image(path: str | os.PathLike[str], framing: Framing, *, invert: bool = False) -> Picture:
    """Reads an image file into a shape.

    Values are scaled to eight bits: integers by the range of their type, floats from [0, 1]. Transparent parts are put
    on black. The image is turned upright if its EXIF data says so, made grey or colour, cropped and scaled.

    Args:
        path: of the file, one of `KINDS`.
        framing: the shape, and what becomes of files that have another.
        invert: swap dark and light; transparent parts are then put on white, so that they end up black as well.

    Raises:
        OSError: the file is not there or may not be read.
        ValueError: it is not an image, damaged, too large, has several frames, or its values have no agreed range.
    """
    path = Path(path)
    image, notes = _open(path)
    ground = 255 if invert else 0
    if image.has_transparency_data:
        notes.append(f"transparent parts on {'white' if invert else 'black'}")
        image = _on(image, ground)
    mode = "L" if framing.channels == 1 else "RGB"
    if image.mode == "CMYK":
        notes.append("CMYK to RGB without its colour profile")
    if (image.mode in GREYS) != (mode == "L"):
        notes.append("colour to grey" if mode == "L" else "grey to colour")
    try:
        image = image.convert(mode)
    except ValueError as error:
        raise ValueError(f"{path} has colours of a kind that cannot be converted: {image.mode}") from error
    if invert:
        notes.append("inverted")
        image = ImageOps.invert(image)
    image = _framed(image, framing, notes)
    pixels = rearrange(torch.from_numpy(np.array(image)).reshape(*image.size, -1), "y x c -> c y x").contiguous()
    if (brightest := int(pixels.max())) < DARK:
        notes.append(f"dark: no value above {brightest} of 255")
    elif int(pixels.min()) == brightest:
        notes.append(f"nothing to see: all values are {brightest}")
    return Picture(pixels, tuple(notes))


def _open(path: Path) -> tuple[Image.Image, list[str]]:
    """The picture, upright and of eight bits, and notes."""
    status = path.stat()  # raises the OSError that names what is wrong with the path
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'}, not an image file")
    if not status.st_size:
        raise ValueError(f"{path} is empty")
    Image.init()
    kinds = [kind for kind in KINDS if kind in Image.OPEN]  # a Pillow may be built without some
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd files; those that cannot be read are errors
            with path.open("rb") as opened, Image.open(opened, formats=kinds) as file:
                file.verify()  # checksums, where a kind has them; the file must then be opened anew
            # Not by its name: Pillow would then map a TIFF into memory with the sides of the upright picture.
            with path.open("rb") as opened, Image.open(opened, formats=kinds) as file:
                if file.format == "JPEG2000":
                    _whole(path)
                frames = getattr(file, "n_frames", 1)
                if frames > 1 and file.format != "MPO":  # whose first is the photograph, and the rest belongs to it
                    raise _Unreadable(f"has {frames} frames, and which one is meant is not known")
                notes = [f"first of {frames} frames"] if frames > 1 else []
                file.seek(0)
                if file.getexif().get(Base.Orientation, 1) in range(2, 9):
                    notes.append("turned as its EXIF data says")
                _scale_key(file, path)
                upright = ImageOps.exif_transpose(file)
                image = _eight_bits(file, upright, notes)
    except PermissionError:
        raise
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not an image, or of a kind other than {', '.join(kinds)}") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise ValueError(f"{path} is too large: more than {limit} million pixels") from error
    except _Unreadable as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # damage shows in many ways, and all mean the same here
        raise ValueError(f"{path} is damaged or cut short: {error or type(error).__name__}") from error
    return image, notes


def _whole(path: Path) -> None:
    """A decoder takes a JPEG 2000 that was cut for a coarser picture; whole ones have a mark at the end of the data."""
    content = path.read_bytes()
    if JPEG2000_END not in content[content.find(JPEG2000_START) :]:
        raise _Unreadable("is cut short")


class _Unreadable(Exception):
    """Values that are there, but whose meaning is not known."""


def _eight_bits(file: Image.Image, image: Image.Image, notes: list[str]) -> Image.Image:
    """An image of 16-bit integers or floats in eight bits; others as they are. The file has what is said about it."""
    if image.mode.startswith("I;16") or (image.mode == "I" and file.format == "PPM"):
        bits = _tag(file, BITS) or 16
        values, white = np.asarray(image).astype(np.float64), 2**bits - 1  # PPM's own range is scaled by Pillow
        notes.append(f"{bits} bit to 8 bit")
    elif image.mode == "I":
        raise _Unreadable("has 32-bit or signed integers, whose white is not agreed on: save it with 8 or 16 bits")
    elif image.mode == "F":
        values, white = np.asarray(image).astype(np.float64), 1.0
        if not np.isfinite(values).all():
            raise _Unreadable("has values that are not finite")
        if values.min() < 0 or values.max() > 1:
            found = f"{values.min():g} to {values.max():g}"
            raise _Unreadable(f"has floats outside of [0, 1], {found}: scale them, or save it with 8 or 16 bits")
        notes.append("float to 8 bit")
    else:
        return image
    fraction = values / white
    if _tag(file, PHOTOMETRIC) == WHITE_IS_ZERO:
        fraction = 1 - fraction  # Pillow does so with 8 bits only
    grey = Image.fromarray(np.rint(255 * fraction).astype(np.uint8))
    if (key := file.info.get("transparency")) is not None:
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return grey


def _scale_key(file: Image.Image, path: Path) -> None:
    """A PNG may name one transparent colour, with the file's own number of bits; Pillow compares it with eight."""
    key = file.info.get("transparency")
    if file.format != "PNG" or key is None or isinstance(key, bytes):
        return
    with path.open("rb") as opened:
        bits = opened.read(25)[-1]  # of the header
    if file.mode == "L" and bits < 8:
        file.info["transparency"] = key * 255 // (2**bits - 1)
    elif file.mode == "RGB" and bits == 16:
        raise _Unreadable("has one transparent colour of 16 bits, which cannot be read: save it with an alpha channel")


def _tag(image: Image.Image, number: int) -> int | None:
    """The first value of a TIFF's tag."""
    value = getattr(image, "tag_v2", {}).get(number)
    return value[0] if isinstance(value, tuple) else value


def _on(image: Image.Image, ground: int) -> Image.Image:
    """An image with transparent parts laid on a ground, in colour if it has any."""
    image = image.convert("LA" if image.mode in GREYS else "RGBA")
    alpha = image.getchannel("A")
    opaque = image.convert("L" if image.mode == "LA" else "RGB")
    return Image.composite(opaque, Image.new(opaque.mode, opaque.size, (ground,) * len(opaque.getbands())), alpha)


def _framed(image: Image.Image, framing: Framing, notes: list[str]) -> Image.Image:
    """An image cropped and scaled; what was done is noted."""
    before, size = f"{image.width}×{image.height}", framing.size
    if framing.crop is not None and image.size != (framing.crop, framing.crop):
        notes.append(f"middle {framing.crop}×{framing.crop} of {before}")
        image = _middle(image, framing.crop)
    if image.width != image.height and framing.resize == "crop":
        notes.append(f"cropped from {image.width}×{image.height}")
        image = _middle(image, min(image.size))
    if image.size != (size, size):
        padded = ", padded with black" if image.width != image.height else ""
        notes.append(f"{image.width}×{image.height} to {size}×{size}{padded}")
        image = _fit(image, size)
    return image


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The square in the middle, with black where the image does not reach."""
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _fit(image: Image.Image, size: int) -> Image.Image:
    """An image scaled to fit, in the middle of black; a thin one keeps a pixel (`ImageOps.pad` would lose it)."""
    factor = min(size / image.width, size / image.height)
    width, height = max(1, round(factor * image.width)), max(1, round(factor * image.height))
    canvas = Image.new(image.mode, (size, size))
    canvas.paste(image.resize((width, height), Image.Resampling.BICUBIC), ((size - width) // 2, (size - height) // 2))
    return canvas
