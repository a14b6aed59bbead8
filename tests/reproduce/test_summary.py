import pytest

from sepgconv.reproduce import find
from sepgconv.reproduce.claims import OPEN, decide, judge, verdicts
from sepgconv.reproduce.intervals import SUPPORTED
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.summary import Row, Stat, Summary, published_for, summarise
from sepgconv.reproduce.tables import table


def summary(errors: dict[tuple[str, int], list[float]], budget: str = "cpu") -> Summary:
    """Of the experiment `resolution`, with these errors by factorisation and rotations."""
    rows = [
        Row({"factorisation": f, "rotations": n}, {"test_error": Stat.of(values)}) for (f, n), values in errors.items()
    ]
    results = [{"config": {"data": {"test": 2048, "name": "mnist-rot"}, "measure": "error"}}]
    return Summary(find("resolution"), budget, results, rows, 0)


def test_mean_and_deviation() -> None:
    stat = Stat.of([1.0, 2.0, 3.0])
    assert (stat.mean, stat.std, stat.count) == (2.0, 1.0, 3)
    assert stat.show(2) == "2.00 ± 1.00"
    assert Stat.of([1.5]).show(1) == "1.5"
    assert Stat(0.89, 0.008, 1).show(2) == "0.89 ± 0.008"
    assert Stat(803242, 0.0, 2).show(0) == "803,242"


def test_published_values_stand_beside_ours() -> None:
    stand_in = summary({("separable", 4): [2.0]})
    stand_in.results[0]["config"]["data"]["name"] = "digits-rot"
    text = table(summary({("separable", 4): [2.0, 4.0], ("separable", 8): [1.0, 2.0]}, "paper"))
    assert "| separable | 8 | 0.94 ± 0.02 | 1.50 ± 0.71 |" in text
    assert "| separable | 4 | – | 3.00 ± 1.41 |" in text
    assert "ours on digits-rot" in table(stand_in)
    assert published_for("resolution", "test_error", {"factorisation": "separable", "rotations": 3}) is None


@pytest.mark.parametrize(
    ("expect", "signs", "word"),
    [
        ("lower", [-1, -1], SUPPORTED),
        ("lower", [1], "not supported"),
        ("lower", [1, 0], "not supported"),
        ("lower", [0], OPEN),
        ("lower", [-1, 0], "supported in part"),
        ("lower", [-1, 1], "mixed"),
        ("higher", [1], SUPPORTED),
        ("higher", [-1], "not supported"),
        ("not higher", [0, -1], SUPPORTED),
        ("not higher", [0], SUPPORTED),
        ("not higher", [1], "not supported"),
        ("lower", [], "not tested"),
    ],
)
def test_verdicts(expect: str, signs: list[int], word: str) -> None:
    assert decide(expect, signs) == word


def test_sides_are_compared_in_like_settings_only() -> None:
    found = summary({("separable", 4): [2.0], ("nonseparable", 8): [9.0], ("separable", 8): [2.0]})
    verdict = judge(find("resolution").recipe["claims"][0], found)
    assert len(verdict.details) == 1
    assert verdict.details[0].startswith("rotations 8: 2 against 9")
    assert verdict.word == SUPPORTED


def test_a_difference_within_the_noise_of_the_test_set_decides_nothing() -> None:
    """2 % and 2.1 % of 2,048 images cannot be told apart, though one seed each shows no spread."""
    claim = {**find("resolution").recipe["claims"][0], "expect": "lower"}
    close = summary({("separable", 8): [2.0], ("nonseparable", 8): [2.1]})
    assert judge(claim, close).word == OPEN
    far = summary({("separable", 8): [2.0], ("nonseparable", 8): [4.1]})
    assert judge(claim, far).word == SUPPORTED


def test_seeds_are_counted_once_each(tmp_path) -> None:
    store, runs = Store(tmp_path), find("resolution").runs("cpu")
    for number, run in enumerate(runs[:3]):
        result = {"format": 1, "axes": run.axes, "config": run.config, "seed": run.seed}
        store.write(run, {**result, "rows": [{"axes": {}, "metrics": {"test_error": float(number)}}]})
    found = summarise(find("resolution"), "cpu", store)
    assert found.missing == len(runs) - 3
    assert [row.metrics["test_error"].count for row in found.rows] == [2, 1]
    assert verdicts(found)[0].word == "not tested"  # no nonseparable run is there


def test_none_is_for_rows_without_the_axis() -> None:
    plain, wide = Row({"group": "SE(2)"}, {}), Row({"group": "SE(2)", "windows": 13}, {})
    assert plain.matches({"group": "SE(2)", "windows": None})
    assert not wide.matches({"windows": None})
    assert wide.matches({"windows": 13})
    assert not plain.matches({"windows": 13})
