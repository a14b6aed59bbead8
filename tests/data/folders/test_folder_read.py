"""A folder's pixels: right in every format, after every change, and an error that names what is bad."""

import io
import json
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sepgconv.data.folders import FolderOptions, read_folder
from sepgconv.data.folders import store as stores
from sepgconv.data.image_files import Framing, read_image


@pytest.fixture(autouse=True)
def place(data_root: Path) -> Path:
    return data_root


def everything(folder) -> dict[int, torch.Tensor]:
    """All images by row, whatever their part."""
    splits = (folder.train, folder.valid, folder.test)
    return {int(row): image for s in splits for row, image in zip(s.rows, s.pixels(slice(None)), strict=True)}


def count_decoded(monkeypatch) -> list[Path]:
    seen: list[Path] = []

    def reading(path, *args, **options):
        seen.append(path)
        return read_image(path, *args, **options)

    monkeypatch.setattr(stores, "read_image", reading)
    return seen


def test_size_channels_and_classes_follow_from_the_files(tmp_path, image_folder):
    grey = read_folder(image_folder(tmp_path / "grey", {"a": 4, "b": 9}, (37, 20)))
    assert (grey.shape, grey.class_names) == ((1, 36, 36), ("a", "b"))
    assert [len(s) for s in (grey.train, grey.valid, grey.test)] == [9, 2, 2]
    said = "\n".join(grey.remarks)
    for text in ("channels: 1, as all are grey", "size: 36×36", "13 of 13 images: scaled to 36×36, padded with black"):
        assert text in said
    assert "classes are uneven" in said
    colour = read_folder(image_folder(tmp_path / "colour", {"a": 3, "b": 3}, (300, 200), "RGB"))
    assert colour.shape == (3, 64, 64)
    chosen = read_folder(tmp_path / "colour", FolderOptions(size=20, channels=1, resize="crop"))
    assert chosen.shape == (1, 20, 20)
    assert "6 of 6 images: cropped to the square in the middle" in chosen.remarks


def test_odd_formats_are_one_picture(tmp_path):
    eight = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    (tmp_path / "own" / "a").mkdir(parents=True)
    grey = Image.fromarray(eight)
    for name, image in {
        "eight.png": grey,
        "eight.tif": grey,
        "sixteen.tif": Image.fromarray(eight.astype(np.uint16) * 257),
        "sixteen.png": Image.fromarray(eight.astype(np.uint16) * 257),
        "palette.png": grey.convert("RGB").quantize(256, dither=Image.Dither.NONE),
        "alpha.png": Image.fromarray(np.dstack([eight] * 3 + [np.full_like(eight, 255)])),
        "cmyk.tif": grey.convert("RGB").convert("CMYK"),
        "lossless.webp": grey.convert("RGB"),
    }.items():
        image.save(tmp_path / "own" / "a" / name, **({"lossless": True} if name.endswith("webp") else {}))
    (tmp_path / "own" / "b").mkdir()
    for i in range(3):
        Image.fromarray(255 - eight).save(tmp_path / "own" / "b" / f"{i}.jpg", quality=100 - i)
    folder = read_folder(tmp_path / "own", FolderOptions(size=16, channels=1))
    images = everything(folder)
    assert len(images) == 11
    near = [row for row, image in images.items() if (image[0].int() - torch.from_numpy(eight).int()).abs().max() <= 2]
    assert len(near) == 8
    said = "\n".join(folder.remarks)
    for text in ("2 of 11 images: 16 bit to 8 bit", "1 of 11 images: CMYK to RGB", "transparent parts on black"):
        assert text in said


def test_nothing_is_decoded_twice_and_changes_are_seen(tmp_path, image_folder, monkeypatch):
    own = image_folder(tmp_path / "own", {"a": 4, "b": 4})
    first = read_folder(own)
    seen = count_decoded(monkeypatch)
    again = read_folder(own)
    assert seen == []
    assert again.digest == first.digest
    changed, before = own / "a" / "001.png", (own / "a" / "001.png").stat()
    with changed.open("r+b") as file:  # another picture in the same file, of the same size and time
        Image.new("L", (16, 16), 7).save(other := io.BytesIO(), "PNG")
        file.write(other.getvalue().ljust(before.st_size, b"\0"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (changed.stat().st_size, changed.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    later = read_folder(own)
    assert seen == [changed]
    assert sum(bool((image == 7).all()) for image in everything(later).values()) == 1
    assert later.digest != first.digest
    (own / "b" / "003.png").unlink()
    seen.clear()
    assert sum(len(s) for s in (read_folder(own).train, later.valid, later.test)) < 9
    assert seen == []
    assert len(everything(first)) == 8  # which still has what it began with
    assert torch.equal(everything(first)[0], everything(again)[0])


def parts(folder) -> list[torch.Tensor]:
    """Images and labels, part by part."""
    splits = [split.loaded() for split in (folder.train, folder.valid, folder.test)]
    return [tensor for split in splits for tensor in (split.images, split.labels)]


def rewritten(change):
    """An index with other content and the right checksum."""

    def damage(content: bytes) -> bytes:
        text = change(content.split(b"\n", 1)[1])
        return f"{zlib.crc32(text)}\n".encode() + text

    return damage


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("kinds", "damage"),
    [
        ((".bin", ".json"), lambda content: content[:-3]),
        ((".bin",), flipped),
        ((".json",), flipped),
        ((".json",), lambda content: b"[]"),
        ((".json",), rewritten(lambda content: b"[]")),
        ((".json",), rewritten(lambda content: b"null")),
        ((".json",), rewritten(lambda content: json.dumps(dict.fromkeys(json.loads(content), 3)).encode())),
        ((".json",), rewritten(lambda content: json.dumps({**json.loads(content), "entries": []}).encode())),
        ((".json",), lambda content: re.sub(rb"\], (0|1), \"", lambda m: b'], %d, "' % (1 - int(m[1])), content)),
        ((".json",), rewritten(lambda content: re.sub(rb"\], 0, \"", rb'], 1, "', content))),
        ((".json",), rewritten(lambda content: re.sub(rb"\], 5, \"", rb'], 9, "', content))),
    ],
    ids=[
        *("cut", "a flipped bit in the pixels", "a flipped bit in the index", "no checksum", "list", "null"),
        *("numbers", "no entries", "rows swapped", "a row twice", "a row that is not there"),
    ],
)
def test_a_damaged_store_is_made_again(tmp_path, image_folder, place, kinds, damage):
    own = image_folder(tmp_path / "own", {"a": 3, "b": 3})
    first = parts(read_folder(own))
    for file in place.rglob("*"):
        if file.suffix in kinds:
            file.write_bytes(damage(file.read_bytes()))
    assert all(torch.equal(a, b) for a, b in zip(first, parts(read_folder(own)), strict=True))


def test_statistics_are_those_of_the_training_part(tmp_path, image_folder):
    folder = read_folder(image_folder(tmp_path / "own", {"a": 300, "b": 20}, (16, 16), "RGB"))
    pixels = folder.train.pixels(slice(None)).double() / 255
    assert folder.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert folder.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)


def test_copies_of_an_image_stay_together_and_leaks_are_said(tmp_path, image_folder):
    own = image_folder(tmp_path / "own", {"a": 20, "b": 20})
    for number in range(10):
        (own / "a" / f"copy{number}.png").write_bytes((own / "a" / f"{number:03}.png").read_bytes())
    for seed in range(3):
        folder = read_folder(own, FolderOptions(split_seed=seed))
        assert folder.warnings == ()
        sets = [
            {bytes(i.numpy().tobytes()) for i in s.pixels(slice(None))}
            for s in (folder.train, folder.valid, folder.test)
        ]
        assert not sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]
    parts = image_folder(tmp_path / "parts", {f"{p}/{c}": 3 for p in ("train", "val", "test") for c in "ab"})
    (parts / "test" / "b" / "000.png").write_bytes((parts / "train" / "a" / "000.png").read_bytes())
    told = read_folder(parts).warnings
    assert told == tuple(
        f"1 images are in two {what}, for example test/b/000.png and train/a/000.png" for what in ("parts", "classes")
    )


def bomb(path: Path) -> None:
    """A PNG that says that it has 20,000×20,000 pixels."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def test_bad_files_are_named_counted_and_skipped_if_asked(tmp_path, image_folder):
    own = image_folder(tmp_path / "own", {"a": 5, "b": 5})
    whole = (own / "a" / "000.png").read_bytes()
    (own / "a" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (own / "a" / "empty.jpg").write_bytes(b"")
    (own / "a" / "text.tif").write_text("no image")
    bomb(own / "a" / "huge.png")
    frames = [Image.new("L", (16, 16), value) for value in (0, 255)]
    frames[0].save(own / "b" / "moving.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=r"5 of 15 images in .* cannot be used") as caught:
        read_folder(own)
    message = str(caught.value)
    for text in ("cut.png is damaged", "empty.jpg is empty", "text.tif is not an image", "huge.png is too large"):
        assert text in message
    assert "moving.gif has 2 frames" in message
    assert "--data.skip_bad true" in message
    with pytest.raises(ValueError, match="5 of 15 images"):  # what is kept on disk does not make it good
        read_folder(own)
    folder = read_folder(own, FolderOptions(skip_bad=True))
    assert len(everything(folder)) == 10
    assert "5 of 15 images are left out" in "\n".join(folder.remarks)
    for file in (own / "b").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"no image of class 'b' .* can be used"):
        read_folder(own, FolderOptions(skip_bad=True))


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, image_folder, monkeypatch):
    own = image_folder(tmp_path / "own", {"a": 3, "b": 3})

    def reading(path, *args, **options):
        picture = read_image(path, *args, **options)
        if path.name == "001.png":
            path.write_bytes(path.read_bytes() + b"\0")
        return picture

    monkeypatch.setattr(stores, "read_image", reading)
    with pytest.raises(ValueError, match=r"001\.png changed while it was read"):
        read_folder(own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be a whole number of 1 to 4096 pixels, got 0"),
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"resize": "squash"}, "resize must be one of pad, crop; got 'squash'"),
        ({"crop": -1}, "crop must be a whole number of 1 to 4096 pixels, got -1"),
    ],
)
def test_framings_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Framing(**{"size": 8, **options})


def test_only_the_middle_is_taken(tmp_path):
    pixels = np.zeros((9, 9), np.uint8)
    pixels[3:6, 3:6] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = read_image(tmp_path / "a.png", Framing(3, crop=3))
    assert picture.notes == ("middle 3×3 of 9×9", "nothing to see: all values are 200")
    wide = read_image(tmp_path / "a.png", Framing(11, crop=11)).pixels
    assert wide[0, 1:10, 1:10].tolist() == pixels.tolist()
    assert wide.sum() == pixels.sum()
