"""Factorisations: how a kernel k^{ij}(x, h) splits into factors. Data, not a class per variant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sepgconv.grids import Grid


@dataclass(frozen=True)
class Factor:
    """One factor of a kernel k^{ij}(x, h): the coordinates it sees and the channel indices it carries.

    Args:
        coordinates: names separated by blanks: `x` (space), `h` (the whole subgroup), or some of its coordinates
            (`rotation`, `mirror`, `scale`); empty for a factor that is constant on the group.
        channels: `ij`, `i`, `j` or empty, where i counts input channels and j output channels.
    """

    coordinates: str
    channels: str


FACTORISATIONS: dict[str, tuple[Factor, ...]] = {
    "nonseparable": (Factor("x h", "ij"),),
    "separable": (Factor("h", "ij"), Factor("x", "j")),
    "h_separable": (Factor("scale", "ij"), Factor("rotation", "j"), Factor("x", "j")),
    "gseparable": (Factor("h", "ij"), Factor("x", "ij")),
    "dseparable": (Factor("", "ij"), Factor("x h", "j")),
    "dgseparable": (Factor("", "ij"), Factor("h", "j"), Factor("x", "j")),
}
LIFTING = (Factor("x", "ij"),)
"""The lifting kernel k^{ij}(x): its input has no h."""


def resolve(factorisation: str | Sequence[Factor], grid: Grid) -> tuple[Factor, ...]:
    """A factorisation by name or as a table, with `h` spelled out as the coordinates of the grid's group.

    Any function of h⁻¹h̃ is equivariant, so that every table is right on every group that has its coordinates.
    """
    parts = coordinate_names(grid)
    if isinstance(factorisation, str):
        if factorisation not in FACTORISATIONS:
            allowed = ", ".join(FACTORISATIONS)
            raise ValueError(f"factorisation must be one of {allowed}, or a table of Factor; got {factorisation!r}")
        if factorisation == "h_separable" and len(parts) < 2:
            raise ValueError(
                "factorisation 'h_separable' needs two coordinates of H to tell apart: a product of rotations and "
                f"scales such as sim2(), or e2(); got a grid with {parts[0] if parts else 'a trivial group'}"
            )
        table = FACTORISATIONS[factorisation]
        if factorisation == "h_separable":  # the last coordinate mixes channels, the others follow one by one
            *others, last = parts
            table = (Factor(last, "ij"), *(Factor(name, "j") for name in others), Factor("x", "j"))
    else:
        table = tuple(factorisation)
    allowed = ["x", "h", *parts]
    factors = []
    for factor in table:
        if not isinstance(factor, Factor):
            raise ValueError(f"a factorisation is a table of Factor, got {factor!r}")
        names = factor.coordinates.split()
        if unknown := [name for name in names if name not in allowed]:
            raise ValueError(f"{factor} sees {unknown}, but this grid has {allowed}")
        if factor.channels not in ("ij", "i", "j", ""):
            raise ValueError(f"channels must be 'ij', 'i', 'j' or '', got {factor.channels!r}")
        seen = [name for name in ["x", *parts] if name in names or (name != "x" and "h" in names)]
        factors.append(Factor(" ".join(seen), factor.channels))
    if missing := [index for index in "ij" if not any(index in factor.channels for factor in factors)]:
        raise ValueError(f"no factor carries the channel index {' or '.join(missing)}: {table}")
    return tuple(factors)


def coordinate_names(grid: Grid) -> list[str]:
    """What factors may see of H, part by part."""
    return [coordinate.name for axis in grid.axes for coordinate in axis.group.seen]


class Term(NamedTuple):
    """What one of the tensors that are multiplied to a kernel depends on: parts of H, space, channel indices."""

    parts: tuple[int, ...]
    spatial: bool
    channels: str
