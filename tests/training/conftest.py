from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from training_helpers import Run, make_run


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Run]:
    """Makes a trainer, a classifier and data for `fit`; see `make_run`."""
    return partial(make_run, tmp_path)
