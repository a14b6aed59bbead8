"""`sepgconv bench`: time and memory of networks on several groups, against the plain CNN."""

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sepgconv.bench import exported, report
from sepgconv.bench.cases import CASES, ESCNN, QUICK, choose
from sepgconv.bench.measure import Settings, cores, measure
from sepgconv.data.places import check_outputs
from sepgconv.execution import native
from sepgconv.provenance import environment

NAMES = ", ".join(case.name for case in CASES)
EXPORT = "export"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console()
    if options.only == [EXPORT]:
        return export(options, console)
    check_outputs(*report.targets(options.output))  # before minutes of measuring
    plain = earlier(options.redraw) if options.redraw else run(options, console)
    measured = report.from_json(plain)
    console.print(report.table(measured))
    for m in measured:
        if m.error is not None:
            console.print(f"{m.case.label} was not measured: {m.error}", style="red")
    for path in report.write(plain, options.output):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 1 if any(m.error is not None for m in measured) else 0


def export(options: argparse.Namespace, console: Console) -> int:
    """Measures folded and exported networks."""
    check_outputs(*(options.output / name for name in exported.NAMES))
    with console.status("") as status:
        found = exported.measure_exports(_settings(options), lambda text: status.update(text))
    console.print(exported.table(found))
    for path in exported.write(found, options.output):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    settings = Settings(compile=options.compile, tune=not options.no_tune, busy=options.beside_busy)
    if options.quick:
        settings = replace(settings, rounds=2, warmup=1, batch=4, width=0.125, untuned=False)
    given = {name: getattr(options, name) for name in ("rounds", "batch", "threads", "together")}
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measures what the command line asks for; the results as plain values."""
    settings = _settings(options)
    cases = choose(options.only or (QUICK if options.quick else ["*"]))
    pythons: dict[str, str] = {}
    if options.against == "escnn":
        pythons["escnn"] = find_escnn(options.escnn_python)
        cases.append(ESCNN)
    elif options.escnn_python:
        raise ValueError("escnn-python is for --against escnn, which was not given")
    with console.status("") as status:
        measured = measure(cases, settings, pythons, lambda text: status.update(text))
    return report.to_json(measured, settings, {**environment(), "kernels": native.status().reason})


def earlier(path: Path) -> dict[str, Any]:
    """The results that an earlier run has written."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        report.page(plain, "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"redraw must be a benchmarks.json of this command, got {str(path)!r}") from error
    return plain


def find_escnn(python: str | None) -> str:
    """The interpreter, once it has imported escnn; else an error that says what to do."""
    advice = "make an environment with torch and escnn, and give its interpreter: --escnn-python ENV/bin/python"
    if python is None:
        raise ValueError(f"--against escnn needs an interpreter that has escnn: {advice}")
    try:
        done = subprocess.run([python, "-c", "import escnn"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(f"escnn-python must be a Python interpreter, got {python!r}: {error.strerror}") from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
        raise ValueError(f"escnn cannot be imported by {python}: {reason[0]}\n{advice}")
    return python


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="sepgconv bench", description=__doc__, epilog=f"networks: {NAMES}; or export: folded and exported networks"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="measure these networks; * stands for anything (all of them)"
    )
    parser.add_argument("--rounds", type=int, help=f"steps of every network ({defaults.rounds})")
    parser.add_argument("--batch", type=int, help=f"images in a step ({defaults.batch})")
    parser.add_argument("--threads", type=int, help=f"of every process (all cores that there are: {cores()})")
    parser.add_argument(
        "--together", type=int, help=f"networks in memory at a time, besides the plain CNN ({defaults.together})"
    )
    parser.add_argument("--compile", action="store_true", help="compile the networks, the plain CNN too")
    parser.add_argument("--no-tune", action="store_true", help="leave the allocator as it comes")
    parser.add_argument("--beside-busy", action="store_true", help="keep one core busy with another process meanwhile")
    parser.add_argument("--quick", action="store_true", help="tiny networks, a few steps: to see that it works")
    parser.add_argument("--against", choices=["escnn"], help="measure the same network in another library, too")
    parser.add_argument("--escnn-python", metavar="PATH", help="the interpreter that has escnn")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="measure nothing; page and plot of an earlier run")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/bench"),
        help="folder for benchmarks.md, benchmarks.json, images/bench.png (%(default)s)",
    )
    return parser
