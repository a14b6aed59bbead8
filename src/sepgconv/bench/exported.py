"""`sepgconv bench --only export`: a folded network in torch and in ONNX Runtime, against the plain CNN in both."""

import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from sepgconv.bench.cases import Case
from sepgconv.bench.measure import Settings, Worker
from sepgconv.data.places import atomic_write
from sepgconv.provenance import environment

LABELS = {
    "plain-onnx": "plain CNN, ONNX Runtime",
    "folded-onnx": "SE(2) 8, folded, ONNX Runtime",
    "plain-onnx-pieces": "plain CNN, ONNX Runtime, few images at a time",
    "folded-onnx-pieces": "SE(2) 8, folded, ONNX Runtime, few images at a time",
    "plain-torch": "plain CNN, torch",
    "folded": "SE(2) 8, folded, torch",
    "unfolded": "SE(2) 8, torch",
    "unfolded-stock": "SE(2) 8, torch, stock operations only",
}
RATIOS = (
    ("folded-onnx", "plain-onnx"),
    ("folded-onnx-pieces", "plain-onnx-pieces"),
    ("folded", "unfolded-stock"),
    ("folded", "unfolded"),
    ("folded", "plain-torch"),
)
BATCHES = (64, 1)
PAUSE = 0.05
"""Seconds before a network's turn, so that threads of the one before no longer wait busily: else times jumped."""
CALLS = 4
"""In a turn; the first, with cold caches, is not counted."""
NAMES = ("export.json", "export.md")


def measure_exports(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of every network by batch, in turns, and ratios of the same rounds, as plain values."""
    found: dict[str, Any] = {"settings": {"rounds": settings.rounds, "threads": settings.threads}, "seconds": {}}
    for batch in BATCHES:
        rounds = settings.rounds * (1 if batch > 1 else 5)  # short steps are noisier
        with ExitStack() as stack:
            one = replace(settings, batch=batch)
            workers = {kind: stack.enter_context(Worker(Case("export", variant=kind), one)) for kind in LABELS}
            for kind, worker in workers.items():
                say(f"building {LABELS[kind]}")
                worker.ask()
            seconds: dict[str, list[float]] = {kind: [] for kind in LABELS}
            for turn in range(-settings.warmup, rounds):
                say(f"batch {batch}: round {max(turn, 0) + 1} of {rounds}")
                for kind, worker in workers.items():
                    took = _turn(worker)
                    if turn >= 0:
                        seconds[kind].append(took)
        found["seconds"][str(batch)] = seconds
    found["ratios"] = {
        batch: {f"{a} / {b}": _ratio(seconds[a], seconds[b]) for a, b in RATIOS}
        for batch, seconds in found["seconds"].items()
    }
    return {**found, "environment": environment()}


def _turn(worker: Worker) -> float:
    """The median of a few calls in a row."""
    time.sleep(PAUSE)
    return statistics.median([worker.ask("infer")["seconds"] for _ in range(CALLS)][1:])


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds: a machine that slows down for a while slows both."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def lines(found: dict[str, Any]) -> list[list[str]]:
    """A row per network: milliseconds per batch, then rows of ratios."""
    batches = list(found["seconds"])
    rows = [
        [label, *(f"{1e3 * statistics.median(found['seconds'][batch][kind]):.1f} ms" for batch in batches)]
        for kind, label in LABELS.items()
    ]
    for a, b in RATIOS:
        rows.append(
            [f"{LABELS[a]} / {LABELS[b]}", *(f"{found['ratios'][batch][f'{a} / {b}']:.2f}" for batch in batches)]
        )
    return rows


def table(found: dict[str, Any]) -> Table:
    """For the terminal."""
    result = Table("median time, and ratios by round", *(f"batch {batch}" for batch in found["seconds"]))
    for row in lines(found):
        result.add_row(*row)
    return result


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """The numbers, and a table of them."""
    heads = ["", *(f"batch {batch}" for batch in found["seconds"])]
    text = "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *lines(found))) + "\n"
    paths = [folder / name for name in NAMES]
    for path, content in zip(paths, (json.dumps(found, indent=1) + "\n", text), strict=True):
        with atomic_write(path) as file:
            file.write(content.encode())
    return paths
