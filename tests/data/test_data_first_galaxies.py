"""The radio galaxies: a stand-in for the package is unpacked, each image once, with tables that agree."""

import csv
import functools
import hashlib
import io
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from sepgconv.data import DataUnavailable, first_galaxies, load
from sepgconv.data.first_galaxies import ARCHIVES, CLASSES, HELD_OUT, PNGS, TABLES, WHEEL, prepare

CATALOGUES = ("Gendre", "Proctor_Tab1", "MiraBest", "MiraBest", "Gendre", "MiraBest")
PARTS = ("train", "train", "train", "train", "valid", "test")


def files() -> dict[str, str]:
    """Six images of each class, and their parts."""
    return {
        f"{label}/{i}.5_-{i}.25_{n}_{CATALOGUES[i]}.png": PARTS[i] for n, label in enumerate(CLASSES) for i in range(6)
    }


def hdf5(chosen: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for number, (name, part) in enumerate(chosen.items()):
            image = file.create_dataset(f"data_{number}/Img", data=np.zeros((2, 2), np.uint8))
            image.attrs["Filepath_literature"] = name
            file.create_dataset(f"data_{number}/Split_literature", data=part)
    return content.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, inside in members.items():
            archive.writestr(name, inside)
    return content.getvalue()


@pytest.fixture
def package(tmp_path, monkeypatch) -> bytes:
    random = np.random.default_rng(0)
    pngs = {}
    for name, part in files().items():
        Image.fromarray(random.integers(0, 256, (300, 300), dtype=np.uint8)).save(png := io.BytesIO(), "PNG")
        pngs |= {f"galaxy_data/{part}/{name}": png.getvalue(), f"galaxy_data/all/{name}": png.getvalue()}
    held_out = {name: part for name, part in files().items() if part == "test"}
    fold = {name: part for name, part in files().items() if part != "test"}
    inner = {name: zipped({"a.h5": hdf5(held_out if name == HELD_OUT else fold)}) for name in ARCHIVES if name != PNGS}
    wheel = zipped({f"firstgalaxydata/{name}": content for name, content in {PNGS: zipped(pngs), **inner}.items()})
    monkeypatch.setattr(first_galaxies, "WHEEL_SHA256", hashlib.sha256(wheel).hexdigest())
    monkeypatch.setattr(first_galaxies, "IMAGES", len(files()))
    return wheel


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_package_becomes_a_folder_and_tables(package, data_root, monkeypatch):
    calls = []

    def pip(command, **_):
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / WHEEL).write_bytes(package)

    monkeypatch.setattr(subprocess, "run", pip)
    folder = prepare()
    assert calls[0][-1] == "firstgalaxydata==0.2.1"
    assert len(list(folder.rglob("*.png"))) == 24  # `all/` repeats every file
    for name in TABLES:
        rows = table(folder / name)
        assert {row["file"] for row in rows} == {f"images/{file}" for file in files()}
        assert all((folder / row["file"]).is_file() and row["label"] in row["file"] for row in rows)
    assert {row["file"]: row["split"] for row in table(folder / "fold3.csv")} == {
        f"images/{file}": part for file, part in files().items()
    }
    apart = table(folder / "catalogues.csv")
    assert {row["catalogue"] for row in apart if row["split"] == "test"} == {"Gendre"}
    assert {row["catalogue"] for row in apart if row["split"] != "test"} == {"Proctor_Tab1", "MiraBest"}
    assert prepare(download=False) == folder
    assert len(calls) == 1
    with pytest.raises(ValueError, match=r"must have \(1405, 353, 400\) images, found \(16, 4, 4\)"):
        load("first-galaxies")


def test_a_wheel_that_was_put_there_is_used_if_it_is_right(package, data_root):
    (data_root / WHEEL).write_bytes(package)
    assert (prepare(download=False) / "split.csv").is_file()


def test_a_wrong_wheel_is_an_error_and_leaves_nothing(package, data_root):
    (data_root / WHEEL).write_bytes(package + b"\0")
    with pytest.raises(ValueError, match="is damaged or not the right one: expected sha256"):
        prepare()
    assert not list(data_root.rglob("*.csv"))


def no_pip(command, **_):
    raise subprocess.CalledProcessError(1, command)


@pytest.fixture
def published(tmp_path, package, monkeypatch) -> Iterator[Path]:
    """The archives on a server of this machine, in place of where they were published."""
    folder = tmp_path / "served"
    folder.mkdir()
    with zipfile.ZipFile(io.BytesIO(package)) as wheel:
        for name in ARCHIVES:
            (folder / name).write_bytes(wheel.read(f"firstgalaxydata/{name}"))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        remotes = tuple(
            replace(
                remote,
                checksum=f"sha256:{hashlib.sha256((folder / remote.name).read_bytes()).hexdigest()}",
                urls=(f"{url}/{remote.name}",),
            )
            if remote.urls
            else remote
            for remote in first_galaxies.SOURCE.remotes
        )
        monkeypatch.setattr(first_galaxies, "SOURCE", replace(first_galaxies.SOURCE, remotes=remotes))
        monkeypatch.setattr(subprocess, "run", no_pip)
        yield folder
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_without_pip_the_archives_are_fetched_from_where_they_were_published(published, data_root):
    folder = prepare()
    assert len(list(folder.rglob("*.png"))) == 24
    assert {row["split"] for row in table(folder / "fold0.csv")} == {"train", "valid", "test"}
    assert prepare(download=False) == folder


def test_an_archive_with_another_checksum_is_refused(published, data_root):
    (published / PNGS).write_bytes(b"something else")
    with pytest.raises(DataUnavailable, match=rf"could not download {PNGS}(?s:.*)hash"):
        prepare()
    assert not list(data_root.rglob("*.csv"))
    assert not list(data_root.rglob("*.png"))


def test_the_record_is_named_with_a_checksum_for_every_archive():
    remotes = {remote.name: remote for remote in first_galaxies.SOURCE.remotes if remote.urls}
    assert remotes.keys() == ARCHIVES.keys()
    for name, remote in remotes.items():
        assert remote.urls == (f"https://zenodo.org/records/7689127/files/{name}",)
        assert remote.checksum == f"sha256:{ARCHIVES[name]}"


def test_without_a_network_it_says_where_to_put_it(data_root, monkeypatch):
    def no_network(remote, folder):
        raise DataUnavailable(f"could not download {remote.name}")

    monkeypatch.setattr(subprocess, "run", no_pip)
    monkeypatch.setattr(first_galaxies, "fetch", no_network)
    with pytest.raises(DataUnavailable, match=rf"Put {WHEEL} of PyPI into"):
        prepare()
    with pytest.raises(DataUnavailable, match="not downloaded, as asked"):
        prepare(download=False)
