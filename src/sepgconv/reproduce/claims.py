"""What the paper claims, compared with the numbers there are."""

import math
import statistics
from dataclasses import dataclass, replace

from sepgconv.data.registry import entry

from .experiment import Plain
from .intervals import SUPPORTED, UNFINISHED, Interval, paired
from .summary import Row, Stat, Summary

CONTRADICTED, OPEN, MIXED = "not supported", "within the spread", "mixed"
UNTESTED = "not tested"
WORDS = {"lower": "lower", "higher": "higher", "not higher": "not higher"}


@dataclass(frozen=True)
class Verdict:
    """What came of a claim.

    Args:
        claim: as the recipe has it.
        word: `supported`, perhaps `in part`, `not supported`, `mixed`, `within the spread` or `not tested`; at the
            budget `long`: `supported`, `refuted`, `undecided` or `not finished`.
        details: the numbers, one comparison each.
        interval: that decides, at the budget `long`.
        seconds: of one core that the runs took which are there, at the budget `long`.
    """

    claim: Plain
    word: str
    details: list[str]
    interval: Interval | None = None
    seconds: float = 0.0


def verdicts(summary: Summary) -> list[Verdict]:
    """All claims of an experiment's recipe."""
    rule = judge_by_seeds if summary.budget == "long" else judge
    return [rule(claim, summary) for claim in summary.experiment.claims(summary.budget)]


def judge_by_seeds(claim: Plain, summary: Summary) -> Verdict:
    """By the rule of `intervals`, once all runs that it names are there."""
    expected(claim)
    metrics = {side: claim[side]["metric"] for side in ("left", "right")}
    runs = summary.experiment.runs(summary.budget)
    seeds = sorted({run.seed for run in runs})
    sweep = {run.name.rsplit("-seed", 1)[0]: run.axes for run in runs}.values()
    planned = [Row(axes, {name: Stat(0.0, None, 0) for name in metrics.values()}) for axes in sweep]
    found = pairs(claim, summary)
    differences = [paired(left.seeds[metrics["left"]], right.seeds[metrics["right"]], seeds) for left, right in found]
    complete = [each for each in differences if each is not None]
    details = [
        f"{label(left, right)}: {number(left.metrics[metrics['left']].mean)} against "
        f"{number(right.metrics[metrics['right']].mean)}{f', difference {Interval.of(each)}' if each else ''}"
        for (left, right), each in zip(found, differences, strict=True)
    ]
    wanted = pairs(claim, replace(summary, rows=planned))
    settings = [row.axes for pair in wanted for row in pair]
    spent = sum(
        result.get("core_seconds", result["seconds"]) for result in summary.results if result["axes"] in settings
    )
    if not complete or len(complete) < len(wanted):
        return Verdict(claim, UNFINISHED, details, seconds=spent)
    interval = Interval.of([statistics.fmean(each) for each in zip(*complete, strict=True)])
    return Verdict(claim, interval.decide(claim["expect"]), details, interval, spent)


def expected(claim: Plain) -> str:
    """What a claim expects of its left side."""
    if claim["expect"] not in WORDS:
        raise ValueError(f"expect must be one of {', '.join(WORDS)}; got {claim['expect']!r}")
    return claim["expect"]


def label(left: Row, right: Row) -> str:
    """What two settings have in common."""
    same = {k: v for k, v in left.axes.items() if right.axes.get(k) == v}
    return ", ".join(f"{k} {v}" for k, v in same.items()) or "overall"


def judge(claim: Plain, summary: Summary) -> Verdict:
    """Compares the two sides of a claim in all settings in which they differ in nothing else.

    A difference counts if it exceeds the spread: the standard errors of both means, over seeds and, for errors and
    accuracies, over test images.
    """
    expected(claim)
    signs, details = [], []
    for left, right in pairs(claim, summary):
        a, b = left.metrics[claim["left"]["metric"]], right.metrics[claim["right"]["metric"]]
        spread = math.hypot(
            noise(left, claim["left"]["metric"], summary), noise(right, claim["right"]["metric"], summary)
        )
        difference = a.mean - b.mean
        sign = 0 if abs(difference) <= spread else 1 if difference > 0 else -1
        signs.append(sign)
        ratio = f", a factor of {b.mean / a.mean:.3g}" if "seconds" in claim["left"]["metric"] and a.mean else ""
        details.append(f"{label(left, right)}: {number(a.mean)} against {number(b.mean)}, spread {spread:.2g}{ratio}")
    return Verdict(claim, decide(claim["expect"], signs), details)


def number(value: float) -> str:
    """Four digits, without exponents."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def decide(expect: str, signs: list[int]) -> str:
    """From the signs of all differences, zero where they are within the spread, to a word."""
    if not signs:
        return UNTESTED
    wanted = 1 if expect == "higher" else -1
    if any(sign == -wanted for sign in signs):
        return MIXED if any(sign == wanted for sign in signs) else CONTRADICTED
    if expect == "not higher":
        return SUPPORTED
    if all(sign == wanted for sign in signs):
        return SUPPORTED
    return f"{SUPPORTED} in part" if any(signs) else OPEN


def pairs(claim: Plain, summary: Summary) -> list[tuple[Row, Row]]:
    """The settings of both sides that agree in all axes which neither side names."""
    sides = [claim[side].get("where", {}) for side in ("left", "right")]
    named = {name for where in sides for name in where}
    found = []
    for left in summary.select(sides[0]):
        rest = {name: value for name, value in left.axes.items() if name not in named}
        wanted = claim.get("at", {})
        if any(left.axes.get(name) not in values for name, values in wanted.items()):
            continue
        found += [
            (left, right)
            for right in summary.select(sides[1])
            if {name: value for name, value in right.axes.items() if name not in named} == rest
            and all(claim[side]["metric"] in row.metrics for side, row in (("left", left), ("right", right)))
        ]
    return found


def noise(row: Row, metric: str, summary: Summary) -> float:
    """The standard error of a mean: over seeds and, for rates in per cent, over the test images that were seen."""
    stat = row.metrics[metric]
    over_seeds = (stat.std or 0.0) / math.sqrt(stat.count)
    if "error" not in metric and "accuracy" not in metric:
        return over_seeds
    rate = min(max(stat.mean / 100, 0.0), 1.0)
    data = summary.results[0]["config"]["data"]
    images = data["test"] or entry(data["name"]).sizes[2]
    return max(over_seeds, 100 * math.sqrt(rate * (1 - rate) / (images * stat.count)))
