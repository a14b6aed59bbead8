"""No GPU is here: steps on a fake device show that nothing is copied from the host and nobody waits for the device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def problems() -> dict[str, list[str]]:
    script = Path(__file__).with_name("device_steps.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_step_elsewhere_copies_nothing_and_waits_for_nothing(problems: dict[str, list[str]]) -> None:
    control = " ".join(problems.pop("control"))
    assert "_to_copy" in control
    assert "on the CPU" in control  # a number that the host asks for is an error of its own with fake tensors
    assert len(problems) >= 20
    assert {name: found for name, found in problems.items() if found} == {}
