import os

# Some virtual machines announce AMX and then trap its instructions: bfloat16 would end the test process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tensors here are small: threads would only wait for each other

settings.register_profile("suite", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Lost equivariance fails a test. Here and not in pyproject.toml, where it would import the package too early."""
    config.addinivalue_line("filterwarnings", "error::sepgconv.EquivarianceWarning")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
