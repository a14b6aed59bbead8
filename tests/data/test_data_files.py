"""Where files are looked for, how they come out of archives, and what is said when they are missing."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from sepgconv.data import DataUnavailable, load, names
from sepgconv.data.download import Remote
from sepgconv.data.files import Source, locate, obtain
from sepgconv.data.places import atomic_write, data_root, output_folder
from sepgconv.data.registry import ENTRIES

CONTENT = {"one.bin": b"1" * 1000, "two.bin": b"2" * 2000}
CLOSED = "http://127.0.0.1:9/"  # nothing listens there


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"folder/{name}", content)
    return buffer.getvalue()


def source(content: bytes = b"", name: str = "all.tar.gz") -> Source:
    remote = Remote(
        name,
        f"md5:{hashlib.md5(content).hexdigest()}",
        (f"{CLOSED}a/{name}", f"{CLOSED}b/{name}"),
        tuple(CONTENT),
    )
    return Source("things", ("things", "."), (remote,))


def test_root_then_environment_then_cache(tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_root() == private_cache
    monkeypatch.setenv("SEPGCONV_DATA", str(tmp_path / "variable"))
    assert data_root() == tmp_path / "variable"
    assert data_root(tmp_path / "argument") == tmp_path / "argument"


def test_root_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"root must be a directory, got '.*file'"):
        load("mnist", root=tmp_path / "file")


def test_files_are_found_in_the_sets_folder_before_the_root(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_text("")
    assert locate(source(), tmp_path) == {"one.bin": tmp_path / "one.bin"}
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "one.bin.gz").write_text("")
    assert locate(source(), tmp_path) == {"one.bin": tmp_path / "things" / "one.bin.gz"}


@pytest.mark.parametrize(("name", "pack"), [("all.tar.gz", tar), ("all.zip", zipped)])
@pytest.mark.parametrize("folder", ["things", "."])
def test_a_local_archive_is_unpacked(tmp_path: Path, name: str, pack, folder: str) -> None:
    content = pack(CONTENT | {"readme.txt": b"no"})
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / name).write_bytes(content)
    paths = obtain(source(content, name), tmp_path, download=False)
    assert {file: path.read_bytes() for file, path in paths.items()} == CONTENT
    assert sorted(p.name for p in (tmp_path / "things").iterdir() if p.name != name) == sorted(CONTENT)


@pytest.mark.parametrize(("name", "pack"), [("all.tar.gz", tar), ("all.zip", zipped)])
def test_an_archive_without_the_files(tmp_path: Path, name: str, pack) -> None:
    content = pack({"one.bin": b"1", "other.bin": b"2"})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} .*an archive with two.bin, found only one.bin, other.bin"):
        obtain(source(content, name), tmp_path)


@pytest.mark.parametrize(("name", "pack"), [("all.tar.gz", tar), ("all.zip", zipped)])
def test_a_truncated_archive(tmp_path: Path, name: str, pack) -> None:
    content = pack(CONTENT)
    (tmp_path / name).write_bytes(content[:-20])
    with pytest.raises(ValueError, match=f"{name} is damaged .*expected md5:.*found md5:"):
        obtain(source(content, name), tmp_path)
    with pytest.raises(ValueError, match=f"{name} is damaged"):  # even with the right checksum
        obtain(source(content[:-20], name), tmp_path)
    assert not locate(source(), tmp_path).keys() - {"one.bin"}


@pytest.mark.parametrize("download", [True, False])
def test_what_is_said_when_files_are_missing(tmp_path: Path, download: bool) -> None:
    (tmp_path / "one.bin").write_text("")
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(), tmp_path, download)
    message = str(caught.value)
    assert "data set 'things' lacks two.bin:" in message
    assert f"{CLOSED}a/all.tar.gz" in message
    assert f"{CLOSED}b/all.tar.gz" in message
    assert f"Put all.tar.gz into {tmp_path / 'things'}" in message
    assert f"sepgconv data prepare things --root {tmp_path}" in message
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("name", [n for n in names() if ENTRIES[n].source])
def test_every_set_says_what_it_lacks(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataUnavailable, match=f"Put .* into {tmp_path}"):
        load(name, root=tmp_path, download=False)
    assert not list(tmp_path.iterdir())


def test_mnist_names_all_four_files(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable) as caught:
        load("mnist-rot", root=tmp_path, download=False)
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        assert f"{stem}-ubyte.gz" in str(caught.value)


def test_output_goes_to_the_cache_if_the_root_cannot_be_written(tmp_path: Path, private_cache: Path) -> None:
    assert output_folder(tmp_path, "made") == tmp_path / "made"
    (tmp_path / "blocked").write_text("a file, where a folder is wanted")
    assert output_folder(tmp_path, "blocked") == private_cache / "blocked"
    (private_cache / "blocked").rmdir()
    (private_cache / "blocked").write_text("")
    with pytest.raises(OSError, match=f"no folder to write data to: {tmp_path}.*{private_cache}"):
        output_folder(tmp_path, "blocked")


def test_atomic_write_leaves_the_old_file_if_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
