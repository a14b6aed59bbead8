"""Changes of an image that a network is asked about: turns, mirrors, dilations, shifts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sepgconv.data.resample import rotate, scale

FAMILIES = ("rotation", "mirror", "scale", "shift")
ANGLES = (90.0, 180.0, 270.0, 15.0, 22.5, 30.0, 45.0, 60.0, 135.0)
SCALES = (0.5, 0.7, 0.85, 1.2, 1.4)
SHIFTS = ((0.0, 1.0), (2.0, 0.0), (0.0, 4.0), (0.0, 0.5), (0.5, 0.5))


@dataclass(frozen=True)
class Change:
    """One change of an image `(b, c, y, x)`.

    Args:
        family: one of `FAMILIES`.
        name: what people call it.
        value: angle in degrees, factor, or pixels.
        exact: whether it only moves pixels within the image, so that a symmetric network has no excuse.
        apply: changes images, and maps of the same kind.
        undo: the change back.
    """

    family: str
    name: str
    value: float
    exact: bool
    apply: Callable[[Tensor], Tensor]
    undo: Callable[[Tensor], Tensor]


def changes(families: Sequence[str], *, square: bool) -> list[Change]:
    """All changes of some families; quarter turns only of square images."""
    for family in families:
        if family not in FAMILIES:
            raise ValueError(f"symmetries must be out of {', '.join(FAMILIES)}; got {family!r}")
    found: list[Change] = []
    if "rotation" in families:
        found += [_rotation(angle) for angle in ANGLES if square or angle % 180 == 0 or angle % 90]
    if "mirror" in families:
        found += [_mirror("left to right", -1), _mirror("top to bottom", -2)]
    if "scale" in families:
        found += [_scale(factor) for factor in SCALES]
    if "shift" in families:
        found += [_shift(y, x) for y, x in SHIFTS]
    return found


def _rotation(angle: float) -> Change:
    def apply(images: Tensor) -> Tensor:
        return rotate(images, angle)

    return Change("rotation", f"turned by {angle:g}°", angle, angle % 90 == 0, apply, lambda x: rotate(x, -angle))


def _mirror(name: str, axis: int) -> Change:
    def apply(images: Tensor) -> Tensor:
        return images.flip(axis)

    return Change("mirror", f"mirrored {name}", float(axis), True, apply, apply)


def _scale(factor: float) -> Change:
    def apply(images: Tensor) -> Tensor:
        return scale(images, factor)

    return Change("scale", f"scaled by {factor:g}", factor, False, apply, lambda x: scale(x, 1 / factor))


def _shift(y: float, x: float) -> Change:
    def apply(images: Tensor) -> Tensor:
        return shift(images, y, x)

    parts = [f"{abs(n):g} px {word}" for n, word in ((y, "down"), (x, "right")) if n]
    return Change("shift", f"shifted {', '.join(parts)}", max(y, x), False, apply, lambda images: shift(images, -y, -x))


def shift(images: Tensor, y: float, x: float) -> Tensor:
    """Moves images down and to the right by whole and half pixels; zeros come in, halves are interpolated (cubic)."""
    for axis, distance in ((-2, y), (-1, x)):
        if (2 * distance) % 1:
            raise ValueError(f"a shift must be by whole or half pixels, got {distance!r}")
        images = _along(images, axis, distance)
    return images


def _along(images: Tensor, axis: int, distance: float) -> Tensor:
    if not distance:
        return images
    rows = images.movedim(axis, -1)
    whole, size = int(distance // 1), rows.shape[-1]
    reach = abs(whole) + 2
    padded = F.pad(rows, (reach, reach))
    weights = {0: 1.0} if distance == whole else {-1: -1 / 16, 0: 9 / 16, 1: 9 / 16, 2: -1 / 16}
    moved = torch.zeros_like(rows)
    for step, weight in weights.items():
        start = reach - whole - step
        moved = moved + weight * padded[..., start : start + size]
    return moved.movedim(-1, axis)
