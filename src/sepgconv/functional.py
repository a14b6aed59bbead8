"""Group convolution of plain tensors, in two ways that give the same result.

`Dense` multiplies all factors out and runs one convolution: slow and obviously right. `Structured` runs the factors one
after the other. Both are small plans made from a kernel's factors: `prepare` turns sampled factors into weights (once,
in eval), `apply` convolves features with them. Inside, features lie in memory as rows `(b, y, x, h…, c)`: for torch
that is channels-last, so that mixing channels is a matrix product and spatial convolution needs no copy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.factors import Term
from sepgconv.kernels import Values

Features = Float[Tensor, "b c h *space"]
Weights = list[list[Tensor]]


@dataclass(frozen=True)
class Geometry:
    """The sizes that a convolution needs besides its kernel."""

    space: int
    kernel_size: int
    stride: int
    padding: int
    source: tuple[int, ...]
    target: tuple[int, ...]

    def conv(self, rows: Tensor, weight: Float[Tensor, "out k in"], groups: int = 1) -> Tensor:
        """An ordinary convolution over space, `b … in -> b … out`; torch sees it as channels-last."""
        weight = weight.unflatten(1, (self.kernel_size,) * self.space).movedim(-1, 1)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.space - 1]
        return convolve(rows.movedim(-1, 1), weight, None, self.stride, self.padding, 1, groups).movedim(1, -1)


def multiply(values: Sequence[Values]) -> Values:
    """The product of factors, broadcast over the axes on which each is constant."""
    return math.prod(values[1:], start=values[0])


def to_rows(features: Features, shape: tuple[int, ...]) -> Tensor:
    """`b c h … -> b … h… c`: a view if the features come from another layer."""
    rows = rearrange(features, "b c h ... -> b ... h c")
    return rows.reshape(*rows.shape[:-2], *shape, rows.shape[-1])


def from_rows(rows: Tensor, rank: int) -> Features:
    """`b … h… c -> b c h …`, always a view of contiguous rows."""
    outer, shape = rows.shape[: rows.ndim - rank - 1], rows.shape[rows.ndim - rank - 1 : -1]
    rows = rows.reshape(*outer, math.prod(shape), rows.shape[-1])
    return rearrange(rows, "b ... h c -> b c h ...")


class Dense:
    """The oracle: k(h⁻¹(x̃ − x), h⁻¹h̃)/|det h| for every pair of elements, and one convolution over all of them."""

    def prepare(self, values: Sequence[Values], geometry: Geometry, channels: tuple[int, int]) -> Weights:
        """The full kernel as the weight of an ordinary convolution, `(o j) k (h i)`."""
        size = (*geometry.target, *geometry.source, geometry.kernel_size**geometry.space, *channels)
        kernel = multiply(values).expand(size)
        kernel = kernel.reshape(math.prod(geometry.target), math.prod(geometry.source), *size[-3:])
        return [[rearrange(kernel, "o h k i j -> (o j) k (h i)")]]

    def apply(self, features: Features, weights: Weights, geometry: Geometry) -> Features:
        """One convolution from all input elements and channels to all output elements and channels."""
        rows, weight = rearrange(features, "b i h ... -> b ... (h i)"), weights[0][0]
        # A channels-last convolution adds up all its terms in one chain; shorter ones round less.
        parts = math.ceil(weight[0].numel() / 2048)
        pairs = zip(rows.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
        first, *rest = [geometry.conv(r.contiguous(), w.contiguous()) for r, w in pairs]
        result = sum(rest, start=first)
        return rearrange(result, "b ... (o j) -> b j o ...", o=math.prod(geometry.target))

    def multiply_adds(self, geometry: Geometry, channels: tuple[int, int]) -> float:
        """Multiply-adds per pixel."""
        taps = geometry.kernel_size**geometry.space
        return math.prod((*geometry.target, *geometry.source, taps, *channels))


@dataclass(frozen=True)
class Stage:
    """One step of a structured convolution: the terms it multiplies, what it sums over, the channels it leaves.

    The state before it carries the channel indices `before`, the state after it `after`.
    """

    terms: tuple[int, ...]
    parts: tuple[int, ...]
    spatial: bool
    before: str
    after: str


def stages(terms: Sequence[Term]) -> tuple[Stage, ...]:
    """Terms that share a coordinate are merged into one stage; stages run with the spatial one last.

    The input channel i is summed over in the last stage that carries it.
    """
    groups: list[list[int]] = []
    for number, term in enumerate(terms):
        seen = {*term.parts, *(["x"] if term.spatial else [])}
        meets = []
        for group in groups:
            others = {name for n in group for name in (*terms[n].parts, *(["x"] if terms[n].spatial else []))}
            if seen & others or not (seen or others):
                meets.append(group)
        merged = [n for group in meets for n in group]
        groups = [*(group for group in groups if group not in meets), [*merged, number]]

    def key(group: list[int]) -> tuple[bool, bool, int]:
        carries_i = any("i" in terms[n].channels for n in group)
        return (any(terms[n].spatial for n in group), not carries_i, min(group))

    groups.sort(key=key)
    result, labels = [], "i"
    for position, group in enumerate(groups):
        carried = "".join(terms[n].channels for n in group)
        later = "".join(terms[n].channels for rest in groups[position + 1 :] for n in rest)
        after = "".join(c for c in "ij" if c in labels + carried and not (c == "i" and "i" not in later))
        parts = tuple(sorted({part for n in group for part in terms[n].parts}))
        result.append(Stage(tuple(sorted(group)), parts, any(terms[n].spatial for n in group), labels, after))
        labels = after
    return tuple(result)


class Structured:
    """The factors in sequence: (f ⋆ k_H) over the subgroup first, then k_X over space (paper, sec. 4).

    A table in which several stages carry both channel indices (`gseparable`) has no cheaper order than keeping the
    i×j intermediate; it is made for a few output channels at a time.
    """

    chunk = 8

    def __init__(self, terms: Sequence[Term]) -> None:
        self.stages = stages(terms)
        self.open = any(stage.after == "ij" for stage in self.stages)

    def prepare(self, values: Sequence[Values], geometry: Geometry, channels: tuple[int, int]) -> Weights:
        """Per chunk of output channels, one weight for each stage."""
        step = self.chunk if self.open else channels[1]
        weights = []
        for start in range(0, channels[1], step):
            chosen = slice(start, min(start + step, channels[1]))
            part = [v if v.shape[-1] == 1 else v[..., chosen] for v in values]
            weights.append([self._weight(stage, part, geometry, chosen.stop - start) for stage in self.stages])
        return weights

    def _weight(self, stage: Stage, values: Sequence[Values], geometry: Geometry, width: int) -> Tensor:
        """A stage's kernel as `(o…, h…, i, j)` or, if it is spatial, as the weight of a grouped convolution."""
        rank, kernel = len(geometry.target), multiply([values[n] for n in stage.terms])
        sizes = [n if stage.spatial or p in stage.parts else 1 for p, n in enumerate(geometry.target)]
        sizes += [n if p in stage.parts else 1 for p, n in enumerate(geometry.source)]
        taps = geometry.kernel_size**geometry.space if stage.spatial else 1
        per_group = stage.spatial and "j" in stage.before  # one kernel per group, even if it is the same for all
        kernel = kernel.expand(*sizes, taps, kernel.shape[-2], width if per_group else kernel.shape[-1])
        if not stage.spatial:
            return kernel.squeeze(2 * rank)
        o, h = _letters("o", rank), _letters("h", rank)
        groups, outs = _grouped(stage, o)
        axes = " ".join([*o, *h, "k i j"])
        return rearrange(kernel, f"{axes} -> ({groups} {outs}) k ({' '.join([*h, 'i'])})").contiguous()

    def apply(self, features: Features, weights: Weights, geometry: Geometry) -> Features:
        """Runs the stages, for one chunk of output channels after the other."""
        rows = to_rows(features, geometry.source)
        chunks = [self._run(rows, chunk, geometry) for chunk in weights]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)

    def _run(self, rows: Tensor, weights: list[Tensor], geometry: Geometry) -> Features:
        state = rows.unsqueeze(-1)  # b … h… i j
        for stage, weight in zip(self.stages, weights, strict=True):
            step = convolve_space if stage.spatial else convolve_subgroup
            state = step(state, weight, stage, geometry)
        return from_rows(state.squeeze(-2), len(geometry.target))

    def multiply_adds(self, geometry: Geometry, channels: tuple[int, int]) -> float:
        """Multiply-adds per pixel."""
        width, total = {"i": channels[0], "j": channels[1]}, 0.0
        shape = list(geometry.source)
        for stage in self.stages:
            labels = {*stage.before, *stage.after}
            work = math.prod([width[label] for label in labels]) * math.prod(shape)
            for part in stage.parts:
                work *= geometry.target[part]
                shape[part] = geometry.target[part]
            total += work * (geometry.kernel_size**geometry.space if stage.spatial else 1)
        return total


def _letters(letter: str, rank: int) -> list[str]:
    return [f"{letter}{part}" for part in range(rank)]


def _grouped(stage: Stage, o: list[str]) -> tuple[str, str]:
    """The axes over which a spatial stage is a grouped convolution, and its output axes within a group."""
    groups = [name for part, name in enumerate(o) if part not in stage.parts]
    outs = [name for part, name in enumerate(o) if part in stage.parts]
    (groups if "j" in stage.before else outs).append("j")
    return " ".join(groups), " ".join(outs)


def convolve_subgroup(state: Tensor, weight: Tensor, stage: Stage, geometry: Geometry) -> Tensor:
    """Σ over h̃ (and i) of f(x, h̃) · k(h⁻¹h̃), at every x.

    Shapes:
        state `(b, …, h…, i, j)`, weight `(o…, h…, i, j)` → `(b, …, o…, i, j)`; absent channel indices have length 1.
    """
    rank = len(geometry.target)
    if (stage.before, stage.after) == ("i", "j") and stage.parts == tuple(range(rank - len(stage.parts), rank)):
        # The summed axes are the innermost ones: a plain matrix product.
        o, h = _letters("o", rank), _letters("h", rank)
        axes = " ".join([*o, *h, "i j"])
        matrix = rearrange(weight, f"{axes} -> ({' '.join([*o, 'j'])}) ({' '.join([*h, 'i'])})")
        inner = [geometry.target[part] for part in stage.parts]
        rows = state.flatten(state.ndim - 2 - len(inner))
        return F.linear(rows, matrix).unflatten(-1, (*inner, 1, weight.shape[-1]))
    seen = [part in stage.parts for part in range(rank)]
    weight = weight.reshape(*(n for n, s in zip(weight.shape[:-2], seen * 2, strict=True) if s), *weight.shape[-2:])
    source = "abcd"[:rank]
    target = "".join(out if s else same for out, same, s in zip("ABCD", source, seen, strict=False))
    kernel = "".join(n for n, s in zip("ABCD"[:rank] + source, seen * 2, strict=True) if s)
    sums_i = "i" in stage.before and "i" not in stage.after
    out = "j" if sums_i else "ij"
    result = torch.einsum(f"...{source}ij,{kernel}ij->...{target}{out}", state, weight)
    return result.unsqueeze(-2) if sums_i else result


def convolve_space(state: Tensor, weight: Tensor, stage: Stage, geometry: Geometry) -> Tensor:
    """Σ over x̃ (and whatever else is left to sum) of f(x̃, …) · k(h⁻¹(x̃ − x), …): a grouped convolution.

    Shapes:
        state `(b, …, h…, i, j)`, weight `(groups·out, k, in)` → `(b, …, o…, 1, j)`
    """
    rank, h = len(geometry.target), _letters("h", len(geometry.target))
    o = _letters("o", rank)
    groups, outs = _grouped(stage, o)
    kept = [name for part, name in enumerate(h) if part not in stage.parts] + ["j"] * ("j" in stage.before)
    summed = [name for part, name in enumerate(h) if part in stage.parts] + ["i"] + ["j"] * ("j" not in stage.before)
    axes = " ".join([*h, "i j"])
    rows = rearrange(state, f"b ... {axes} -> b ... ({' '.join([*kept, *summed])})").contiguous()
    y = geometry.conv(rows, weight, groups=rows.shape[-1] // weight.shape[-1])
    sizes = dict(zip(o, geometry.target, strict=True))
    return rearrange(y, f"b ... ({groups} {outs}) -> b ... {' '.join([*o, '1 j'])}", **sizes)
