from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sepgconv.reproduce import Run, find

PAPERS = [folder / "shared" / "paper.tex" for folder in Path(__file__).parents]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def paper() -> str:
    found = next((path for path in PAPERS if path.is_file()), None)
    if found is None:
        pytest.skip("shared/paper.tex is not beside the checkout")
    return found.read_text(encoding="utf-8")


@pytest.fixture
def runs() -> list[Run]:
    """Eight runs that would take a second or two each."""
    return find("resolution").runs("cpu")[:8]
