"""`sepgconv info` says what is in use, and why not."""

import pytest
import torch

from sepgconv import cli, info
from sepgconv.execution.native import Status, status


def test_it_says_versions_threads_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["torch"] == torch.__version__.split("+")[0] or lines["torch"] == torch.__version__
    assert lines["threads"].startswith(str(torch.get_num_threads()))
    found = info.facts()["compiled kernels"]
    assert found.startswith("in use") == status().active


def test_without_kernels_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "status", lambda: Status(False, "no C compiler found"))
    assert info.facts()["compiled kernels"].startswith("not in use: no C compiler found; ")
