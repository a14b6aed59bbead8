"""Which images are trained on, chosen by and tested on, where the folder does not say: by class, seed and group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .layout import Sample

PARTS = ("train", "valid", "test")


def assign(
    samples: Sequence[Sample], units: Sequence[str], *, valid: float = 0.15, test: float = 0.15, seed: int = 0
) -> list[str]:
    """The part of each sample: as the folder says, and where it does not, drawn so that every class is in proportion.

    Samples of one unit (a group, or copies of one image) are in one part. Of the parts that the folder has, none is
    changed, except that what is missing is taken from train.

    Args:
        samples: in any order, which makes no difference.
        units: of each sample.
        valid: the share of each class that is held out to choose weights by.
        test: the share that is held out to report.
        seed: of the draw.

    Raises:
        ValueError: a class has too few images or units to be in all parts.
    """
    for name, share in (("valid", valid), ("test", test)):
        if not 0 < share < 1:
            raise ValueError(f"{name} must be a share between 0 and 1, got {share!r}")
    if valid + test >= 1:
        raise ValueError(f"valid and test must leave images to train on, got {valid} and {test}")
    parts = [sample.part or "train" for sample in samples]
    shares = {"valid": valid, "test": test}
    missing = {part: share for part, share in shares.items() if part not in parts}
    if missing:
        divided = [index for index, part in enumerate(parts) if part == "train"]
        drawn = _draw([samples[i] for i in divided], [units[i] for i in divided], missing, seed)
        for index, part in zip(divided, drawn, strict=True):
            parts[index] = part
    _check(samples, parts, grouped=any(sample.group for sample in samples))
    return parts


def _draw(samples: Sequence[Sample], units: Sequence[str], shares: Mapping[str, float], seed: int) -> list[str]:
    """Unit by unit, the largest first, each to the part that lacks most of its classes."""
    classes = sorted({sample.label for sample in samples})
    numbers = {label: number for number, label in enumerate(classes)}
    counts: dict[str, np.ndarray] = {}
    for sample, unit in zip(samples, units, strict=True):
        counts.setdefault(unit, np.zeros(len(classes)))[numbers[sample.label]] += 1
    total = np.asarray(sum(counts.values()))
    names = ("train", *shares)
    lacking = np.stack([np.maximum(1, np.rint(share * total)) for share in shares.values()])
    lacking = np.concatenate([(total - lacking.sum(0))[None], lacking])
    if (lacking[0] < 1).any():
        few = classes[int(lacking[0].argmin())]
        raise ValueError(
            f"class {few!r} has {int(total[numbers[few]])} images, too few to be divided into {', '.join(names)}: "
            f"there must be at least {len(names)}"
        )
    keys = sorted(counts)  # whatever order the files were found in
    order = np.random.default_rng(seed).permutation(len(keys))
    order = sorted(order, key=lambda index: -counts[keys[index]].sum())
    chosen: dict[str, str] = {}
    for index in order:
        count = counts[keys[index]]
        part = int((lacking @ (count / total)).argmax())
        lacking[part] -= count
        chosen[keys[index]] = names[part]
    return [chosen[unit] for unit in units]


def _check(samples: Sequence[Sample], parts: Sequence[str], grouped: bool) -> None:
    """Every class must be in every part, or nothing could be said about it."""
    found = Counter((part, sample.label) for part, sample in zip(parts, samples, strict=True))
    for label in sorted({sample.label for sample in samples}):
        if missing := [part for part in PARTS if not found[part, label]]:
            more = ", as its groups must not be divided: try another data.split_seed" if grouped else ""
            raise ValueError(f"class {label!r} has no image in {' and '.join(missing)}{more}")
