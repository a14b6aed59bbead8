"""Markdown: an experiment's table, its claims, and the page of all of them."""

from typing import Any

from .claims import verdicts
from .experiment import Experiment, Plain
from .summary import Summary, published, published_for

TASKS = {
    "smoke": "a few steps of tiny networks on embedded digits: it shows that everything runs, not what the paper found",
    "cpu": "at most fifteen minutes on two cores: narrow networks, few images, one-cycle schedule",
    "long": "narrow networks, 30 epochs of all images, at whose end the learning rate is zero "
    "(each experiment says how much training errors still fell); paired seeds",
    "paper": "the published regime",
}


SPREAD = ("A claim is *supported* if the difference exceeds the standard errors of both sides in every setting.",)
RULE = (
    "Both sides of a claim are run with the same seeds; its 95 % interval (Student's t) is of the difference per seed,",
    "over all settings that it names. It is *supported* or *refuted* if the interval lies on one side of zero, else",
    "*undecided*, and not judged before all its runs are there. The rule was written down before the runs.",
    "MNIST-rot and its like are made again from MNIST: published errors beside ours are on other files.",
)


ELSEWHERE = (
    "The paper's other claims were run at the budget `cpu` only, in minutes and far from converged: "
    "`sepgconv reproduce report --budget cpu`."
)


def comparisons(summaries: list[Summary]) -> str:
    """How many claims are judged, and what chance alone would make of so many."""
    count = sum(verdict.interval is not None for summary in summaries for verdict in verdicts(summary))
    return (
        f"Claims judged: {count}. Each interval misses the truth once in twenty times: if no difference "
        f"were real, {0.05 * count:.1f} of them would be decided all the same. None is corrected for the others."
    )


def table(summary: Summary) -> str:
    """Settings by row; for every metric ours and, where the paper prints one, the published value beside it."""
    recipe = summary.experiment.recipe
    axes = list(dict.fromkeys(name for row in summary.rows for name in row.axes))
    known = {p.metric for p in published(summary.experiment.id)}
    head, align = list(axes), ["---"] * len(axes)
    ours = f"ours on {' and '.join(summary.data)}" if summary.substitutes else "ours"
    for metric, look in recipe["table"].items():
        columns = [f"{look['label']}, published"] if metric in known else []
        columns.append(f"{look['label']}, {ours}" if metric in known else look["label"])
        head, align = head + columns, align + ["---:"] * len(columns)
    lines = [head, align]
    for row in summary.rows:
        cells = [str(row.axes.get(name, "")) for name in axes]
        for metric, look in recipe["table"].items():
            if metric in known:
                value = published_for(summary.experiment.id, metric, row.axes)
                cells.append(value.show(look["digits"]) if value else "–")
            cells.append(row.metrics[metric].show(look["digits"]) if metric in row.metrics else "–")
        lines.append(cells)
    lines += [other_row(p, axes, recipe, known) for p in published(summary.experiment.id) if p.other]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def other_row(value, axes: list[str], recipe: Plain, known: set[str]) -> list[str]:
    """A method of others, which has a published value only."""
    cells = [value.other] + [""] * (len(axes) - 1)
    for metric, look in recipe["table"].items():
        if metric in known:
            cells.append(value.show(look["digits"]) if metric == value.metric else "–")
        cells.append("–")
    return cells


def section(summary: Summary, figure: str, notes: str = "") -> str:
    """An experiment's part of a page: how it was run, figure, table, claims, remarks."""
    experiment, budget = summary.experiment, summary.experiment.budget(summary.budget)
    lines = [f"## {experiment.title}", "", f"`sepgconv reproduce {experiment.id} --budget {summary.budget}`: "]
    lines[-1] += f"{experiment.where}. {conditions(experiment, summary)}"
    if budget.get("note"):
        lines[-1] += f" {budget['note']}"
    if summary.missing:
        lines += ["", f"**{plural(summary.missing, 'run')} of {len(summary.results) + summary.missing} missing.**"]
    if summary.budget == "long":
        lines += ["", flatness(summary)]
    lines += ["", f"![{experiment.title}]({figure})", "", table(summary), ""]
    if not any(p.metric in experiment.recipe["table"] for p in published(experiment.id)):
        lines += ["The paper shows this as a picture; its text gives no numbers to put beside ours.", ""]
    for verdict in verdicts(summary):
        word = verdict.word if summary.budget != "smoke" else "too short a run to tell"
        if verdict.interval is not None:
            word += f", difference {verdict.interval}"
        details = f" ({'; '.join(verdict.details)})" if verdict.details else ""
        lines.append(f"- {verdict.claim['says']} **{word[0].upper()}{word[1:]}**{details}.")
    return "\n".join([*lines, *(["", notes.strip()] if notes.strip() else []), ""])


def flatness(summary: Summary, before: int = 5) -> str:
    """How far training went: its error at the end of all runs, and what the last epochs changed."""
    courses = [result["arrays"]["course"]["train/error"] for result in summary.results]
    ends, falls = [course[-1] for course in courses], [course[-1 - before] - course[-1] for course in courses]
    return (
        f"Training error at the end: {min(ends):.2f} to {max(ends):.2f} %; "
        f"in the last {before} epochs it fell by {min(falls):.2f} to {max(falls):.2f} points."
    )


def conditions(experiment: Experiment, summary: Summary) -> str:
    """How much was run: seeds, data, epochs, time."""
    if not summary.results:
        return "Nothing was run yet."
    first = summary.results[0]["config"]
    names = ", ".join(dict.fromkeys(result["config"]["data"]["name"] for result in summary.results))
    minutes = sum(result["seconds"] for result in summary.results) / 60
    runs = f"{plural(len(summary.results), 'run')}, {plural(summary.seeds, 'seed')}"
    if first["measure"] == "parameters":
        return f"{runs}."
    chosen = first["data"]
    images = f"{chosen['limit']:,}" if chosen["limit"] else "all"
    tested = f"{chosen['test']:,}" if chosen["test"] else "all"
    trained = f", {plural(first['epochs'], 'epoch')} of {images} images of {names}, {tested} for testing"
    width = "" if first["shrink"] == 1 else f", channels × {first['shrink']:g}"
    device = " and ".join(dict.fromkeys(_device(result["hardware"]) for result in summary.results))
    spent = f"{minutes:.1f} minutes of runs" if minutes >= 1 else f"{60 * minutes:.0f} seconds of runs"
    return f"{runs}{'' if first['measure'] == 'time' else trained}{width}; {spent} on {device}."


def _device(hardware: dict[str, Any]) -> str:
    if hardware["gpus"]:
        return hardware["gpus"][0]
    return f"{plural(hardware['threads'], 'thread')} of {hardware['cpu']}"


def plural(count: int, noun: str) -> str:
    """As `1 seed`, `2 seeds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def page(summaries: list[tuple[Summary, str, str]], budget: str) -> str:
    """The whole page: what was run, all claims, and a section for every experiment that has results."""
    known = [summary for summary, _, _ in summaries]
    versions = next((r["versions"] for s in known for r in s.results), {})
    lines = [
        "# The paper, reproduced" + ("" if budget == "long" else f" at the budget `{budget}`"),
        "",
        f"Generated by `sepgconv reproduce report --budget {budget}` from the results.",
        f"Budget `{budget}`: {TASKS[budget]}.",
        "",
        "Published values are the paper's, ± its deviation; ours are means ± standard deviations over seeds.",
        *(RULE if budget == "long" else SPREAD),
        *([comparisons(known)] if budget == "long" else []),
        "",
        "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + ".",
        "",
    ]
    if budget == "long":
        lines += decided(known)
    elif budget != "smoke":
        lines += overview(known)
    return "\n".join(lines) + "\n" + "\n".join(section(*summary) for summary in summaries if summary[0].results)


def overview(summaries: list[Summary]) -> list[str]:
    """All claims and what became of them, a line each."""
    rows = [f"| {v.claim['says']} | {v.word} | {s.experiment.id} |" for s in summaries for v in verdicts(s)]
    return ["| what the paper says | here | experiment |", "|---|---|---|", *rows, ""] if rows else []


def decided(summaries: list[Summary]) -> list[str]:
    """All claims of the budget `long`: what became of them, by which interval, from how many hours of runs."""
    head = "| what the paper says | here | difference, 95 % interval | hours of one core | experiment |"
    rows = [
        f"| {v.claim['says']} | {v.word} | {v.interval or '–'} | {v.seconds / 3600:.1f} | {s.experiment.id} |"
        for s in summaries
        for v in verdicts(s)
    ]
    return [head, "|---|---|---|---:|---|", *rows, "", ELSEWHERE, ""]
