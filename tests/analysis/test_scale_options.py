"""What helps against losing a dilation: the trends of the tables, and the experiment on shrunk digits."""

import json
from pathlib import Path

import pytest
import torch

from sepgconv.analysis import shrinking
from sepgconv.analysis.scale_options import ENDS, border_errors, depth_error, end_errors, read_error
from sepgconv.data import Split
from sepgconv.training import Images


@pytest.mark.parametrize("group", ["scale2", "sim2"])
def test_unread_ends_and_a_cut_off_leave_little(group: str) -> None:
    everything = read_error(group, 6, 10.0, 0, None, seeds=1)
    read = read_error(group, 6, 10.0, 1, None, seeds=1)
    smooth = read_error(group, 6, 10.0, 1, 0.4, seeds=1)
    assert smooth < 0.05 < read < everything / 2


def test_copied_ends_are_better_than_tapered_and_than_none() -> None:
    errors = {name: end_errors(beyond, 0.4, seeds=1)[0] for name, beyond in ENDS.items()}
    order = ["computed, not read", "the end again", "half of the end", "nothing"]
    assert sorted(errors, key=lambda name: errors[name]) == order
    assert errors["the end again"] < errors["nothing"] / 5


def test_copies_hold_in_depth() -> None:
    copied, cut = (depth_error(2, 1, copied=copied, scales=6, seeds=1) for copied in (True, False))
    assert copied < cut / 2


def test_a_bright_ground_spoils_maxima_unless_the_image_goes_on() -> None:
    zeros, _, further = border_errors(1.0, seeds=1, scales=5, pictures=5)
    assert further < zeros / 2


def test_shrunk_digits_are_tested_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Images("digits", limit=64, batch_size=32)
    test = data.data.test
    assert isinstance(test, Split)
    digits = Split(test.images[:40], test.labels[:40])
    found = shrinking.run("pyramid", 0, data, digits, epochs=1)
    assert set(found["errors"]) == {"0.5", "0.6", "0.7", "0.8", "0.9", "1"}
    for seed in (0, 1):
        kept = {**found, "errors": dict.fromkeys(found["errors"], seed)}
        (tmp_path / f"pyramid-{seed}.json").write_text(json.dumps(kept))
    table = shrinking.as_markdown(tmp_path).splitlines()
    assert table[-1].endswith("| 2 |" + " 0.50 ± 0.71 |" * 6)
    assert len(table) == 3
    with pytest.raises(ValueError, match=r"network must be one of plain, resnet.*got 'deep'"):
        shrinking.run("deep", 0, data, digits)
    monkeypatch.setattr(shrinking, "run", lambda *args, **options: pytest.fail("it trains again"))
    assert shrinking.main(["--networks", "pyramid", "--seeds", "0", "1", "--results", str(tmp_path)]) == 0


def test_all_of_the_digits_are_compared() -> None:
    """The error of a network that calls every digit a 3, which shrinking does not change."""
    data = Images("digits", limit=64)
    labels = torch.tensor([3, 3, 1, 0] * 100)
    split = Split(torch.zeros(400, 1, 28, 28, dtype=torch.uint8), labels)

    def three(images: torch.Tensor) -> torch.Tensor:
        return torch.eye(10)[3].expand(len(images), 10)

    assert shrinking.error(three, data, split, 0.5) == 50.0  # pyright: ignore[reportArgumentType]
