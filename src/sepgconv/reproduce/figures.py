"""Figures in the paper's form, one function per kind, drawn from a summary and what the recipe says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from sepgconv.data.places import atomic_write

from .experiment import Plain
from .stir import curves
from .summary import Published, Stat, Summary, published, published_for

COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e5ea2", "#d68910", "#555555")
MARKERS = "osD^vP"
PAPER = "#888888"


def draw(summary: Summary, path: Path) -> None:
    """Writes an experiment's figure."""
    kinds: dict[str, Callable[[Summary, Plain], Figure]] = {
        "lines": lines,
        "dots": dots,
        "heatmap": heatmap,
        "histograms": histograms,
        "angles": angles,
        "sizes": curves,
    }
    look = summary.experiment.budget(summary.budget).get("figure", summary.experiment.recipe["figure"])
    if look["kind"] not in kinds:
        raise ValueError(f"figure.kind must be one of {', '.join(kinds)}; got {look['kind']!r}")
    figure = kinds[look["kind"]](summary, look)
    figure.suptitle(title(summary), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=130)


def title(summary: Summary) -> str:
    """What the figure shows, at which budget and on which data."""
    names = ", ".join(summary.data)
    return f"{summary.experiment.title}\nbudget {summary.budget}{f', on {names}' if names else ''}"


def lines(summary: Summary, look: Plain) -> Figure:
    """A metric against an axis, one line per series, with deviations over seeds and the published values."""
    panels = look["panels"]
    figure = Figure(figsize=(4.9 * len(panels) + 0.6, 4.3), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _lines(axes, summary, panel)
    _legend(figure)
    return figure


def _lines(axes: Axes, summary: Summary, panel: Plain) -> None:
    rows = [row for row in summary.select(panel.get("where", {})) if panel["y"] in row.metrics]
    for number, name in enumerate(dict.fromkeys(row.axes[panel["series"]] for row in rows)):
        chosen = [row for row in rows if row.axes[panel["series"]] == name]
        style: Plain = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        points = [(row.axes[panel["x"]], row.metrics[panel["y"]]) for row in chosen]
        axes.plot([x for x, _ in points], [s.mean for _, s in points], ms=5, lw=1.6, label=str(name), **style)
        for x, stat in points:
            _whisker(axes, x, stat.mean, stat.std, style["color"])
        for row in chosen:
            value = published_for(summary.experiment.id, panel["y"], row.axes)
            if value is not None:
                place, label = row.axes[panel["x"]], f"{name}, published"
                axes.plot([place], [value.value], mfc="white", ms=9, ls="none", zorder=3, label=label, **style)
                _whisker(axes, place, value.value, value.std, style["color"])
    _finish(axes, panel["xlabel"], panel["ylabel"])
    if panel.get("logx"):
        axes.set_xscale("log", base=2)
    low, high = axes.dataLim.intervaly
    if panel.get("log") and high > 10 * low > 0:  # over less than a decade it would have next to no ticks
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    ticks = sorted({row.axes[panel["x"]] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(panel.get("title", ""), fontsize=9)


def dots(summary: Summary, look: Plain) -> Figure:
    """A table as a picture: one line per setting, ours filled, the published value hollow, other methods in grey."""
    rows, metric, panel = summary.rows, look["metric"], look.get("panel")
    names = list(dict.fromkeys(row.axes[panel] for row in rows)) if panel else [None]
    groups = [[row for row in rows if panel is None or row.axes[panel] == name] for name in names]
    others = [p for p in published(summary.experiment.id) if p.other and p.metric == metric]
    tallest = max((len(group) for group in groups), default=1) + len(others)
    figure = Figure(figsize=(3.9 * len(names) + 3.0, 0.34 * tallest + 1.9), layout="constrained")
    for axes, name, group in zip(figure.subplots(1, len(names), squeeze=False)[0], names, groups, strict=True):
        entries: list[tuple[str, Stat | None, Published | None]] = []
        for row in group:
            label = ", ".join(_tick(key, value) for key, value in row.axes.items() if key != panel and value != "-")
            entries.append((label, row.metrics.get(metric), published_for(summary.experiment.id, metric, row.axes)))
        entries += [(p.other or "", None, p) for p in others]
        for place, (_, ours, theirs) in enumerate(entries):
            if ours is not None:
                axes.errorbar(
                    ours.mean, place, xerr=ours.std, fmt="o", color=COLOURS[0], capsize=3, label="ours", zorder=3
                )
            if theirs is not None:
                colour, label = (COLOURS[1], "published") if ours else (PAPER, "published, other methods")
                axes.errorbar(
                    theirs.value,
                    place,
                    xerr=theirs.std,
                    fmt="D",
                    ms=7,
                    color=colour,
                    mfc="white",
                    capsize=3,
                    label=label,
                )
        axes.set_yticks(range(len(entries)), [label for label, _, _ in entries], fontsize=8)
        axes.set_ylim(len(entries) - 0.4, -0.6)
        _finish(axes, look["xlabel"], "")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_title("" if name is None else str(name), fontsize=9)
    _legend(figure)
    return figure


def heatmap(summary: Summary, look: Plain) -> Figure:
    """A metric over two axes, one map per panel, all with one scale of colours."""
    names = list(dict.fromkeys(row.axes[look["panel"]] for row in summary.rows))
    figure = Figure(figsize=(3.9 * len(names) + 0.9, 4.0), layout="constrained")
    means = [row.metrics[look["metric"]].mean for row in summary.rows]
    image = None
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = summary.select({look["panel"]: name})
        columns, lines = (sorted({row.axes[look[axis]] for row in rows}) for axis in "xy")
        values = np.full((len(lines), len(columns)), np.nan)
        for row in rows:
            place = lines.index(row.axes[look["y"]]), columns.index(row.axes[look["x"]])
            values[place] = row.metrics[look["metric"]].mean
        image = axes.imshow(values, cmap="viridis", origin="lower", vmin=min(means), vmax=max(means))
        middle = (min(means) + max(means)) / 2
        for (y, x), value in np.ndenumerate(values):
            if not np.isnan(value):
                colour = "white" if value <= middle else "black"
                axes.text(x, y, f"{value:.1f}", ha="center", va="center", color=colour)
        axes.set_xticks(range(len(columns)), [str(c) for c in columns])
        axes.set_yticks(range(len(lines)), [str(n) for n in lines])
        axes.set(xlabel=look["x"], ylabel=look["y"])
        axes.set_title(str(name), fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=figure.axes, label=look["label"], shrink=0.85)
    return figure


def histograms(summary: Summary, look: Plain) -> Figure:
    """Proportions of kernels before and after training, layer by layer, over all seeds together."""
    layers = [result["arrays"]["layers"] for result in summary.results]
    count = len(layers[0])
    figure = Figure(figsize=(2.5 * count + 0.4, 3.6), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for number, axes in enumerate(panels):
        for name, colour in (("before", COLOURS[4]), ("after", COLOURS[0])):
            for seed, result in enumerate(layers):
                low, high = result[number]["edges"]
                edges = np.linspace(low, high, len(result[number][name]) + 1)
                label = f"{name} training" if seed == 0 and number == 0 else None
                heights = np.array(result[number][name]) / len(layers)
                axes.stairs(heights, edges, fill=True, color=colour, alpha=0.45, label=label)
                axes.stairs(heights, edges, color=colour, lw=1)
        axes.set_title(f"layer {number + 1}\n{layers[0][number]['kernels']:,} kernels", fontsize=9)
        _finish(axes, look["xlabel"] if number == count // 2 else "", "proportion of kernels" if number == 0 else "")
    _legend(figure)
    return figure


def angles(summary: Summary, look: Plain) -> Figure:
    """Test error against the angle by which the test set is turned."""
    results = summary.results
    names = list(dict.fromkeys(result["axes"][look["panel"]] for result in results))
    figure = Figure(figsize=(4.8 * len(names) + 0.6, 4.0), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        chosen = [result for result in results if result["axes"][look["panel"]] == name]
        for number, series in enumerate(dict.fromkeys(result["axes"][look["series"]] for result in chosen)):
            curves = [r["arrays"] for r in chosen if r["axes"][look["series"]] == series]
            values = np.array([curve["errors"] for curve in curves])
            degrees, mean = [*curves[0]["angles"], 360], values.mean(0)
            closed = np.append(mean, mean[0])
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                degrees,
                closed,
                color=colour,
                lw=1.6,
                label=f"{series} {look['series']}".replace("1 rotations", "1 rotation"),
            )
            if len(values) > 1:
                spread = np.append(values.std(0, ddof=1), values.std(0, ddof=1)[0])
                axes.fill_between(degrees, closed - spread, closed + spread, color=colour, alpha=0.2, lw=0)
        axes.set_xticks(range(0, 361, 90), [f"{angle}°" for angle in range(0, 361, 90)])
        axes.set_title(str(name), fontsize=9)
        _finish(axes, "the test set is turned by", look["ylabel"] if axes is panels[0] else "")
    _legend(figure)
    return figure


def _finish(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _whisker(axes: Axes, x: float, y: float, std: float | None, colour: str) -> None:
    if std:
        axes.errorbar([x], [y], [std], color=colour, capsize=3, ls="none")


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them, where it hides nothing."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    columns = min(len(entries), 3 if figure.get_figwidth() < 8 else 5)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )


def _tick(axis: str, value: Any) -> str:
    """A value as it is read without its axis: a bare number needs its name."""
    return f"{axis} {value}" if isinstance(value, int | float) else str(value)
