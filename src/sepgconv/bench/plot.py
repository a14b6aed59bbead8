"""Cost against |H|, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sepgconv.bench.measure import Measurement
from sepgconv.bench.report import ratio
from sepgconv.grids import GRIDS

COLOURS = {
    "separable": "#1b6ca8",
    "h_separable": "#1e8449",
    "dgseparable": "#8e44ad",
    "dseparable": "#d68910",
    "gseparable": "#7b7d7d",
    "nonseparable": "#c0392b",
    "": "#000000",
}
MARKERS = dict(zip(GRIDS, "oP^s*DvXhp", strict=True))
BESIDE = {"scale2": 1.08}  # so that groups of one size do not hide each other
TITLES = {"train": "training step", "infer": "inference"}


def draw(measured: Sequence[Measurement], path: Path) -> None:
    """Time relative to the plain CNN against the size of the group, for training and inference."""
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (phase, title) in zip(panels, TITLES.items(), strict=True):
        _panel(axes, measured, phase)
        axes.set_title(title)
    panels[0].set_ylabel("time relative to the plain CNN")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=130)


def _panel(axes: Axes, measured: Sequence[Measurement], phase: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    series: dict[tuple[str, str, str, bool], list[tuple[int, float, float, float]]] = {}
    for m in measured:
        spread = ratio(m, phase)
        if spread is not None and m.case.kind != "plain" and not m.case.antialias:
            key = (m.case.kind, m.case.group, m.case.factorisation, m.case.recompute)
            series.setdefault(key, []).append((m.case.size, spread.low, spread.median, spread.high))
    for (kind, group, factorisation, recompute), points in series.items():
        if recompute and phase == "infer":
            continue
        sizes, lows, medians, highs = zip(*sorted(points), strict=True)
        sizes = [size * BESIDE.get(group, 1) for size in sizes]
        bars = [[m - low for m, low in zip(medians, lows, strict=True)]]
        bars += [[high - m for m, high in zip(medians, highs, strict=True)]]
        name = "regular" if kind == "escnn" else factorisation
        label = (
            f"{'escnn, ' if kind == 'escnn' else ''}{GRIDS[group].label}, {name}{', recompute' if recompute else ''}"
        )
        axes.errorbar(
            sizes,
            medians,
            yerr=bars,
            fmt=f"{MARKERS[group]}-",
            color=COLOURS[factorisation],
            markerfacecolor="white" if recompute else COLOURS[factorisation],
            markeredgecolor=COLOURS[factorisation] if recompute else "white",
            markersize=7,
            linewidth=1.2,
            capsize=2,
            label=label,
        )
    sizes = sorted({m.case.size for m in measured})
    ends = (sizes[0], max(sizes[-1], 2))
    axes.plot(ends, ends, ":", color="#999999", linewidth=1, label="|H| times the plain CNN", zorder=0)
    axes.plot(1, 1, "*", color="black", markersize=10, label="plain CNN")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("elements of the group, |H|")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
