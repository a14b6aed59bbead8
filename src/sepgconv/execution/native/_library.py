"""Finds, loads and describes the compiled kernels. Without them everything works, more slowly."""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from sepgconv.execution.native import _build

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[3]
"""Where `setup.py` lies if this is a checkout, whose library is built again when the C has changed."""


@dataclass(frozen=True)
class Status:
    """Whether the compiled kernels are in use, and why not or with what.

    `vectors` is the build in use (base, avx2, avx512) and `threads` where threads come from: torch's own pool, or made
    for every call.
    """

    active: bool
    reason: str
    vectors: str = ""
    threads: str = ""


FOUND: ctypes.CDLL | Literal[False] | None = None
"""The library; False where there is none, None before anybody has looked."""
_status = Status(False, "not looked for yet")


def status() -> Status:
    """Whether compiled kernels are in use, and why not."""
    library()
    return _status


def library() -> ctypes.CDLL | Literal[False]:
    """The library, or False where there is none or it is switched off."""
    global FOUND, _status
    if FOUND is None:
        found, _status = _load()
        FOUND = found
    return FOUND


def needed() -> ctypes.CDLL:
    """The library, for an operator that was called by its name: raises RuntimeError where there is none."""
    found = library()
    if found is False:
        raise RuntimeError(f"the compiled kernels of sepgconv are not there: {_status.reason}")
    return found


def _load() -> tuple[ctypes.CDLL | Literal[False], Status]:
    if os.environ.get("SEPGCONV_NATIVE", "1") == "0":
        return False, Status(False, "switched off by SEPGCONV_NATIVE=0")
    try:
        found = _open()
    except (OSError, AttributeError) as error:
        return False, Status(False, " ".join(str(error).split()))
    pool = _share_pool(found)
    return found, Status(True, "compiled", found.sepgconv_vectors().decode(), pool)


def _open() -> ctypes.CDLL:
    """The library of today's sources; a checkout builds it where it has to."""
    path, checkout = HERE / _build.LIBRARY, (CHECKOUT / "setup.py").exists()
    found = None
    if path.exists():
        try:
            found = _typed(ctypes.CDLL(str(path)))
        except (OSError, AttributeError) as error:
            if not checkout:
                raise OSError(f"does not load on this machine ({platform.machine()}): {error}") from error
    elif not checkout:
        raise OSError("not built when the package was installed (no working C compiler then?)")
    if found is not None and found.sepgconv_source().decode() == _build.source_hash():
        return found
    if not checkout:
        raise OSError(f"{path.name} was built from other sources: install the package again")
    try:
        path = _build.build(HERE)
    except OSError as error:
        raise OSError(f"not built: {error}") from error
    return _typed(ctypes.CDLL(f"{HERE}{os.sep}.{os.sep}{path.name}"))  # by its own name the old one would come again


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    """With argument types; raises AttributeError if something is missing."""
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    found.sepgconv_source.restype = found.sepgconv_vectors.restype = text
    found.sepgconv_use_vectors.argtypes = [text]
    found.sepgconv_use_pool.argtypes, found.sepgconv_use_pool.restype = [pointer], None
    found.sepgconv_same.argtypes = [pointer, pointer, pointer, ctypes.c_int64]
    found.sepgconv_depthwise.argtypes = [pointer, integer]
    found.sepgconv_depthwise_weight.argtypes = found.sepgconv_depthwise_input.argtypes = [pointer, pointer, integer]
    for name in (
        "norm_statistics",
        "norm_result",
        "norm_backward",
        "pool_result",
        "pool_backward",
        "circular_product",
        "circular_gradients",
        "banded_product",
        "banded_gradients",
        "spectra",
        "spectra_back",
    ):
        getattr(found, f"sepgconv_{name}").argtypes = [pointer, integer]
    return found


def _share_pool(found: ctypes.CDLL) -> str:
    """Lets the library run its tasks on the threads of the OpenMP runtime that torch has loaded."""
    for path in _openmp_runtimes():
        try:
            parallel = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        found.sepgconv_use_pool(ctypes.cast(parallel, ctypes.c_void_p))
        return "torch's pool"
    return "made for every call"


def _openmp_runtimes() -> list[str]:
    """OpenMP runtimes in this process, torch's own first; all of them know GNU's entry point."""
    if not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info():
        return []
    with Path("/proc/self/maps").open() as lines:
        mapped = dict.fromkeys(line.split(maxsplit=5)[-1].strip() for line in lines if "/" in line)
    names = ("libgomp", "libiomp", "libomp")
    paths = [path for path in mapped if Path(path).name.startswith(names)]
    return sorted(paths, key=lambda path: Path(torch.__file__).parent not in Path(path).parents)
