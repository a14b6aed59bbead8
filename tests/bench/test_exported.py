"""`sepgconv bench --only export`: networks take turns, and ratios are those of the same rounds."""

import json

from sepgconv import cli
from sepgconv.bench import exported


def test_a_quick_run_measures_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(exported, "BATCHES", (2,))
    monkeypatch.setattr(exported, "LABELS", {"plain-torch": "plain", "folded-onnx": "folded"})
    monkeypatch.setattr(exported, "RATIOS", (("folded-onnx", "plain-torch"),))
    arguments = ["--quick", "--rounds=1", "--threads=1", f"--output={tmp_path}"]
    assert cli.main(["bench", "--only", "export", *arguments]) == 0
    found = json.loads((tmp_path / "export.json").read_text())
    assert {kind: len(times) for kind, times in found["seconds"]["2"].items()} == dict.fromkeys(exported.LABELS, 1)
    assert all(time > 0 for times in found["seconds"]["2"].values() for time in times)
    assert (tmp_path / "export.md").read_text().count("\n") == 2 + len(exported.LABELS) + len(exported.RATIOS)


def test_ratios_are_taken_by_round():
    """A machine that is slow for a round is slow for both."""
    assert exported._ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2
