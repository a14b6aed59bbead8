"""Every kind of image file is read right, or refused in one line that names it."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sepgconv.data.image_files import Framing, read_image

GREY, COLOUR = Framing(28), Framing(28, 3)
RAMP = np.linspace(0, 1, 28 * 28).reshape(28, 28)
EIGHT = torch.from_numpy(np.rint(255 * RAMP).astype(np.uint8))[None]


def saved(folder: Path, name: str, image: Image.Image, **options) -> Path:
    path = folder / name
    image.save(path, **options)
    return path


def ramp(top: float, kind: type) -> Image.Image:
    return Image.fromarray((top * RAMP).round().astype(kind) if kind != np.float32 else (top * RAMP).astype(kind))


def close(pixels: torch.Tensor, expected: torch.Tensor, levels: int = 1) -> bool:
    return int((pixels.int() - expected.int()).abs().max()) <= levels


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm", "a.jp2"])
def test_sixteen_bits_are_scaled(tmp_path, name):
    path = saved(tmp_path, name, ramp(65535, np.uint16))
    picture = read_image(path, GREY)
    assert close(picture.pixels, EIGHT)
    assert picture.notes == ("16 bit to 8 bit",)
    assert torch.equal(read_image(path, COLOUR).pixels, picture.pixels.expand(3, -1, -1))


def test_sixteen_bits_from_the_other_end(tmp_path):
    """Big-endian, twelve bits in a TIFF, and TIFFs whose zero is white."""
    big = saved(tmp_path, "big.tif", Image.frombytes("I;16B", (28, 28), (65535 * RAMP).astype(">u2").tobytes()))
    assert close(read_image(big, GREY).pixels, EIGHT)
    white = saved(tmp_path, "white.tif", ramp(65535, np.uint16), tiffinfo={262: 0})
    assert close(read_image(white, GREY).pixels, 255 - EIGHT)
    assert close(read_image(tiff(tmp_path / "twelve.tif", bits=12), GREY).pixels, EIGHT)


def tiff(path: Path, bits: int) -> Path:
    """A grey TIFF with 12 bits in a value, which Pillow reads but does not write."""
    values = np.rint((2**bits - 1) * RAMP).astype(int).ravel()
    packed = bytearray()
    for a, b in zip(values[::2], values[1::2], strict=True):
        packed += bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255])
    tags = [(256, 28), (257, 28), (258, bits), (259, 1), (262, 1), (273, 8), (277, 1), (278, 28), (279, len(packed))]
    folder = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", t, 4, 1, v) for t, v in tags) + bytes(4)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(packed)) + bytes(packed) + folder)
    return path


def test_floats_from_zero_to_one(tmp_path):
    picture = read_image(saved(tmp_path, "a.tif", ramp(1, np.float32)), GREY)
    assert close(picture.pixels, EIGHT)
    assert picture.notes == ("float to 8 bit",)
    for name, image, message in (
        ("b.tif", ramp(255, np.float32), r"b.tif has floats outside of \[0, 1\], 0 to 255"),
        ("c.tif", Image.fromarray(np.full((4, 4), np.nan, np.float32)), "c.tif has values that are not finite"),
        ("d.tif", ramp(2e9, np.int32), "d.tif has 32-bit or signed integers"),
    ):
        with pytest.raises(ValueError, match=message):
            read_image(saved(tmp_path, name, image), GREY)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("kind", ["LA.png", "RGBA.png", "RGBA.webp", "LA.tif", "PA.png"])
def test_transparent_parts_are_laid_on_a_ground_that_is_said(tmp_path, kind, invert):
    """A light square, half transparent at the left, on nothing at all."""
    mode, _ = kind.split(".")
    alpha = np.zeros((28, 28), np.uint8)
    alpha[:, 7:14], alpha[:, 14:21] = 128, 255
    image = Image.fromarray(np.full((28, 28), 200, np.uint8)).convert(mode.replace("P", "RGB"))
    image.putalpha(Image.fromarray(alpha))
    if mode == "PA":
        image = image.quantize()
    path = saved(tmp_path, kind, image, **({"lossless": True, "exact": True} if kind.endswith("webp") else {}))
    picture = read_image(path, GREY, invert=invert)
    opaque, half = (55, 28) if invert else (200, 100)
    assert close(picture.pixels[0, :, :7], torch.tensor(0))
    assert close(picture.pixels[0, :, 21:], torch.tensor(0))
    assert close(picture.pixels[0, :, 7:14], torch.tensor(half))
    assert close(picture.pixels[0, :, 14:21], torch.tensor(opaque))
    assert f"transparent parts on {'white' if invert else 'black'}" in picture.notes


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "I;16"])
def test_one_colour_may_be_transparent(tmp_path, mode):
    """A PNG's key: what has this colour is not there, even if the colour is white."""
    ink = {"1": 1, "P": 1, "RGB": (255, 255, 255), "I;16": 65535, "L": 255}[mode]
    image = Image.new(mode, (28, 28), {"RGB": (90, 90, 90), "I;16": 90 * 257, "L": 90}.get(mode, 0))
    if mode == "P":
        image.putpalette([90, 90, 90, 255, 255, 255])
    image.paste(ink, (0, 0, 14, 28))
    picture = read_image(saved(tmp_path, "a.png", image, transparency=ink), GREY)
    assert picture.pixels[0, :, :14].max() == 0
    assert picture.pixels[0, :, 14:].unique().tolist() == [0 if mode == "1" else 90]


@pytest.mark.parametrize(
    ("mode", "name"),
    [("1", "a.png"), ("P", "a.gif"), ("P", "a.png"), ("CMYK", "a.tif"), ("CMYK", "a.jpg"), ("RGB", "a.bmp")],
)
def test_modes(tmp_path, mode, name):
    """Black and white are black and white however they are stored."""
    image = Image.new("L", (28, 28))
    image.paste(255, (0, 0, 14, 28))
    if mode == "P" and name.endswith("gif"):
        image = image.convert("RGB")
    picture = read_image(saved(tmp_path, name, image.convert("RGB").convert(mode)), GREY)
    assert picture.pixels[0, :, :12].min() >= 250
    assert picture.pixels[0, :, 16:].max() <= 5


def test_colours_keep_their_order(tmp_path):
    image = Image.new("RGB", (28, 28), (10, 100, 200))
    path = saved(tmp_path, "a.png", image)
    assert read_image(path, COLOUR).pixels[:, 0, 0].tolist() == [10, 100, 200]
    assert read_image(path, COLOUR, invert=True).pixels[:, 0, 0].tolist() == [245, 155, 55]
    assert read_image(path, GREY).notes == ("colour to grey", "nothing to see: all values are 84")


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "deep.png", "deep.tif"])
def test_exif_orientation(tmp_path, name):
    """Stored lying on its side; upright, the light half is above."""
    values = np.zeros((28, 28), np.uint8)
    values[:, :14] = 255
    image = Image.fromarray(values.astype(np.uint16) * 257 if name.startswith("deep") else values)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    picture = read_image(saved(tmp_path, name, image, exif=exif), GREY)
    assert picture.pixels[0, :12].min() > 200
    assert picture.pixels[0, 16:].max() < 55
    assert "turned as its EXIF data says" in picture.notes


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
@pytest.mark.parametrize("name", ["a.tif", "deep.tif"])
def test_tiffs_that_are_not_square_are_turned_whole(tmp_path, name, compression):
    """Pillow maps plain ones into memory with the sides that they have once they are upright."""
    values = np.zeros((20, 28), np.uint8)
    values[:6, :9], values[12:, 20:] = 250, 120
    image = Image.fromarray(values.astype(np.uint16) * 257 if name.startswith("deep") else values)
    turned = {5: values.T, 6: np.rot90(values, -1), 7: values[::-1, ::-1].T, 8: np.rot90(values)}
    for orientation, upright in turned.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = read_image(saved(tmp_path, name, image, exif=exif, compression=compression), GREY)
        assert np.array_equal(picture.pixels[0, :, 4:24].numpy(), upright)
        assert int(picture.pixels[0, :, :4].max()) == 0


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tif"])
def test_several_frames_are_refused(tmp_path, kind):
    frames = [Image.fromarray(np.full((28, 28, 3), value, np.uint8)) for value in (200, 100, 0)]
    path = saved(tmp_path, f"a.{kind}", frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=rf"{path} has 3 frames, and which one is meant is not known"):
        read_image(path, GREY)


def test_a_photograph_with_more_behind_it(tmp_path):
    """Cameras put a preview or a second view behind the picture itself."""
    frames = [Image.fromarray(np.full((28, 28, 3), value, np.uint8)) for value in (200, 100)]
    path = saved(tmp_path, "a.jpg", frames[0], format="MPO", save_all=True, append_images=frames[1:])
    picture = read_image(path, GREY)
    assert close(picture.pixels, torch.tensor(200), 3)
    assert "first of 2 frames" in picture.notes


@pytest.mark.parametrize("size", [(200, 50), (50, 200), (3000, 1), (1, 3000), (1, 1)])
def test_other_sizes_are_padded_with_black(tmp_path, size):
    image = Image.new("L", size, 255)
    picture = read_image(saved(tmp_path, "a.png", image), GREY)
    rows, columns = (int(picture.pixels[0].amax(axis).gt(0).sum()) for axis in (1, 0))
    assert max(rows, columns) == 28
    assert min(rows, columns) == max(1, round(28 * min(size) / max(size)))
    assert any("padded with black" in note for note in picture.notes) == (size != (1, 1))


def test_dark_pictures_are_said_to_be_dark(tmp_path):
    """Twelve bits of a camera in a file of sixteen, or black ink on a transparent ground."""
    assert "dark: no value above 16 of 255" in read_image(saved(tmp_path, "a.png", ramp(4095, np.uint16)), GREY).notes
    ink = Image.new("RGBA", (28, 28))
    ink.paste((0, 0, 0, 255), (5, 5, 20, 20))
    path = saved(tmp_path, "b.png", ink)
    assert "dark: no value above 0 of 255" in read_image(path, GREY).notes
    assert read_image(path, GREY, invert=True).pixels.max() == 255


def test_what_is_no_image(tmp_path):
    for name, content, message in (
        ("empty.png", b"", "empty.png is empty"),
        ("text.png", b"hello", "text.png is not an image, or of a kind other than PNG, JPEG"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a.eps is not an image"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_image(tmp_path / name, GREY)
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.png", GREY)
    with pytest.raises(ValueError, match="is a folder"):
        read_image(tmp_path, GREY)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is a device or a pipe"):
        read_image(tmp_path / "pipe", GREY)
    with pytest.raises(ValueError, match="channels must be 1 or 3, got 2"):
        Framing(28, 2)


def png(path: Path, size: int, depth: int, colour: int, row: bytes, key: bytes = b"") -> Path:
    """A PNG of equal rows, of kinds that Pillow reads but does not write."""
    header = struct.pack(">IIBBBBB", size, size, depth, colour, 0, 0, 0)
    rows = zlib.compress((b"\0" + row) * min(size, 100))
    parts = [(b"IHDR", header), *([(b"tRNS", key)] if key else []), (b"IDAT", rows), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


@pytest.mark.parametrize(("depth", "row"), [(1, [240]), (2, [255, 170]), (4, [255, 255, 119, 119])])
def test_a_transparent_grey_of_few_bits(tmp_path, depth, row):
    """White is the colour that is not there; the other half is what it is."""
    path = png(tmp_path / "a.png", 8, depth, 0, bytes(row), struct.pack(">H", 2**depth - 1))
    assert read_image(path, Framing(8)).pixels[0, 0].tolist() == [0] * 4 + [{1: 0, 2: 170, 4: 119}[depth]] * 4


def test_a_transparent_colour_of_sixteen_bits_is_refused(tmp_path):
    """Its lower half would be lost, and other colours vanish with it."""
    row, key = struct.pack(">24H", *range(24)), struct.pack(">3H", 0, 1, 2)
    with pytest.raises(ValueError, match=r"a.png has one transparent colour of 16 bits"):
        read_image(png(tmp_path / "a.png", 8, 16, 2, row, key), COLOUR)
    assert read_image(png(tmp_path / "a.png", 8, 16, 2, row), COLOUR).pixels.shape == COLOUR.shape


def test_too_large(tmp_path):
    """A few bytes that claim to be 10 gigapixels are refused before any memory is taken."""
    with pytest.raises(ValueError, match=r"bomb.png is too large: more than \d+ million pixels"):
        read_image(png(tmp_path / "bomb.png", 100_000, 8, 0, b"\0"), GREY)


def test_colours_without_a_conversion(tmp_path):
    with pytest.raises(ValueError, match=r"lab.tif has colours of a kind that cannot be converted: LAB"):
        read_image(saved(tmp_path, "lab.tif", Image.new("LAB", (28, 28))), GREY)


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "tif", "webp", "jp2", "pgm"])
def test_cut_files_are_refused_or_whole(tmp_path, kind):
    """Cut anywhere, a file is an error in one line, unless only an end was lost that no pixel needs."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8))
    buffer = io.BytesIO()
    noise.save(buffer, {"jpg": "jpeg", "tif": "tiff", "jp2": "jpeg2000", "pgm": "ppm"}.get(kind, kind))
    whole, path = buffer.getvalue(), tmp_path / f"a.{kind}"
    path.write_bytes(whole)
    expected = read_image(path, GREY).pixels
    messages = []
    for length in range(1, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:length])
        try:
            assert torch.equal(read_image(path, GREY).pixels, expected), length
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert all(str(path) in message and "\n" not in message for message in messages)


def test_a_smooth_jpeg2000_that_was_cut(tmp_path):
    """Its decoder is content with what is there."""
    path = saved(tmp_path, "a.jp2", Image.fromarray(np.dstack([EIGHT[0]] * 3)))
    whole, expected = path.read_bytes(), read_image(path, GREY).pixels
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"a.jp2"):
            read_image(path, GREY)
    path.write_bytes(whole + bytes(9))
    assert torch.equal(read_image(path, GREY).pixels, expected)


def test_flipped_bits_of_a_png_are_noticed(tmp_path):
    """Anywhere but in its last twelve bytes, which only say that it ends."""
    path = saved(tmp_path, "a.png", ramp(255, np.uint8))
    whole = path.read_bytes()
    for place in range(8, len(whole) - 12, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a.png"):
            read_image(path, GREY)
