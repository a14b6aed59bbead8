"""What a benchmark leaves behind: a JSON with every step's time, and a page and a plot made from it."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from sepgconv.bench.cases import Case
from sepgconv.bench.measure import Measurement, Settings
from sepgconv.data.places import atomic_write

COLUMNS = ("network", "|H|", "parameters", "multiply-adds", "training step", "×", "inference", "×", "memory", "tuned")


@dataclass(frozen=True)
class Spread:
    """The middle of some values and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The quartiles of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


def seconds(m: Measurement, phase: str) -> Spread | None:
    """How long a step takes."""
    return Spread.of(m.seconds[phase]) if m.seconds[phase] else None


def ratio(m: Measurement, phase: str) -> Spread | None:
    """How many times as long as the plain CNN's step of the same round."""
    pairs = list(zip(m.seconds[phase], m.reference[phase], strict=True))
    return Spread.of([ours / plain for ours, plain in pairs]) if pairs else None


def to_json(measured: Sequence[Measurement], settings: Settings, environment: dict[str, Any]) -> dict[str, Any]:
    """All that is known, as plain values: settings, hardware, versions, every time, and what follows from them."""

    def plain(m: Measurement) -> dict[str, Any]:
        spreads = {
            f"{kind}_{phase}": asdict(spread)
            for kind, function in (("seconds", seconds), ("ratio", ratio))
            for phase in m.seconds
            if (spread := function(m, phase)) is not None
        }
        return {"name": m.case.name, "label": m.case.label, "summary": spreads, **asdict(m)}

    return {"settings": asdict(settings), **environment, "results": [plain(m) for m in measured]}


def from_json(plain: dict[str, Any]) -> list[Measurement]:
    """The measurements that `to_json` has written."""
    derived = ("name", "label", "summary")
    return [
        Measurement(
            **{
                **{key: value for key, value in entry.items() if key not in derived},
                "case": Case(**{**entry["case"], "counts": tuple(entry["case"]["counts"])}),
            }
        )
        for entry in plain["results"]
    ]


def cells(m: Measurement) -> list[str]:
    """A row of the table, in the order of `COLUMNS`."""

    def time(phase: str) -> str:
        spread = seconds(m, phase)
        if spread is None:
            return "–"
        digits = 3 if spread.median < 1 else 2
        return f"{spread.median:.{digits}f} s ({spread.low:.{digits}f}–{spread.high:.{digits}f})"

    def times(phase: str) -> str:
        spread = ratio(m, phase)
        return f"{spread.median:.{2 if spread.median < 10 else 1}f}" if spread else "–"

    counted = f"{m.multiply_adds / 1e6:,.0f} M" if m.multiply_adds is not None else "–"
    kinds = ("train_untuned", "train")
    memory = [f"{m.memory[kind] / 2**30:.2f} GB" if kind in m.memory else "–" for kind in kinds]
    return [
        m.case.label,
        str(m.case.size),
        f"{m.parameters:,}" if m.parameters else "–",
        counted,
        time("train"),
        times("train"),
        time("infer"),
        times("infer"),
        *memory,
    ]


def table(measured: Sequence[Measurement]) -> Table:
    """The results for a terminal; the page has more columns, and the quartiles."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("network")
    for heading in ("|H|", "training", "×", "inference", "×", "memory", "tuned"):
        result.add_column(heading, justify="right", no_wrap=True)
    for m in measured:
        label, size, _, _, *rest = cells(m)
        result.add_row(label, size, *(cell.split(" (")[0] for cell in rest))
    return result


def page(plain: dict[str, Any], picture: str) -> str:
    """The results as a page of documentation."""
    measured, settings = from_json(plain), plain["settings"]
    hardware, versions = plain["hardware"], plain["versions"]
    head = "| " + " | ".join(name.replace("|", "\\|") for name in COLUMNS) + " |"
    rows = ["| " + " | ".join(cells(m)) + " |" for m in measured if m.error is None]
    failed = [f"- {m.case.label}: {m.error}" for m in measured if m.error is not None]
    facts = [
        f"{hardware['cpu']}, {settings['threads']} of {hardware['cores']} cores",
        f"torch {versions['torch']}, Python {versions['python']}, sepgconv {versions['sepgconv']}",
        f"commit {plain['commit'] or 'unknown'}",
    ]
    options = [
        f"batch {settings['batch']}, {settings['size']}×{settings['size']} images, float32",
        "compiled" if settings["compile"] else "not compiled",
        "tuned allocator" if settings["tune"] else "allocator as it comes (also under *tuned*)",
        *([f"kernels of `sepgconv.execution.native`: {plain['kernels']}"] if "kernels" in plain else []),
        *(["beside a process that keeps one core busy"] if settings.get("busy") else []),
    ]
    lines = [
        "# Benchmarks",
        "",
        "What equivariance costs: the paper's ResNet, with one hidden layer in the kernel networks, on several groups,",
        "against the plain CNN of the same widths and kernel sizes (stock torch, channels-last); on SE(3) volumes of",
        "16³ in a quarter of the batch, through a quarter of the width, against the plain CNN of volumes. Anti-aliased",
        "networks, with kernels cut off at 0.4 cycles per pixel, are compared with one that pools alike. Written by",
        "`sepgconv bench --output docs`; [benchmarks.json](benchmarks.json) has every single time.",
        "",
        *(f"- {'; '.join(entry)}" for entry in (facts, options)),
        f"- {settings['rounds']} rounds; median (first and third quartile); × is the median over rounds of the ratio",
        "  to the plain CNN's step of the same round",
        "",
        head,
        "|---|" + "---:|" * (len(COLUMNS) - 1),
        *rows,
        "",
        *(["Not measured:", "", *failed, ""] if failed else []),
        f"![Cost against the size of the group]({picture})",
        "",
        "Every network lives in a process of its own. Only one computes at a time, for one step; then it is the next",
        "one's turn, so that whatever else the machine does hits all of them alike. A training step is forward,",
        "backward and Adam; inference is forward in `eval()` without gradients, with sampled kernels kept.",
        "Multiply-adds are those of one image's forward pass. Memory is the largest resident size of a process that",
        "trains, Python and torch included, with the allocator as it comes; *tuned* is that of the process whose times",
        "are shown, with the allocator as the command line tunes it: faster, but it does not give memory back.",
    ]
    return "\n".join(lines) + "\n"


def targets(folder: Path) -> list[Path]:
    """The files that `write` writes into a folder."""
    return [folder / "benchmarks.json", folder / "benchmarks.md", folder / "images" / "bench.png"]


def write(plain: dict[str, Any], folder: Path) -> list[Path]:
    """Writes `benchmarks.json`, `benchmarks.md` and `images/bench.png` into a folder; returns their paths."""
    from sepgconv.bench.plot import draw  # matplotlib is slow to import

    paths = targets(folder)
    paths[2].parent.mkdir(parents=True, exist_ok=True)
    picture = paths[2].relative_to(folder).as_posix()
    for path, text in zip(paths, (json.dumps(plain, indent=1) + "\n", page(plain, picture)), strict=False):
        with atomic_write(path) as file:
            file.write(text.encode())
    draw(from_json(plain), paths[2])
    return paths
