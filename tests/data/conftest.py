from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the cache of the person who runs it."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("sepgconv.data.places.user_cache", lambda: cache)
    monkeypatch.delenv("SEPGCONV_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    return cache


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine, threads that wait for each other are most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def shared() -> Path:
    if not (SHARED / "mnist").is_dir():
        pytest.skip(f"{SHARED / 'mnist'} is absent")
    return SHARED
