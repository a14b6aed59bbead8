"""What is measured: the paper's ResNet on several groups, and what it is compared with."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from sepgconv.grids import GRIDS

KINDS = ("plain", "resnet", "escnn")


@dataclass(frozen=True)
class Case:
    """One network.

    Args:
        kind: `resnet` (ours), `plain` (stock torch) or `escnn`.
        group: its name among `GRIDS`.
        counts: its number of elements per axis.
        factorisation: of the kernels.
        recompute: whether activations are computed again in the backward pass.
        antialias: whether it also treats angles between the pixels well: low-passed pooling, band-limited kernels.
        space: dimension of the images: volumes are smaller, in smaller batches through narrower networks.
        variant: of an exported network, which.
    """

    kind: str
    group: str = ""
    counts: tuple[int, ...] = ()
    factorisation: str = ""
    recompute: bool = False
    antialias: bool = False
    space: int = 2
    variant: str = ""

    @property
    def name(self) -> str:
        """How the command line calls it, e.g. `sim2-4x4-h_separable`."""
        counts = "x".join(map(str, self.counts))
        kind = "" if self.kind == "resnet" else self.kind + ("3" if self.space == 3 else "")
        more = [name for name in ("recompute", "antialias") if getattr(self, name)]
        return "-".join(part for part in (kind, self.group, counts, self.factorisation, *more) if part)

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        more = (", recompute" if self.recompute else "") + (", anti-aliased" if self.antialias else "")
        if self.kind == "plain":
            return ("plain CNN" if self.space == 2 else "plain CNN of volumes") + more
        group = " ".join([GRIDS[self.group].label, "×".join(map(str, self.counts))])
        if self.kind == "escnn":
            return f"escnn, {group}, regular"
        return f"{group}, {self.factorisation}{more}"

    @property
    def size(self) -> int:
        """|H|."""
        return GRIDS[self.group].make(*self.counts).size if self.group else 1

    @property
    def plain(self) -> "Case":
        """The plain CNN that it is compared with."""
        return Case("plain", antialias=self.antialias, space=self.space)


PLAIN = Case("plain")
ESCNN = Case("escnn", "se2", (8,))
CASES = (
    Case("resnet", "se2", (4,), "separable"),
    Case("resnet", "se2", (8,), "separable"),
    Case("resnet", "se2", (16,), "separable"),
    Case("resnet", "se2", (32,), "separable"),
    Case("resnet", "se2", (8,), "dgseparable"),
    Case("resnet", "se2", (8,), "dseparable"),
    Case("resnet", "se2", (8,), "gseparable"),
    Case("resnet", "se2", (8,), "nonseparable"),
    Case("resnet", "e2", (8,), "separable"),
    Case("resnet", "scale2", (8,), "separable"),
    Case("resnet", "sim2", (4, 4), "separable"),
    Case("resnet", "sim2", (4, 4), "h_separable"),
    Case("resnet", "sim2", (8, 8), "h_separable"),
    Case("resnet", "sim2", (8, 8), "h_separable", recompute=True),
    Case("resnet", "se2", (8,), "separable", antialias=True),
    Case("resnet", "se3", (24,), "separable", space=3),
)
QUICK = ("se2-4-separable", "sim2-4x4-h_separable")


def choose(patterns: Sequence[str], cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases whose name fits one of the patterns (`*` stands for anything), in their own order."""
    names, plain = [case.name for case in cases], {case.plain.name for case in cases}
    for pattern in patterns:
        if pattern not in plain and not fnmatch.filter(names, pattern):
            raise ValueError(f"only must fit one of {', '.join([PLAIN.name, *names])}; got {pattern!r}")
    return [case for case in cases if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
