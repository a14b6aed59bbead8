"""The sizes of a convolution: all that a plan depends on besides the factors of its kernel."""

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Sizes:
    """What a plan needs to know.

    `names` are those of the parts of H, and `source` and `target` count the elements along each. For each part
    `circulant` says whether the kernel depends on the difference of two positions modulo their number, `dihedral`
    whether the elements are rotations and then their mirror images, and `band` how
    many neighbours on either side it sees where it depends on the difference (None: it does not, as between unequal
    samplings).
    """

    names: tuple[str, ...]
    space: int
    kernel_size: int
    stride: int
    padding: int
    channels: tuple[int, int]
    source: tuple[int, ...]
    target: tuple[int, ...]
    circulant: tuple[bool, ...]
    dihedral: tuple[bool, ...]
    band: tuple[int | None, ...]

    @property
    def taps(self) -> int:
        """Number of spatial taps."""
        return self.kernel_size**self.space

    def width(self, labels: str) -> int:
        """How many channels a state with these channel indices has."""
        return math.prod({"i": self.channels[0], "j": self.channels[1]}[label] for label in labels)


class Contraction(NamedTuple):
    """One contraction: the terms it multiplies, the parts of H (and space) it sums over, the channels it leaves.

    The state before it carries the channel indices `before`, the state after it `after`.
    """

    terms: tuple[int, ...]
    parts: tuple[int, ...]
    spatial: bool
    before: str
    after: str

    @property
    def mixes(self) -> bool:
        """Whether it sums over i, so that j takes its place."""
        return (self.before, self.after) == ("i", "j")
