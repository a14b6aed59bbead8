"""`sepgconv reproduce`: list the experiments, run one or all, write tables, figures and the page of results."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sepgconv.data.places import atomic_write, check_outputs

from . import data
from .cluster import OnRay
from .executors import Executor, local
from .experiment import BUDGETS, Experiment, Run, experiments, find
from .figures import draw
from .store import Store
from .summary import Summary, summarise
from .sweep import Report, sweep
from .tables import page, section

TABLE, FIGURE, NOTES = "table.md", "figure.png", "notes.md"


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 1 if a run failed."""
    options = parser().parse_args(arguments)
    if options.experiment == "list":
        listing(Console())
        return 0
    chosen = experiments() if options.experiment in ("all", "report") else (find(options.experiment),)
    for experiment in chosen:
        experiment.budget(options.budget)  # a misspelt budget is found before any work
    there = [experiment for experiment in chosen if experiment.has(options.budget)]
    if not there:
        names = ", ".join(each.id for each in experiments() if each.has(options.budget))
        raise ValueError(f"budget {options.budget!r} is for {names}; got {options.experiment!r}")
    chosen = there
    if options.docs:
        check_outputs(options.docs, name="docs")  # before hours of training
    store = Store(options.output)
    if options.experiment == "report":
        if options.output.exists() and not options.output.is_dir():
            raise ValueError(f"output must be a directory, got {str(options.output)!r}, which is a file")
        store.check_version()
        return report(chosen, options.budget, store, options.docs)
    if options.tables:
        store.check_version()
        return tables(chosen, options.budget, store)
    runs = only([run for experiment in chosen for run in experiment.runs(options.budget)], options.only)
    executor = pick(options)
    console = Console(stderr=True)
    with store.locked():
        data.prepare([run for run in runs if store.read(run) is None], options.root)
        done = sweep(runs, store, executor, root=options.root, console=console)
        for experiment in chosen:
            summary = publish(experiment, options.budget, store)
            if summary.results:
                console.print(f"{experiment.id}: {store.home(options.budget, experiment.id) / TABLE}", highlight=False)
        if options.docs:
            report(chosen, options.budget, store, options.docs)
    return conclude(done, store, console)


def only(runs: Sequence[Run], wanted: Sequence[str]) -> list[Run]:
    """The runs whose axes have all of these values, each given as `axis=value`; `seed` is an axis, too."""
    found = list(runs)
    for each in wanted:
        axis, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"--only takes AXIS=VALUE, such as rotations=4; got {each!r}")
        there = list(dict.fromkeys(str({"seed": run.seed, **run.axes}.get(axis)) for run in found))
        if there == ["None"]:
            axes = dict.fromkeys(["seed", *(name for run in found for name in run.axes)])
            raise ValueError(f"--only knows the axes {', '.join(axes)}; got {axis!r}")
        if value not in there:
            raise ValueError(f"--only {axis}= must be one of {', '.join(there)}; got {value!r}")
        found = [run for run in found if str({"seed": run.seed, **run.axes}.get(axis)) == value]
    return found


def conclude(done: Report, store: Store, console: Console) -> int:
    """Says what was done and what failed; the exit status."""
    console.print(f"{done.done} runs done, {done.there} were there before, {len(done.failed)} failed", highlight=False)
    for run, failure in done.failed:
        print(f"sepgconv reproduce: failed: {run}: {failure.reason}", file=sys.stderr)
        print(f"  traceback in {store.failure(run)}", file=sys.stderr)
    return 1 if done.failed else 0


def publish(experiment: Experiment, budget: str, store: Store) -> Summary:
    """Writes an experiment's table and figure beside its runs, from the results there are."""
    summary = summarise(experiment, budget, store)
    if summary.results:
        home = store.home(budget, experiment.id)
        draw(summary, home / FIGURE)
        with atomic_write(home / TABLE) as file:
            file.write(section(summary, FIGURE, notes(home)).encode())
    return summary


def tables(chosen: Sequence[Experiment], budget: str, store: Store) -> int:
    """Writes tables and figures of the results there are; returns 1 if there are none."""
    found = [experiment for experiment in chosen if publish(experiment, budget, store).results]
    for experiment in found:
        print(f"wrote {store.home(budget, experiment.id) / TABLE}")
    if not found:
        print(f"sepgconv reproduce: {store.folder} holds no results at budget {budget!r}", file=sys.stderr)
    return 0 if found else 1


def notes(home: Path) -> str:
    """What a person has written about an experiment's results, in `notes.md` beside them."""
    path = home / NOTES
    return path.read_text(encoding="utf-8") if path.exists() else ""


def report(chosen: Sequence[Experiment], budget: str, store: Store, docs: Path | None) -> int:
    """Writes all tables and figures anew, and the page of them; returns 1 if there is nothing to report."""
    summaries = [publish(experiment, budget, store) for experiment in chosen]
    if budget != "long":  # there a claim without a run is a claim all the same
        summaries = [summary for summary in summaries if summary.results]
    if not any(summary.results for summary in summaries):
        print(f"sepgconv reproduce: {store.folder} holds no results at budget {budget!r}", file=sys.stderr)
        return 1
    target = docs or store.folder / budget / "reproduction.md"
    pictures = target.parent / "images" / target.stem if docs else None
    parts = []
    for summary in summaries:
        home = store.home(budget, summary.experiment.id)
        figure = f"{summary.experiment.id}/{FIGURE}"
        if pictures is not None and summary.results:
            pictures.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(home / FIGURE, pictures / f"{summary.experiment.id}.png")
            figure = f"images/{pictures.name}/{summary.experiment.id}.png"
        parts.append((summary, figure, notes(home)))
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(page(parts, budget).encode())
    print(f"wrote {target}")
    return 0


def listing(console: Console) -> None:
    """Prints the experiments."""
    table = Table.grid("", "", padding=(0, 2))
    for experiment in experiments():
        counts = ", ".join(f"{budget} {len(experiment.runs(budget))}" for budget in BUDGETS if experiment.has(budget))
        table.add_row(f"[bold]{experiment.id}[/bold]", experiment.title)
        table.add_row("", f"[dim]{experiment.where}; runs: {counts}[/dim]")
    console.print(table, highlight=False)


def pick(options: argparse.Namespace) -> Executor:
    """The executor that was asked for."""
    if options.executor == "ray":
        if options.processes is not None:
            raise ValueError("--processes is for --executor local; a Ray cluster has its own number of workers")
        return OnRay(options.address, options.threads or 1)
    return local(options.processes, options.threads)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="sepgconv reproduce",
        description="Rerun the paper's experiments, with the published numbers beside ours. What is finished is kept: "
        "started again, a sweep does only what is missing.",
    )
    found.add_argument(
        "experiment",
        metavar="list | report | all | ID",
        help="`list` names them; `report` writes tables and figures anew",
    )
    found.add_argument("--budget", default="smoke", help=f"{', '.join(BUDGETS)} (%(default)s)")
    where = found.add_argument
    where(
        "--output", type=Path, default=Path("outputs/reproduce"), metavar="DIR", help="where results are (%(default)s)"
    )
    where("--root", metavar="DIR", help="where data is ($SEPGCONV_DATA, else the user's cache)")
    where(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="do only the runs with this value, such as rotations=4 or seed=0; may be given several times",
    )
    where("--tables", action="store_true", help="write tables and figures of the results there are, and run nothing")
    where("--docs", type=Path, metavar="FILE", help="write the page of results there, figures beside it")
    where("--executor", choices=("local", "ray"), default="local", help="(%(default)s)")
    where(
        "--processes", type=int, metavar="N", help="local: at once (GPUs, else cores / threads); 0 uses none but this"
    )
    where("--threads", type=int, metavar="N", help="of each run (1 with several processes)")
    where("--address", default="auto", help="ray: of the cluster (%(default)s)")
    return found
