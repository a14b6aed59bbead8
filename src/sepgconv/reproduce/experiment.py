"""Experiments as data: a recipe says what is swept, and a budget how much of it; together they give a list of runs."""

import difflib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

Plain = dict[str, Any]
BUDGETS = ("smoke", "cpu", "long", "paper")
CHOSEN = ("long",)  # budgets that only the experiments have whose recipes name them
ORDER = (
    "redundancy",
    "redundancy-separable",
    "sampling",
    "resolution",
    "scale-extent",
    "scale-sampling",
    "sim2-grid",
    "vision",
    "rotmnist-sota",
    "allcnnc",
    "parameters",
    "invariance",
    "factorisations",
    "siren-size",
    "activations",
    "train-time",
)
BEYOND = ("stir",)  # not of the paper: run by name, and on no page of it


@dataclass(frozen=True)
class Run:
    """One independent piece of a sweep: plain values only, so that it travels to any process or machine.

    Args:
        experiment: the id of the experiment that it belongs to.
        budget: one of `BUDGETS`.
        axes: the values, by name, in which it differs from the sweep's other settings.
        config: all settings, as `runs.execute` takes them.
        seed: of all that is random.
    """

    experiment: str
    budget: str
    axes: Plain
    config: Plain
    seed: int

    @property
    def name(self) -> str:
        """A file name: the axes for people, and a digest of all settings, so that other settings are another run."""
        label = ",".join(f"{axis}={value}" for axis, value in self.axes.items())
        label = "".join(c if c.isalnum() or c in "=,.-+" else "_" for c in label)
        text = json.dumps([self.config, self.seed], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{label or 'run'}-seed{self.seed}-{digest}"

    def __str__(self) -> str:
        label = ", ".join(f"{axis} {value}" for axis, value in self.axes.items())
        return f"{self.experiment}: {label}{', ' if label else ''}seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    Args:
        id: as the command takes it.
        title: what it shows, in a line.
        where: the table or figure in the paper.
        recipe: the whole recipe, for those who draw figures and tables from it.
    """

    id: str
    title: str
    where: str
    recipe: Plain

    def budget(self, name: str) -> Plain:
        """What a budget changes: of the regime's, then of this recipe's."""
        if name not in BUDGETS:
            near = difflib.get_close_matches(str(name), BUDGETS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"budget must be one of {', '.join(BUDGETS)}; got {name!r}{hint}")
        shared, own = regime()["budgets"][name] or {}, (self.recipe.get("budgets") or {}).get(name) or {}
        return {
            **shared,
            **own,
            "set": {**shared.get("set", {}), **own.get("set", {})},
            "substitute": {**shared.get("substitute", {}), **own.get("substitute", {})},
        }

    def has(self, budget: str) -> bool:
        """Whether there are runs at a budget."""
        return budget not in CHOSEN or budget in (self.recipe.get("budgets") or {})

    def claims(self, budget: str) -> list[Plain]:
        """What is judged at a budget."""
        return self.budget(budget).get("claims", self.recipe.get("claims", []))

    def runs(self, budget: str) -> list[Run]:
        """All runs of the sweep at a budget, seeds innermost."""
        chosen = self.budget(budget)
        if not self.has(budget):
            return []
        base = deepcopy(regime()["defaults"])
        for section, own in (self.recipe.get("defaults") or {}).items():  # keys that only this experiment has
            base[section].update(own)
        for change in (self.recipe.get("set") or {}, chosen["set"]):
            for path, value in change.items():
                put(base, path, value)
        found = []
        for axes, changes in settings(chosen.get("sweep", self.recipe["sweep"])):
            config = deepcopy(base)
            for path, value in changes.items():
                put(config, path, value)
            name = config["data"]["name"]
            config["data"]["name"] = chosen["substitute"].get(name, name)
            found += [Run(self.id, budget, axes, config, seed) for seed in range(chosen["seeds"])]
        return found


def settings(sweep: list[Plain]) -> Iterator[tuple[Plain, Plain]]:
    """The product of the axes of every table in a sweep, as names for people and as changes by dotted path.

    An axis is a dotted path with a list of values, or a name with a list of mappings: `value` is shown, the rest set.
    """
    for table in sweep:
        choices = []
        for axis, values in table.items():
            short = axis.rsplit(".", 1)[-1]
            pairs = []
            for value in values:
                if isinstance(value, Mapping):
                    pairs.append((short, value["value"], {k: v for k, v in value.items() if k != "value"}))
                else:
                    pairs.append((short, value, {axis: value}))
            choices.append(pairs)
        for combination in itertools.product(*choices):
            axes = {name: value for name, value, _ in combination}
            yield axes, {path: value for _, _, changes in combination for path, value in changes.items()}


def put(config: Plain, path: str, value: Any) -> None:
    """Sets a value by its dotted path, which must be there."""
    *parents, last = path.split(".")
    place = config
    for key in parents:
        place = place.get(key, {})
    if last not in place:
        raise ValueError(f"a recipe may set the keys of {sorted(place) or 'no section'} here, got {path!r}")
    place[last] = deepcopy(value)


@cache
def regime() -> Plain:
    """What all recipes share: the published regime, and what each budget changes."""
    return _read("regime")


def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the paper."""
    return tuple(find(name) for name in ORDER)


@cache
def find(name: str) -> Experiment:
    """An experiment by its id."""
    known = (*ORDER, *BEYOND)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"experiment must be one of {', '.join(known)}, or all; got {name!r}{hint}")
    recipe = _read(name)
    return Experiment(name, recipe["title"], recipe["where"], recipe)


def _read(name: str) -> Plain:
    text = resources.files("sepgconv.reproduce").joinpath("recipes", f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
