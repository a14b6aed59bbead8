"""The rule of the budget `long`, on made-up numbers."""

import math

import pytest

from sepgconv.reproduce import find
from sepgconv.reproduce.claims import judge_by_seeds, verdicts
from sepgconv.reproduce.intervals import REFUTED, SUPPORTED, UNDECIDED, UNFINISHED, Interval, paired
from sepgconv.reproduce.store import Store
from sepgconv.reproduce.summary import Summary, summarise
from sepgconv.reproduce.tables import conditions, page

SEPARABLE = [1.50, 1.60, 1.40, 1.55, 1.45]
NONSEPARABLE = [1.80, 1.85, 1.75, 1.80, 1.80]


def summary(tmp_path, separable: list[float], nonseparable: list[float], images: int | None = None) -> Summary:
    """Of `resolution`, with these errors by seed, on all images or so many."""
    store, values = Store(tmp_path), {"separable": separable, "nonseparable": nonseparable}
    for run in find("resolution").runs("long"):
        errors = values[run.axes["factorisation"]]
        if run.axes.get("images") == images and run.seed < len(errors):
            result = {"format": 1, "axes": run.axes, "config": run.config, "seed": run.seed, "seconds": 60.0}
            result |= {"core_seconds": 360.0} if run.seed == 0 else {}  # as runs have it that began before it was there
            result |= {"hardware": {"gpus": [], "threads": 1, "cpu": "made up"}, "versions": {}}
            result |= {"arrays": {"course": {"train/error": [50.0, 3.0, 2.0, 1.0, 0.75, 0.5, 0.25 + 0.01 * run.seed]}}}
            store.write(run, {**result, "rows": [{"axes": {}, "metrics": {"test_error": errors[run.seed]}}]})
    return summarise(find("resolution"), "long", store)


def test_every_machine_that_made_a_run_is_named_once(tmp_path) -> None:
    found = summary(tmp_path, SEPARABLE, NONSEPARABLE)
    found.results[3]["hardware"] = {"gpus": [], "threads": 2, "cpu": "another"}
    found.results[5]["hardware"] = {"gpus": ["a GPU"], "threads": 2, "cpu": "another"}
    said = conditions(find("resolution"), found)
    assert said.endswith("on 1 thread of made up and 2 threads of another and a GPU.")


def test_an_interval_is_students() -> None:
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    reach = 2.776 * math.sqrt(2.5 / 5)
    assert found.low == pytest.approx(3 - reach)
    assert found.high == pytest.approx(3 + reach)
    assert str(found) == "+3 [+1.04, +4.96], 5 seeds"
    with pytest.raises(ValueError, match="2 to 11 seeds, got 1"):
        Interval.of([1.0])


@pytest.mark.parametrize("expect", ["lower", "higher", "not higher"])
def test_a_claim_turned_round_turns_the_verdict(tmp_path, expect: str) -> None:
    claim = {**find("resolution").claims("long")[0], "expect": expect}
    there = judge_by_seeds(claim, summary(tmp_path / "a", SEPARABLE, NONSEPARABLE))
    back = judge_by_seeds(claim, summary(tmp_path / "b", NONSEPARABLE, SEPARABLE))
    lower = [SUPPORTED, REFUTED] if expect != "higher" else [REFUTED, SUPPORTED]
    assert [there.word, back.word] == lower
    assert there.interval is not None
    assert back.interval is not None
    assert (there.interval.low, there.interval.high) == pytest.approx((-back.interval.high, -back.interval.low))


def test_an_interval_that_holds_zero_decides_nothing(tmp_path) -> None:
    mixed = [1.9, 1.2, 1.8, 1.9, 1.7]
    for number, sides in enumerate([(mixed, NONSEPARABLE), (NONSEPARABLE, mixed)]):
        verdict, _ = verdicts(summary(tmp_path / str(number), *sides))
        assert verdict.word == UNDECIDED
        assert verdict.interval is not None
        assert verdict.interval.low < 0 < verdict.interval.high


def test_seeds_are_paired(tmp_path) -> None:
    """A difference that every seed shows counts, though the seeds differ by far more."""
    nonseparable = [1.0, 2.0, 3.0, 4.0, 5.0]
    close = [value - 0.1 - 0.001 * seed for seed, value in enumerate(nonseparable)]
    verdict, _ = verdicts(summary(tmp_path / "a", close, nonseparable))
    assert verdict.word == SUPPORTED
    verdict, _ = verdicts(summary(tmp_path / "b", close[::-1], nonseparable))
    assert verdict.word == UNDECIDED
    assert paired({0: 1.0, 1: 2.0}, {1: 1.0, 0: 3.0}, [0, 1]) == [-2.0, 1.0]
    assert paired({0: 1.0}, {0: 3.0, 1: 1.0}, [0, 1]) is None


def test_nothing_is_judged_before_all_its_runs_are_there(tmp_path) -> None:
    verdict, _ = verdicts(summary(tmp_path / "a", SEPARABLE[:4], NONSEPARABLE))
    assert verdict.word == UNFINISHED
    assert verdict.interval is None
    verdict, _ = verdicts(summary(tmp_path / "b", SEPARABLE, []))
    assert verdict.word == UNFINISHED


def test_a_claim_about_few_images_counts_only_their_runs(tmp_path) -> None:
    summary(tmp_path, SEPARABLE, NONSEPARABLE)
    paper, ours = verdicts(summary(tmp_path, NONSEPARABLE, SEPARABLE[:4], images=2000))
    assert (paper.word, ours.word) == (SUPPORTED, UNFINISHED)
    assert (paper.seconds, ours.seconds) == (2 * 360 + 8 * 60, 2 * 360 + 7 * 60)
    paper, ours = verdicts(summary(tmp_path, NONSEPARABLE, SEPARABLE, images=2000))
    assert (paper.word, ours.word) == (SUPPORTED, REFUTED)
    assert len(paper.details) == len(ours.details) == 1


def test_settings_of_a_claim_are_averaged_seed_by_seed(tmp_path) -> None:
    """At 8 rotations better by 1, at 4 worse by 1: nothing is left of the difference, which both settings show."""
    experiment, store = find("sampling"), Store(tmp_path)
    signs = {2: 0.0, 4: 1.0, 8: -1.0}
    for run in experiment.runs("long"):
        wobble = 0.01 * (run.seed - 2) * (1 if run.axes["sampling"] == "random" else -1)
        sign = signs[run.axes["rotations"]] if run.axes["sampling"] == "random" else 0.0
        result = {"format": 1, "axes": run.axes, "config": run.config, "seed": run.seed, "seconds": 60.0}
        metrics = {"test_error": 2 + sign + wobble}
        if run.axes["sampling"] == "random":
            metrics["shifts_error"] = 1.5 + sign + wobble
        store.write(run, {**result, "rows": [{"axes": {}, "metrics": metrics}]})
    found = summarise(experiment, "long", store)
    assert [verdict.word for verdict in verdicts(found)] == [UNDECIDED, REFUTED, SUPPORTED, SUPPORTED]
    together = judge_by_seeds({**experiment.claims("long")[0], "at": {"rotations": [4, 8]}}, found)
    assert together.interval is not None
    assert together.interval.mean == pytest.approx(0, abs=1e-9)
    assert len(together.details) == 2


def test_the_page_has_the_rule_the_interval_and_the_number_of_claims(tmp_path) -> None:
    text = page([(summary(tmp_path, SEPARABLE, NONSEPARABLE), "figure.png", "")], "long")
    assert "| supported | -0.3 [-0.362, -0.238], 5 seeds | 0.3 | resolution |" in text  # twice 6 minutes, 8 times 1
    assert "**Supported, difference -0.3 [-0.362, -0.238], 5 seeds**" in text
    assert "Training error at the end: 0.25 to 0.29 %; in the last 5 epochs it fell by 2.71 to 2.75 points." in text
    assert "Claims judged: 1." in text
    assert "0.1 of them" in text
    assert "made again from MNIST" in text
    assert text.startswith("# The paper, reproduced\n")
    assert "other claims were run at the budget `cpu` only" in text


def test_the_page_names_claims_that_nobody_has_run(tmp_path) -> None:
    begun = summary(tmp_path, SEPARABLE[:1], NONSEPARABLE[:1])
    text = page([(begun, "figure.png", ""), (summarise(find("activations"), "long", Store(tmp_path)), "", "")], "long")
    assert "| Separable convolutions beat nonseparable ones. | not finished | – | 0.2 | resolution |" in text
    assert "| Sine beats ReLU. | not finished | – | 0.0 | activations |" in text
    assert "**18 runs of 20 missing.**" in text
    assert f"## {find('activations').title}" not in text
