"""From runs to numbers: means and deviations over seeds, by setting, and the published value of each."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from .experiment import Experiment, Plain
from .store import Store


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation (n − 1) over seeds."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat":
        """Of one value per seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def show(self, digits: int) -> str:
        """As `1.23 ± 0.04`."""
        text = f"{self.mean:,.{digits}f}"
        # Digits that would round a small deviation to zero are added.
        if self.std is None or (self.std == 0 and digits == 0):
            return text
        more = digits if self.std == 0 else max(digits, min(-math.floor(math.log10(self.std)), digits + 2))
        return f"{text} ± {self.std:.{more}f}"


@dataclass(frozen=True)
class Row:
    """A setting of a sweep with its metrics over all seeds that are finished, and each metric by seed."""

    axes: Plain
    metrics: dict[str, Stat]
    seeds: dict[str, dict[int, float]] = field(default_factory=dict)

    def matches(self, where: Mapping[str, Any]) -> bool:
        """Whether the axes have these values; a value of None is for rows that do not have the axis."""
        return all(self.axes.get(name) == value for name, value in where.items())


@dataclass(frozen=True)
class Published:
    """A number that the paper prints.

    Args:
        metric: what it is of.
        value: in the units used here.
        std: its ±, if there is one.
        where: the axes of the setting, or
        other: the name of another method, which is not run here.
        label: the table that it stands in.
        tex: how the paper has it.
    """

    metric: str
    value: float
    std: float | None
    where: Plain | None
    other: str | None
    label: str
    tex: str
    scale: float
    complement: bool

    def show(self, digits: int) -> str:
        """As `1.23 ± 0.04`, with the digits that the paper gives."""
        return Stat(self.value, self.std, 1).show(digits)


@cache
def published(experiment: str) -> tuple[Published, ...]:
    """All that the paper prints for an experiment."""
    text = resources.files("sepgconv.reproduce").joinpath("published.yaml").read_text(encoding="utf-8")
    defaults = {"std": None, "where": None, "other": None, "scale": 1, "complement": False}
    return tuple(Published(**{**defaults, **entry}) for entry in yaml.safe_load(text).get(experiment, ()))


def published_for(experiment: str, metric: str, axes: Plain) -> Published | None:
    """The published value of a setting."""
    row = Row(axes, {})
    found = (p for p in published(experiment) if p.metric == metric and p.where is not None and row.matches(p.where))
    return next(found, None)


@dataclass(frozen=True)
class Summary:
    """What is known of an experiment at a budget.

    Args:
        experiment: which.
        budget: at which.
        results: of the finished runs.
        rows: by setting, in the order of the sweep.
        missing: how many runs have no result.
    """

    experiment: Experiment
    budget: str
    results: list[Plain]
    rows: list[Row]
    missing: int

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a setting."""
        return max((stat.count for row in self.rows for stat in row.metrics.values()), default=0)

    @property
    def data(self) -> list[str]:
        """The data sets that networks were fitted to; none where nothing was."""
        trained = [result["config"] for result in self.results if result["config"]["measure"] != "parameters"]
        return list(dict.fromkeys(config["data"]["name"] for config in trained))

    @property
    def substitutes(self) -> list[str]:
        """Those of them that stand in for the paper's."""
        paper = {run.config["data"]["name"] for run in self.experiment.runs("paper")}
        return [name for name in self.data if name not in paper]

    def select(self, where: Mapping[str, Any]) -> list[Row]:
        """The rows with these values of the axes."""
        return [row for row in self.rows if row.matches(where)]


def summarise(experiment: Experiment, budget: str, store: Store) -> Summary:
    """Collects the results there are."""
    runs = experiment.runs(budget)
    results = [result for run in runs if (result := store.read(run)) is not None]
    groups: dict[tuple, tuple[Plain, dict[str, dict[int, float]]]] = {}
    for result in results:
        for row in result["rows"]:
            axes = {**result["axes"], **row["axes"]}
            _, metrics = groups.setdefault(tuple(axes.items()), (axes, {}))
            for name, value in row["metrics"].items():
                metrics.setdefault(name, {})[result["seed"]] = value
    rows = [
        Row(axes, {name: Stat.of([*values.values()]) for name, values in metrics.items()}, metrics)
        for axes, metrics in groups.values()
    ]
    return Summary(experiment, budget, results, rows, len(runs) - len(results))
