"""`audit`: everything that is measured about a network, as numbers that a page and a JSON file show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepgconv.audit._changes import FAMILIES, changes
from sepgconv.audit._layers import Layer, by_layer
from sepgconv.audit._measure import Accuracy, Case, Row, accuracies, measure
from sepgconv.audit._subject import Subject, of_file, of_module
from sepgconv.data.resample import rotate

COUNT = 64
"""Images on which changes of the output are measured; accuracy takes all."""
SHOWN = tuple(float(angle) for angle in range(0, 360, 45))
"""Angles of the picture that a page begins with."""


@dataclass
class Audit:
    """What was found.

    Args:
        name: of the network.
        symmetries: what was measured.
        judged: whose exact changes a limit applies to: what was asked for, else what the network's group promises.
        images: how many there were.
        count: how many of them the changes were measured on.
        classes: names of the labels, if known.
        rows: one per change.
        accuracy: by angle and scale, if there were labels.
        layers: one per layer, if they can be seen.
        worst: single images that changed most.
        shown: answers to the first image at the angles `SHOWN`; None where the output are no logits.
        pixels: of the images on which the changes were measured; not in the JSON file.
    """

    name: str
    symmetries: tuple[str, ...]
    judged: tuple[str, ...]
    images: int
    count: int
    classes: tuple[str, ...]
    rows: list[Row]
    accuracy: list[Accuracy]
    layers: list[Layer]
    worst: list[Case]
    shown: list[tuple[float, int, float]] | None
    pixels: Tensor = field(repr=False)

    @property
    def lost(self) -> Layer | None:
        """The layer in which a quarter turn is lost, if one is."""
        return next((layer for layer in self.layers if layer.lost), None)

    def judged_rows(self) -> list[Row]:
        """Rows that a limit applies to: those that only move pixels."""
        return [row for row in self.rows if row.exact and row.family in self.judged]

    def above(self, limit: float) -> list[Row]:
        """Judged rows whose error is above a limit, or not a number.

        Raises:
            ValueError: there is nothing to judge.
        """
        rows = self.judged_rows()
        if not rows:
            raise ValueError(
                "fail-above has nothing to judge: the network's group promises no change that only moves pixels; "
                "name what it should not mind, with --symmetries rotation or mirror"
            )
        return [row for row in rows if row.error is None or not row.error <= limit]

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        found = {key: value for key, value in vars(self).items() if key != "pixels"}
        for key in ("rows", "accuracy", "layers", "worst"):
            found[key] = [asdict(entry) for entry in found[key]]
        return found


def audit(
    network: nn.Module | Callable[[Tensor], Tensor] | str | Path | Subject,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    symmetries: Sequence[str] | None = None,
    count: int = COUNT,
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Measures how much changes of images change a network's output.

    Args:
        network: a module or a function from images to logits, features or images; or the path of a checkpoint, an
            exported file or an ONNX file, which takes pixels in [0, 1].
        images: at least two, as the network takes them.
        labels: of the images, for accuracies.
        symmetries: families of changes out of `FAMILIES`; by default all are measured, and those that the network's
            group promises are judged.
        count: images on which changes are measured; accuracy takes all.
        tell: is told what goes on.

    Shapes:
        images `(b, c, y, x)`, labels `(b,)`
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(f"images must be floats (b, c, y, x), got {images.dtype} of shape {tuple(images.shape)}")
    if len(images) < 2:
        raise ValueError(f"at least two images are needed to see how much an output varies, got {len(images)}")
    if count < 2:
        raise ValueError(f"count must be at least 2, got {count}")
    subject = network if isinstance(network, Subject) else _subject(network)
    families = tuple(symmetries) if symmetries is not None else FAMILIES
    some = images[_spread_out(len(images), count)]
    tell("changes")
    plan = changes(families, square=images.shape[-1] == images.shape[-2])
    rows, cases = measure(subject, some, plan)
    tell("layers")
    layers = by_layer(subject, some)
    output = subject(some[:2])
    logits = output.ndim == 2 and output.shape[1] > 1
    if labels is not None and (not logits or labels.shape != (len(images),)):
        shape = tuple(labels.shape)
        raise ValueError(f"accuracy needs logits (b, k) and a label per image, got {tuple(output.shape)} and {shape}")
    if labels is not None and int(labels.max()) >= output.shape[1]:
        raise ValueError(f"labels must lie below the {output.shape[1]} outputs, got {int(labels.max())}")
    found = accuracies(subject, images, labels, families, tell) if labels is not None else []
    return Audit(
        name=subject.name,
        symmetries=families,
        judged=families if symmetries is not None else subject.promised or ("rotation",),
        images=len(images),
        count=len(some),
        classes=subject.classes,
        rows=rows,
        accuracy=found,
        layers=layers,
        worst=_worst(cases),
        shown=_shown(subject, some[:1]) if logits else None,
        pixels=some,
    )


def _subject(network: nn.Module | Callable[[Tensor], Tensor] | str | Path) -> Subject:
    return of_file(Path(network)) if isinstance(network, str | Path) else of_module(network)


def _spread_out(total: int, count: int) -> Tensor:
    """Places of so many images, evenly over all of them: folders are in order of their classes."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


def _worst(cases: Sequence[Case], most: int = 6) -> list[Case]:
    """The worst cases, one per image; those that change the answer first."""
    chosen: dict[int, Case] = {}
    for case in sorted(cases, key=lambda case: (case.before == case.after, -case.error)):
        chosen.setdefault(case.image, case)
    return list(chosen.values())[:most]


def _shown(subject: Subject, image: Tensor) -> list[tuple[float, int, float]]:
    """Angle, answer and its probability."""
    turned = torch.cat([rotate(image, angle) for angle in SHOWN])
    best = subject(turned).softmax(1).max(1)
    pairs = zip(SHOWN, best.indices.tolist(), best.values.tolist(), strict=True)
    return [(angle, label, value if math.isfinite(value) else 0.0) for angle, label, value in pairs]
