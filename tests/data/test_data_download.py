"""Downloads against a local server that can misbehave."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sepgconv.data import DataUnavailable
from sepgconv.data.download import ATTEMPTS, Remote, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
NAME = "data.bin"


class Handler(BaseHTTPRequestHandler):
    """The first part of the path says how to misbehave."""

    log: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        manner = self.path.split("/")[1]
        asked = self.headers.get("Range")
        self.log.append((manner, asked))
        content = {"wrong": CONTENT[::-1], "short": CONTENT[:-1]}.get(manner, CONTENT)
        if manner == "missing":
            self.send_error(404, "Gone fishing")
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and manner != "norange" else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        sent = {"cut": 300_000, "dead": 0}.get(manner, len(content))
        self.wfile.write(content[start : start + sent])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.log = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def remote(server: ThreadingHTTPServer, *manners: str) -> Remote:
    urls = tuple(f"http://127.0.0.1:{server.server_port}/{manner}/{NAME}" for manner in manners)
    return Remote(NAME, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", urls, (NAME,))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check(path: Path, folder: Path) -> None:
    assert path == folder / NAME
    assert path.read_bytes() == CONTENT
    assert files(folder) == [NAME]


def test_a_good_mirror(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    check(fetch(remote(server, "good"), tmp_path), tmp_path)
    assert Handler.log == [("good", None)]


def test_a_file_that_is_there_is_not_downloaded_again(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    check(fetch(remote(server, "good"), tmp_path), tmp_path)
    assert Handler.log == []


def test_a_cut_connection_is_resumed(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    check(fetch(remote(server, "cut"), tmp_path), tmp_path)
    starts = [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert Handler.log == [("cut", start) for start in starts]


def test_a_killed_download_is_resumed_by_the_next(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:777_777])
    check(fetch(remote(server, "good"), tmp_path), tmp_path)
    assert Handler.log == [("good", "bytes=777777-")]


def test_a_mirror_goes_on_where_another_stopped(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sepgconv.data.download.ATTEMPTS", 2)
    check(fetch(remote(server, "cut", "good"), tmp_path), tmp_path)
    assert Handler.log[-1] == ("good", "bytes=600000-")


def test_what_was_downloaded_is_kept_when_all_mirrors_fail(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sepgconv.data.download.ATTEMPTS", 2)
    with pytest.raises(DataUnavailable, match="cut after 600000 of 1000000 bytes"):
        fetch(remote(server, "cut"), tmp_path)
    assert files(tmp_path) == [f"{NAME}.part"]
    check(fetch(remote(server, "cut"), tmp_path), tmp_path)


def test_a_server_that_ignores_ranges(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:400_000])
    check(fetch(remote(server, "norange"), tmp_path), tmp_path)
    assert Handler.log == [("norange", "bytes=400000-")]


@pytest.mark.parametrize("bad", ["wrong", "short", "missing", "dead"])
def test_a_bad_mirror_before_a_good_one(server: ThreadingHTTPServer, tmp_path: Path, bad: str) -> None:
    check(fetch(remote(server, bad, "good"), tmp_path), tmp_path)
    assert [manner for manner, _ in Handler.log] == [bad, "good"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("wrong", "does not match the known hash"),
        ("short", "does not match the known hash"),
        ("missing", "HTTP status 404 Gone fishing"),
        ("dead", "cut after 0 of 1000000 bytes"),
    ],
)
def test_bad_mirrors_alone(server: ThreadingHTTPServer, tmp_path: Path, bad: str, reason: str) -> None:
    with pytest.raises(DataUnavailable, match=rf"could not download {NAME}:\n  http://.*/{bad}/.*{reason}"):
        fetch(remote(server, bad), tmp_path)
    assert NAME not in files(tmp_path)


def test_a_wrong_file_in_place_is_replaced(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"rubbish")
    check(fetch(remote(server, "good"), tmp_path), tmp_path)


def test_a_part_of_another_file_is_given_up(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(b"rubbish")
    check(fetch(remote(server, "good"), tmp_path), tmp_path)
    assert Handler.log == [("good", "bytes=7-"), ("good", None)]


@pytest.mark.parametrize(
    ("part", "requests"), [(CONTENT, ["bytes=1000000-"]), (CONTENT + b"more", ["bytes=1000004-", None])]
)
def test_a_part_that_is_whole_or_too_long(
    server: ThreadingHTTPServer, tmp_path: Path, part: bytes, requests: list[str | None]
) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(part)
    check(fetch(remote(server, "good"), tmp_path), tmp_path)
    assert [asked for _, asked in Handler.log] == requests


def test_no_server_at_all(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    there = remote(server, "good", "cut")
    server.shutdown()
    server.server_close()
    with pytest.raises(DataUnavailable) as caught:
        fetch(there, tmp_path)
    for url in there.urls:
        assert f"{url}: [Errno 111] Connection refused" in str(caught.value)


def test_downloads_at_the_same_time_do_not_mix(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    wanted, results = remote(server, "cut"), []
    threads = [threading.Thread(target=lambda: results.append(fetch(wanted, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tmp_path / NAME] * 4
    check(results[0], tmp_path)
    assert len(Handler.log) == 4  # one download, in four pieces
    assert len(Handler.log) <= ATTEMPTS
