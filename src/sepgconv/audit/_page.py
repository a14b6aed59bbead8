"""The page of an audit: one HTML file that needs nothing else."""

import html
import math
from collections.abc import Iterable

import torch

from sepgconv.audit._audit import Audit
from sepgconv.audit._changes import changes
from sepgconv.audit._layers import LOST
from sepgconv.audit._measure import Accuracy, Case, Row
from sepgconv.audit._pictures import line_plot, png
from sepgconv.audit._style import STYLE
from sepgconv.data.resample import rotate

SAME = 1e-3
"""An error below which a change is said to change nothing: a thousandth of what another image would."""
TITLES = {"rotation": "Turned", "mirror": "Mirrored", "scale": "Scaled", "shift": "Shifted"}


def page(audit: Audit) -> str:
    """The whole file."""
    parts = [
        f"<h1>{html.escape(audit.name)}</h1>",
        f'<p class="first">{sentence(audit)}</p>',
        _strip(audit),
        _rows(audit),
        _accuracy(audit),
        _layers(audit),
        _worst(audit),
        _explained(audit),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit of {html.escape(audit.name)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def sentence(audit: Audit) -> str:
    """What was found, for somebody who does not know the field."""
    quarter = [row for row in audit.rows if row.family == "rotation" and row.exact and row.error is not None]
    between = next((row for row in audit.rows if row.family == "rotation" and row.value == 45), None)
    if not quarter:
        worst = max((row for row in audit.rows if row.error is not None), key=lambda row: row.error or 0, default=None)
        if worst is None:
            return "Nothing could be measured."
        return (
            f"A picture that is {worst.change} changes what this network says by {_number(worst.error)} of what "
            "another picture would."
        )
    error = max(row.error or 0 for row in quarter)
    if audit.shown is None:
        same = (
            "turns with it, exactly"
            if error <= SAME
            else f"does not turn with it: it is off by {_number(error)} of what another picture would change"
        )
        return f"Turn a picture by a quarter, and this network’s output {same}."
    if error <= SAME:
        first = "Turn a picture by a quarter, and this network says exactly the same."
    else:
        count = _count(max(row.answers or 0 for row in quarter), audit.count)
        first = f"Turn a picture by a quarter, and this network changes its mind about {count} pictures."
    if between is None or between.answers is None:
        return first
    return f"{first} At an angle between, 45°, it changes its mind about {_count(between.answers, audit.count)}."


def _count(part: float, total: int) -> str:
    return f"{round(part * total)} of {total}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not a number"
    if value == 0:
        return "0"
    return f"{value:.0e}" if value < 0.0005 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _label(audit: Audit, number: int | None) -> str:
    if number is None:
        return ""
    return html.escape(audit.classes[number] if number < len(audit.classes) else f"class {number}")


def _range(audit: Audit) -> tuple[float, float]:
    return audit.pixels.min().item(), audit.pixels.max().item()


def _strip(audit: Audit) -> str:
    """One picture at eight angles, with the answer to each."""
    figures, (low, high) = [], _range(audit)

    def figure(angle: float, text: str, small: str, *, other: bool) -> str:
        picture = f'<img alt="turned by {angle:g}°" src="{png(rotate(audit.pixels[:1], angle)[0], low, high)}">'
        frame = ' class="other"' if other else ""
        return f"<figure{frame}>{picture}<b>{text}</b><figcaption>{small}</figcaption></figure>"

    if audit.shown is not None:
        for angle, label, probability in audit.shown:
            other = label != audit.shown[0][1]
            figures.append(figure(angle, _label(audit, label), f"{angle:g}° · {probability:.0%}", other=other))
        note = "One picture, turned; below it what the network says, and how sure it is. "
        note += "A red frame is another answer than the first."
    else:
        turns = [row for row in audit.rows if row.family == "rotation" and row.error is not None]
        for row in sorted(turns, key=lambda row: row.value):
            other = row.exact and not (row.error or 0) <= SAME
            figures.append(figure(row.value, _number(row.error), f"{row.value:g}°", other=other))
        note = "One picture, turned; below it how far the output is from turning with it: 0 is not at all, 1 is as far "
        note += "as that of another picture. A red frame is a quarter turn that goes wrong."
    return f'<div class="strip">{"".join(figures)}</div><p class="soft">{note}</p>'


def _bar(value: float | None, limit: float, *, tick: float = 0.0, logarithmic: bool = False) -> str:
    """A bar of a number up to 1, with a tick at another; on a logarithmic scale it begins at 1e-8."""
    if value is None:
        return '<td class="bar narrow"></td>'
    size = min(value, 1.0) if math.isfinite(value) else 1.0
    size = 1 + math.log10(max(size, 1e-8)) / 8 if logarithmic else size
    over = ' class="over"' if not value <= limit else ""
    mark = f'<u style="left:{min(tick, 1):.1%}"></u>' if tick else ""
    return f'<td class="bar narrow"><div><i{over} style="width:{max(size, 0.005):.1%}"></i>{mark}</div></td>'


def _rows(audit: Audit) -> str:
    head = (
        "<tr><th>the picture is …</th><th>the output changes by</th><th class=narrow></th><th>the picture itself</th>"
        "<th>untrained</th><th>other answers</th></tr>"
    )
    lines: list[str] = []
    for family in TITLES:
        group = [row for row in audit.rows if row.family == family]
        if group:
            judged = " (what this network should not mind)" if family in audit.judged else ""
            lines.append(f'<tr class="group"><td colspan="6">{TITLES[family]}{judged}</td></tr>')
            lines += [_row(row, judged=bool(judged)) for row in group]
    note = (
        "0 is no change at all, 1 is as much as if it were another picture. “The picture itself” is what the change "
        "loses of the picture, there and back (the tick on the bar): nobody can do much better. “Untrained” is the "
        "same network before it has learnt."
    )
    table = f'<div class="wide"><table>{head}{"".join(lines)}</table></div>'
    return f'<h2>What changes its output</h2><p class="soft">{note}</p>{table}'


def _row(row: Row, *, judged: bool) -> str:
    alone = "exact" if row.exact else _number(row.interpolation)
    answers = "–" if row.answers is None else f"{row.answers:.0%}"
    limit = SAME if judged and row.exact else math.inf
    kind = "" if limit == math.inf else "good" if row.error is not None and row.error <= limit else "bad"
    return (
        f'<tr><td>{html.escape(row.change)}</td><td class="{kind}">{_number(row.error)}</td>'
        f"{_bar(row.error, limit, tick=row.interpolation)}"
        f"<td>{alone}</td><td>{_number(row.untrained)}</td><td>{answers}</td></tr>"
    )


def _accuracy(audit: Audit) -> str:
    if not audit.accuracy:
        return ""
    text = [
        f'<h2>How often it is right</h2><p class="soft">On all {audit.images} pictures, whose classes are known.</p>'
    ]
    for family, title, unit in (("rotation", "turned by", "°"), ("scale", "scaled by", "×")):
        found: list[Accuracy] = [entry for entry in audit.accuracy if entry.family == family]
        if found:
            labels = [f"{entry.value:g}{unit}" for entry in found]
            plot = line_plot([(entry.value, entry.accuracy) for entry in found], labels, f"accuracy, {title}")
            text.append(f"<p><b>Pictures {title} …</b></p>{plot}")
    return "".join(text)


def _layers(audit: Audit) -> str:
    if not audit.layers:
        reason = "This file has no layers to look into; audit the checkpoint that it was made of."
        return f'<h2>Where it is lost</h2><p class="soft">{reason}</p>'
    lost = audit.lost
    if lost is not None:
        said = f'A quarter turn is lost in <b class="bad">{html.escape(lost.name)}</b>, a {html.escape(lost.kind)}.'
    else:
        said = "No layer loses a quarter turn: what goes in turned comes out turned."
    lines = []
    for layer in audit.layers:
        shape = " × ".join(map(str, layer.shape))
        kind = ' class="lost"' if layer.lost else ""
        lines.append(
            f'<tr{kind}><td>{html.escape(layer.name)} <span class="soft">{html.escape(layer.kind)}</span></td>'
            f'<td class="narrow">{shape}</td><td>{_number(layer.error)}</td>'
            f"{_bar(layer.error, LOST, logarithmic=True)}</tr>"
        )
    head = '<tr><th>layer</th><th class="narrow">output</th><th>off by</th><th class="narrow"></th></tr>'
    table = f'<div class="wide"><table>{head}{"".join(lines)}</table></div>'
    opened = " open" if lost is not None else ""
    folded = f"<details{opened}><summary>All {len(lines)} layers, by a quarter turn</summary>{table}</details>"
    return f"<h2>Where it is lost</h2><p>{said}</p>{folded}"


def _worst(audit: Audit) -> str:
    if not audit.worst:
        return ""
    height, width = audit.pixels.shape[-2:]
    plan = {change.name: change for change in changes(audit.symmetries, square=height == width)}
    low, high = _range(audit)

    def pair(case: Case) -> str:
        image = audit.pixels[case.image]
        changed = plan[case.change].apply(image[None])[0]
        before, after = _label(audit, case.before), _label(audit, case.after)
        answer = (
            ""
            if case.before is None
            else f"{before} → " + (f'<b class="bad">{after}</b>' if before != after else after)
        )
        pictures = "".join(f'<img alt="" src="{png(torch.as_tensor(value), low, high)}">' for value in (image, changed))
        caption = f"<figcaption>{html.escape(case.change)}<br>{answer} ({_number(case.error)})</figcaption>"
        return f"<figure><div>{pictures}</div>{caption}</figure>"

    figures = "".join(map(pair, audit.worst))
    return f'<h2>The worst of all</h2><p class="soft">Before and after.</p><div class="pairs">{figures}</div>'


def _explained(audit: Audit) -> str:
    lines: Iterable[str] = (
        f"Changes of the output were measured on {audit.count} of {audit.images} pictures.",
        "The difference of two outputs is the root mean square over pictures, divided by how far outputs of different "
        "pictures are from their mean. Maps are turned with the picture before they are compared, within a disc unless "
        "the change only moves pixels.",
        "Quarter turns and mirrors only move pixels: there a network that promises the symmetry has no excuse. "
        "Other turns, scales and half pixels have to be interpolated, and shifts bring in a border.",
    )
    return f"<details><summary>How this was measured</summary>{''.join(f'<p>{line}</p>' for line in lines)}</details>"
