"""Group convolution of plain tensors, in two ways that give the same result.

`Dense` multiplies all factors out and runs one convolution: slow and obviously right. `Structured` runs the factors one
after the other. Both are small plans made from a kernel's factors: `prepare` turns sampled factors into weights (once,
in eval), `apply` convolves features with them. Inside, features lie in memory as rows `(b, y, x, h…, c)`: for torch
that is channels-last, so that mixing channels is a matrix product and spatial convolution needs no copy.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from sepgconv.factors import Term
from sepgconv.geometry import Geometry
from sepgconv.kernels import Values
from sepgconv.ops import piecewise, unread
from sepgconv.steps import SpaceStep, Stage, Step, cheapest, nanoseconds

Features = Float[Tensor, "b i h *space"]
Result = Float[Tensor, "b j o *out"]
Weights = list[list[tuple[Tensor, ...]]]
LAUNCH = 1e6
"""Nanoseconds, forward and backward, that a convolution or a step takes however few the pixels."""


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
        return [[(rearrange(kernel, "o h k i j -> (o j) k (h i)"),)]]

    def apply(
        self,
        features: Features,
        weights: Weights,
        geometry: Geometry,
        channels: tuple[int, int],
        bias: Tensor | None = None,
        *,
        private: bool = False,
    ) -> Result:
        """One convolution from all input elements and channels to all output elements and channels."""
        rows, weight = rearrange(features, "b i h ... -> b ... (h i)"), weights[0][0][0]
        bias = None if bias is None else bias.repeat(math.prod(geometry.target))
        result = geometry.conv(rows.contiguous(), weight.contiguous(), bias)
        return rearrange(result, "b ... (o j) -> b j o ...", o=math.prod(geometry.target))

    def nanoseconds(self, geometry: Geometry, channels: tuple[int, int], pixels: int) -> float:
        """What a convolution is expected to take: building the kernel, then the products."""
        work = self.multiply_adds(geometry, channels)
        return LAUNCH + 18 * work + 0.038 * work * pixels

    def multiply_adds(self, geometry: Geometry, channels: tuple[int, int]) -> float:
        """Multiply-adds per pixel."""
        return math.prod((*geometry.target, *geometry.source, geometry.taps, *channels))


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
    # What sees no coordinate is multiplied into a stage that carries its channels anyway.
    free = [g for g in groups if not any(terms[n].parts or terms[n].spatial for n in g)]
    for group in free:
        carried = {c for n in group for c in terms[n].channels}
        hosts = [g for g in groups if g is not group and carried <= {c for n in g for c in terms[n].channels}]
        if hosts:
            groups.remove(group)
            hosts[0].extend(group)

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
    large, piece = 1 << 28, 1 << 25
    """Where more than `large` bytes would lie between the steps, features are convolved in pieces of about `piece`.

    That saves memory and costs a tenth of the time. Blocks of less than 32 MB would stay in glibc's heap when they are
    freed, and add to the peak.
    """

    def __init__(self, terms: Sequence[Term], point: bool = False) -> None:
        """With `point`, kernels have one tap and stride 1, so that nothing is spatial."""
        self.stages = stages([term._replace(spatial=False) for term in terms] if point else terms)
        self.open = any(stage.after == "ij" for stage in self.stages)

    def steps(self, geometry: Geometry, channels: tuple[int, int]) -> list[Step]:
        """The cheapest way to take each stage."""
        return [cheapest(stage, geometry, channels) for stage in self.stages]

    def prepare(self, values: Sequence[Values], geometry: Geometry, channels: tuple[int, int]) -> Weights:
        """Per chunk of output channels, the weights of each step."""
        size = self._width(channels)
        steps, weights = self.steps(geometry, channels), []
        for start in range(0, channels[1], size):
            stop = min(start + size, channels[1])
            part = [v if v.shape[-1] == 1 else v[..., start:stop] for v in values]
            kernels = [self._kernel(stage, part, geometry, stop - start) for stage in self.stages]
            weights.append([step.prepare(kernel) for step, kernel in zip(steps, kernels, strict=True)])
        return weights

    def _width(self, channels: tuple[int, int]) -> int:
        """Output channels that are made at a time."""
        return self.chunk if self.open else channels[1]

    def _kernel(self, stage: Stage, values: Sequence[Values], geometry: Geometry, width: int) -> Values:
        """The product of a stage's terms, expanded along what it sums over and, if it is spatial, over all outputs."""
        kernel = multiply([values[n] for n in stage.terms])
        sizes = [n if stage.spatial or p in stage.parts else 1 for p, n in enumerate(geometry.target)]
        sizes += [n if p in stage.parts else 1 for p, n in enumerate(geometry.source)]
        taps = geometry.taps if stage.spatial else 1
        # What sees no space is the same for all output elements along parts that it does not see.
        kernel = kernel[tuple(slice(0, 1) if size == 1 else slice(None) for size in sizes)]
        per_group = stage.spatial and "j" in stage.before  # one kernel per group, even if it is the same for all
        return kernel.expand(*sizes, taps, kernel.shape[-2], width if per_group else kernel.shape[-1])

    def apply(
        self,
        features: Features,
        weights: Weights,
        geometry: Geometry,
        channels: tuple[int, int],
        bias: Tensor | None = None,
        *,
        private: bool = False,
    ) -> Result:
        """Runs the steps, for one chunk of output channels after the other; `private` is as in `piecewise`."""
        rows, chunks = to_rows(features, geometry.source), []
        steps = self.steps(geometry, channels)
        shifts = [()] * len(weights) if bias is None else [(part,) for part in bias.split(self._width(channels))]
        for chunk, shift in zip(weights, shifts, strict=True):
            run = partial(self._run, steps, [len(weight) for weight in chunk])
            tensors = [tensor for weight in chunk for tensor in weight]
            pieces, alone = self._pieces(rows, steps, channels), private and len(weights) == 1
            state = piecewise(run, pieces, rows, *tensors, *shift, private=alone)
            chunks.append(from_rows(state, len(geometry.target)))
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)

    def _run(
        self,
        steps: list[Step],
        counts: list[int],
        rows: Tensor,
        *tensors: Tensor,
        wanted: bool = True,
    ) -> Tensor:
        """`b … h… i -> b … o… j`, or something of that shape with the right gradients if it is not wanted.

        Args:
            steps: what to do.
            counts: how many of the tensors are each step's weights; what is left is the bias.
            rows: features.
            tensors: weights, and a bias if there is one.
            wanted: whether somebody reads the result.
        """
        state, rest = rows.unsqueeze(-1), list(tensors)  # b … h… i j
        shift = rest.pop() if len(rest) > sum(counts) else None
        for step, count in zip(steps, counts, strict=True):
            weight, rest = rest[:count], rest[count:]
            if isinstance(step, SpaceStep):  # the last one
                with nullcontext() if wanted else unread():
                    state = step.apply(state, weight, shift)
            else:
                state = step.apply(state, weight)
        if shift is not None and not isinstance(steps[-1], SpaceStep):
            state = state + shift
        return state.squeeze(-2)

    def save_memory(self) -> None:
        """From now on convolves all but small features in pieces."""
        self.large = 2 * self.piece

    def _pieces(self, rows: Tensor, steps: list[Step], channels: tuple[int, int]) -> int:
        """In how many pieces a batch is convolved, so that what lies between the steps stays small."""
        image = math.prod(rows.shape[1:]) * rows.element_size()
        between = image * len(rows) * max(channels[1] / channels[0], 1) * (len(steps) - 1)
        return 1 if self.open or between <= self.large else max(len(rows) // math.ceil(self.piece / image), 1)

    def nanoseconds(self, geometry: Geometry, channels: tuple[int, int], pixels: int) -> float:
        """What a convolution is expected to take."""
        steps, chunks = self.steps(geometry, channels), math.ceil(channels[1] / self._width(channels))
        return LAUNCH * len(steps) * chunks + pixels * sum([nanoseconds(step, channels) for step in steps])

    def multiply_adds(self, geometry: Geometry, channels: tuple[int, int]) -> float:
        """Multiply-adds per pixel."""
        return sum([step.cost(channels)[0] for step in self.steps(geometry, channels)])
