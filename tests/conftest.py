import os
from collections.abc import Callable, Mapping
from pathlib import Path

# Some virtual machines announce AMX and then trap its instructions: bfloat16 would end the test process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

torch.set_num_threads(1)  # the tensors here are small: threads would only wait for each other

settings.register_profile("suite", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Lost equivariance fails a test. Here and not in pyproject.toml, where it would import the package too early."""
    config.addinivalue_line("filterwarnings", "error::sepgconv.EquivarianceWarning")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def kept_bytes() -> Callable[..., int]:
    """Bytes that the backward pass of `run()` holds on to, besides the tensors that are there anyway."""

    def count(run: Callable[[], torch.Tensor], *ignored: torch.Tensor) -> int:
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            result = run()
        assert result.requires_grad
        there = {tensor.untyped_storage().data_ptr() for tensor in ignored}
        return sum(size for place, size in found.items() if place not in there)

    return count


@pytest.fixture
def image_folder() -> Callable[..., Path]:
    """Writes a folder of small images, no two alike: so many in each subfolder."""

    def write(folder: Path, counts: Mapping[str, int], size: tuple[int, int] = (16, 16), mode: str = "L") -> Path:
        random = np.random.default_rng(0)
        for name, count in counts.items():
            (folder / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / name / f"{number:03}.png")
        return folder

    return write


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of the test's own for data and what is kept of it."""
    root = tmp_path / "data root"
    root.mkdir()
    monkeypatch.setenv("SEPGCONV_DATA", str(root))
    return root
