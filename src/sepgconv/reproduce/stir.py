"""STIR: trained on a third of the sizes, tested on all of them; accuracy by size beside the published curves."""

from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from sepgconv.data import DataSet, Split, embedded, join, stir
from sepgconv.training import Classifier, Images

from .experiment import Plain, Run

EMBEDDED = "digits-stir"
"""Two of the embedded digits for every class and split, for runs without any files."""


class Sizes(Images):
    """STIR with digits of some sizes in train and valid, and of all sizes in test."""

    def __init__(self, name: str, sizes: tuple[int, int], **settings) -> None:
        super().__init__("digits" if name == EMBEDDED else name, **settings)
        self.data_name, self.sizes = name, (sizes[0], sizes[1])
        self._seen: DataSet | None = None

    @property
    def data(self) -> DataSet:
        """The scenario, read at first use."""
        if self._seen is None:
            whole = digits() if self.data_name == EMBEDDED else cast(DataSet, super().data)
            self._seen = stir.scenario(whole, self.sizes)
        return self._seen

    @property
    def settings(self) -> Plain:
        """As of any data, and the sizes."""
        return {**super().settings, "sizes": list(self.sizes)}


@cache
def digits() -> DataSet:
    """STIR of embedded digits."""
    source = join(*embedded.read())
    splits = stir.generate(source, source, per_class=2)
    return DataSet(EMBEDDED, stir.CLASSES, splits["train"], splits["valid"], splits["test"])


def accuracy_by_size(run: Run, folder: Path, root: str | None) -> Plain:
    """Accuracy on test digits of every size, and its means over sizes seen in training and sizes unseen."""
    from .runs import metrics, train

    model, data, result = train(run, folder, root)
    first, last = run.config["data"]["sizes"]
    found = size_accuracies(model, cast(Images, data), cast(Split, data.data.test))
    seen, unseen = ([found[size] for size in found if (first <= size <= last) == inside] for inside in (True, False))
    row = {"unseen_accuracy": sum(unseen) / len(unseen), "seen_accuracy": sum(seen) / len(seen)}
    row["worst_accuracy"] = min(found.values())
    arrays = {"sizes": list(found), "accuracies": [round(v, 3) for v in found.values()], "course": result["course"]}
    return {"rows": [{"axes": {}, "metrics": {**metrics(model, result), **row}}], "arrays": arrays}


@torch.no_grad()
def size_accuracies(model: Classifier, data: Images, split: Split, batch: int = 100) -> dict[int, float]:
    """Percentage of a whole split's digits that are recognised, by size."""
    model.eval()
    sizes, right = stir.sizes_of(torch.arange(len(split))), []
    for images, labels in zip(split.images.split(batch), split.labels.split(batch), strict=True):
        right.append(model(data.normaliser(images)).argmax(1) == labels)
    hits: Tensor = torch.cat(right).double()
    return {size: 100 * hits[sizes == size].mean().item() for size in stir.SIZES}


def curves(summary, look: Plain) -> Figure:
    """Accuracy against the size of the digits, one panel for each training set; published networks dashed."""
    from .figures import COLOURS, PAPER, _finish, _legend

    names = list(dict.fromkeys(result["axes"][look["panel"]] for result in summary.results))
    published = look["published"]
    figure = Figure(figsize=(4.0 * max(len(names), 1) + 0.6, 4.0), layout="constrained")
    panels = figure.subplots(1, max(len(names), 1), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        chosen = [result for result in summary.results if result["axes"][look["panel"]] == name]
        first, last = chosen[0]["config"]["data"]["sizes"]
        axes.axvspan(first - 0.5, last + 0.5, color="#eeeeee", lw=0)
        for number, series in enumerate(dict.fromkeys(result["axes"][look["series"]] for result in chosen)):
            found = [r["arrays"] for r in chosen if r["axes"][look["series"]] == series]
            values, colour = np.array([each["accuracies"] for each in found]), COLOURS[number % len(COLOURS)]
            axes.plot(found[0]["sizes"], values.mean(0), color=colour, lw=1.8, label=series)
            if len(values) > 1:
                low, high = values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)
                axes.fill_between(found[0]["sizes"], low, high, color=colour, alpha=0.2, lw=0)
        for number, (label, lines) in enumerate(published.items()):
            style = {"color": PAPER, "ls": ("--", ":", "-.")[number % 3], "lw": 1.1}
            axes.plot(list(stir.SIZES), lines[name], label=f"published: {label}", **style)
        axes.set_title(f"trained on {name}", fontsize=9)
        _finish(axes, "size of the digits in pixels", look["ylabel"] if axes is panels[0] else "")
    _legend(figure)
    return figure
