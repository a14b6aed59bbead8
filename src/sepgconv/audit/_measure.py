"""How much a network's output changes with its images: numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sepgconv.audit._changes import Change
from sepgconv.audit._subject import Subject
from sepgconv.data.resample import rotate, scale

ACCURACY_ANGLES = (0.0, 22.5, 45.0, 67.5, 90.0, 135.0, 180.0, 270.0)
ACCURACY_SCALES = (0.5, 0.7, 1.0, 1.4)
DISC = 0.75
"""Maps are compared within this part of the inscribed disc, where a change that interpolates brings in no border."""


@dataclass(frozen=True)
class Row:
    """How much one change of the images changes the output.

    Differences are root mean squares over images, in units of how much the output varies from image to image: 0 is no
    change, 1 is as much as if it were another image. None where it could not be measured.

    Args:
        family: of the change.
        change: its name.
        value: angle, factor or pixels.
        exact: whether the change only moves pixels.
        error: of the network.
        relative: the same difference, in units of the output itself.
        interpolation: what changing the image and changing it back does to the image, in the same unit.
        untrained: the error of the same network with weights as they are drawn.
        answers: the part of the images whose largest output is another one; None for maps.
    """

    family: str
    change: str
    value: float
    exact: bool
    error: float | None
    relative: float | None
    interpolation: float
    untrained: float | None
    answers: float | None


@dataclass(frozen=True)
class Case:
    """One image under one change, and what it did to the output."""

    image: int
    change: str
    error: float
    before: int | None
    after: int | None


def spread(output: Tensor) -> Tensor:
    """Root mean square of how far outputs are from their mean: the unit of an error."""
    return (output - output.mean(0)).flatten(1).norm(dim=1).square().mean().sqrt()


def differences(found: Tensor, expected: Tensor, *, exact: bool) -> Tensor:
    """Euclidean distance per image; of maps, within a disc unless the change is exact."""
    gap = found - expected
    if gap.ndim == 4 and not exact:
        lines = [torch.linspace(-1, 1, n, dtype=gap.dtype) for n in gap.shape[-2:]]
        y, x = torch.meshgrid(*lines, indexing="ij")
        gap = gap * (y.square() + x.square() <= DISC**2)
    return gap.flatten(1).norm(dim=1)


def measure(subject: Subject, images: Tensor, changes: Sequence[Change]) -> tuple[list[Row], list[Case]]:
    """A row per change, and all single cases, the worst first."""
    reference = subject(images)
    fresh = Subject("the untrained network", subject.untrained) if subject.untrained is not None else None
    drawn = fresh(images) if fresh is not None else None
    rows, cases = [], []
    for change in changes:
        changed = change.apply(images)
        found = subject(changed)
        error, each = _error(found, reference, change)
        untrained = None
        if fresh is not None and drawn is not None:
            untrained, _ = _error(fresh(changed), drawn, change)
        answers = None
        if reference.ndim == 2 and reference.shape[1] > 1:
            answers = (found.argmax(1) != reference.argmax(1)).double().mean().item()
        back = change.undo(changed)
        alone = differences(back, images, exact=change.exact).square().mean().sqrt() / spread(images).clamp(min=1e-30)
        size = reference.flatten(1).norm(dim=1).square().mean().sqrt().clamp(min=1e-30)
        relative = None if error is None else error * (spread(reference) / size).item()
        alone = 0.0 if change.exact else alone.item()
        facts = (change.family, change.name, change.value, change.exact)
        rows.append(Row(*facts, error, relative, alone, untrained, answers))
        if each is not None:
            cases += _cases(each, change, reference, found)
    return rows, sorted(cases, key=lambda case: -case.error)


def _error(found: Tensor, reference: Tensor, change: Change) -> tuple[float | None, Tensor | None]:
    """The error and that of every image; None where a map has a size that the change does not fit."""
    expected = reference
    if reference.ndim == 4:
        if change.family == "shift" and found.shape != reference.shape:
            return None, None
        expected = change.apply(reference)
        if expected.shape != found.shape:
            return None, None
    each = differences(found, expected, exact=change.exact) / spread(reference).clamp(min=1e-30)
    return each.square().mean().sqrt().item(), each


def _cases(each: Tensor, change: Change, reference: Tensor, found: Tensor) -> list[Case]:
    cases = []
    for index in each.argsort(descending=True)[:8].tolist():
        labels = (None, None)
        if reference.ndim == 2 and reference.shape[1] > 1:
            labels = int(reference[index].argmax()), int(found[index].argmax())
        cases.append(Case(index, change.name, each[index].item(), *labels))
    return cases


@dataclass(frozen=True)
class Accuracy:
    """The part of the images that are classified rightly, by how they were changed."""

    family: str
    value: float
    accuracy: float


def accuracies(
    subject: Subject, images: Tensor, labels: Tensor, families: Sequence[str], tell: Callable[[str], None]
) -> list[Accuracy]:
    """Accuracy by angle and by scale."""
    found = []
    plans = (("rotation", ACCURACY_ANGLES, rotate), ("scale", ACCURACY_SCALES, scale))
    for family, values, change in plans:
        for value in values if family in families else ():
            tell(f"accuracy: {family} {value:g}")
            right = subject(change(images, value)).argmax(1) == labels
            found.append(Accuracy(family, value, right.double().mean().item()))
    return found
