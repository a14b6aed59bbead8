"""Without the compiled kernels these tests are skipped, and say why."""

import ctypes
from collections.abc import Iterator

import pytest
import torch

from sepgconv.execution.native import _library

UNIT = 2.0**-24
"""Half of float32's spacing at 1: what one operation rounds by, at most, relative to its result."""


def usable() -> list[str]:
    """The builds that run on this machine."""
    found = _library.library()
    if found is False:
        return []
    best = found.sepgconv_vectors()
    names = [name for name in ("base", "avx2", "avx512") if not found.sepgconv_use_vectors(name.encode())]
    found.sepgconv_use_vectors(best)
    return names


@pytest.fixture
def kernels() -> ctypes.CDLL:
    """The library, or a visible skip."""
    found = _library.library()
    if found is False:
        pytest.skip(f"no compiled kernels: {_library.status().reason}")
    return found


@pytest.fixture(params=["base", "avx2", "avx512"])
def vectors(request: pytest.FixtureRequest, kernels: ctypes.CDLL) -> Iterator[str]:
    """Every width of vectors in turn."""
    best = kernels.sepgconv_vectors()
    if kernels.sepgconv_use_vectors(request.param.encode()):
        pytest.skip(f"{request.param} does not run on this machine, or was not built for it")
    yield request.param
    kernels.sepgconv_use_vectors(best)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, whatever the suite uses."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
