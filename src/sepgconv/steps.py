"""The steps of a structured convolution, and which of several ways to take one is the cheapest.

The state that they work on is `(b, y, x, h…, i, j)` in memory, where a channel index that is not there has length 1.
A step turns a stage's kernel into weights (`prepare`) and the state into the next one (`apply`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol, runtime_checkable

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.geometry import Geometry
from sepgconv.ops import depthwise, grouped_product

MOVE = 1.7
"""Nanoseconds, forward and backward on one core, to move a number once more; each way has its `rate` per multiply-add.

All were measured on AVX-512; only their ratios matter, and a wrong one costs time, never correctness.
"""


@dataclass(frozen=True)
class Stage:
    """One stage of a structured convolution: the terms it multiplies, what it sums over, the channels it leaves.

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


@runtime_checkable
class Step(Protocol):
    """One way to take a stage."""

    rate: ClassVar[float]

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """Multiply-adds per pixel, and numbers moved on top of what every way reads and writes."""
        ...

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """Weights from the stage's kernel `(o…, h…, k, i, j)`, whose constant axes have length 1."""
        ...

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The next state."""
        ...


def letters(letter: str, rank: int) -> list[str]:
    """Names of one axis per part of H, for einops."""
    return [f"{letter}{part}" for part in range(rank)]


@dataclass(frozen=True)
class MatrixStep:
    """Σ over h̃ and i as one matrix product; the summed parts are the innermost ones."""

    rate: ClassVar[float] = 0.045
    stage: Stage
    geometry: Geometry

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whether the parts are innermost and i becomes j."""
        rank = len(geometry.target)
        return not stage.spatial and stage.mixes and stage.parts == tuple(range(rank - len(stage.parts), rank))

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """All pairs of elements."""
        others = [n for part, n in enumerate(self.geometry.source) if part not in self.stage.parts]
        return math.prod([*others, *[a * b for a, b in self._pairs()], *channels]), 0

    def _pairs(self) -> list[tuple[int, int]]:
        return [(self.geometry.source[part], self.geometry.target[part]) for part in self.stage.parts]

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """`(o… j) (h… i)`."""
        rank = len(self.geometry.target)
        o, h = " ".join(letters("o", rank)), " ".join(letters("h", rank))
        return (rearrange(kernel, f"{o} {h} 1 i j -> ({o} j) ({h} i)"),)

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """One product of all rows with the matrix."""
        rows = state.flatten(state.ndim - 2 - len(self.stage.parts))
        return self.unflatten(F.linear(rows, weights[0]))

    def unflatten(self, rows: Tensor) -> Tensor:
        """`… (o… j) -> … o… 1 j`."""
        inner = [self.geometry.target[part] for part in self.stage.parts]
        return rows.unflatten(-1, (*inner, 1, rows.shape[-1] // math.prod(inner)))


@cache
def real_fourier(count: int) -> Float[Tensor, "m n"]:
    """The orthonormal real Fourier basis over a circle of n points, one function a row, the rows in pairs.

    First 1/√n and (−1)^θ/√n, then √(2/n)·cos(2πfθ/n) and √(2/n)·sin(2πfθ/n) for f = 1, 2, …; for odd n the second row
    is zero.
    """
    angle = 2 * math.pi * torch.outer(torch.arange((count + 1) // 2), torch.arange(count)).double() / count
    waves = torch.stack([angle.cos(), angle.sin()], dim=1) * math.sqrt(2 / count)
    waves[0] /= math.sqrt(2)
    waves[0, 1] = (math.pi * torch.arange(count).double()).cos() / math.sqrt(count) if count % 2 == 0 else 0
    return waves.flatten(0, 1)


@dataclass(frozen=True)
class FourierStep(MatrixStep):
    """A matrix step whose outermost part is a circle: block-diagonal in a real Fourier basis over it.

    k(h⁻¹h̃) depends on the difference of two angles only: it is circulant, whatever the shifts of the grids. With
    a_f = Σ_d k(d)·cos(2πfd/n) and b_f = Σ_d k(d)·sin(2πfd/n), the cosine and sine coefficients (c, s) of frequency f
    become (c·a_f + s·b_f, s·a_f − c·b_f): n/2 blocks of 2×2 instead of n×n products.
    """

    rate: ClassVar[float] = 0.055

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whether the outermost of the summed parts is a circle, sampled equally before and after."""
        if not stage.parts or not MatrixStep.fits(stage, geometry):
            return False
        first = stage.parts[0]
        return geometry.periodic[first] and geometry.source[first] == geometry.target[first] > 2

    @property
    def count(self) -> int:
        """Points on the circle."""
        return self.geometry.source[self.stage.parts[0]]

    @property
    def pairs(self) -> int:
        """Pairs of basis functions."""
        return (self.count + 1) // 2

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """The blocks, and the two transforms, which also move all numbers once more."""
        dense, _ = super().cost(channels)
        ends = [math.prod(self.geometry.source) * channels[0], math.prod(self.geometry.target) * channels[1]]
        return dense * 4 * self.pairs / self.count**2 + self.count * sum(ends), sum(ends)

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """One block `(in, out)` per pair of waves: [a −b; b a], and [a_0 0; 0 a_{n/2}] for the first."""
        rank, first = len(self.geometry.target), self.stage.parts[0]
        o, h = letters("o", rank), letters("h", rank)
        kernel = kernel.narrow(first, 0, 1)  # circulant: the row of one output element says it all
        axes, inner, outer = " ".join([*o, *h]), " ".join(n for n in h if n != h[first]), " ".join(o)
        offsets = rearrange(kernel, f"{axes} 1 i j -> {h[first]} ({inner} i) ({outer} j)")
        waves = real_fourier(self.count).unflatten(0, (-1, 2)) * math.sqrt(self.count / 2)
        waves[0] *= math.sqrt(2)
        moments = torch.tensordot(waves.to(offsets), offsets, dims=1)  # pair, wave, in, out
        a, b = moments[1:].unbind(1)
        rest = torch.cat([torch.cat([a, -b], dim=-1), torch.cat([b, a], dim=-1)], dim=-2)
        return (torch.cat([torch.block_diag(*moments[0]).unsqueeze(0), rest]),)

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Transforms, multiplies block by block, transforms back."""
        rows = state.flatten(state.ndim - 2 - len(self.stage.parts))
        basis, image = real_fourier(self.count).to(state), rows.shape[:2]
        flat = rows.reshape(-1, self.count, rows.shape[-1] // self.count)
        waves = torch.bmm(basis.expand(len(flat), -1, -1), flat)
        product = grouped_product(waves.reshape(*image, -1, waves.shape[1] * waves.shape[2]), weights[0])
        result = torch.bmm(basis.t().expand(len(flat), -1, -1), product.reshape(len(flat), len(basis), -1))
        return self.unflatten(result.reshape(*rows.shape[:-1], -1))


@dataclass(frozen=True)
class AxisStep:
    """Σ over h̃ for each channel by itself: a depthwise convolution along one part of H.

    Along a circle the kernel is laid out over twice its period, so that the convolution needs no wrapped copy.
    """

    rate: ClassVar[float] = 1.0
    stage: Stage
    geometry: Geometry

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whether one part is summed over, sampled equally before and after, and no channel."""
        if stage.spatial or stage.before != stage.after or len(stage.parts) != 1:
            return False
        part = stage.parts[0]
        return geometry.source[part] == geometry.target[part] and geometry.reach[part] is not None

    @property
    def reach(self) -> int:
        """Elements on either side that the kernel sees."""
        part = self.stage.parts[0]
        reach = self.geometry.reach[part]
        assert reach is not None
        return min(reach, self.geometry.source[part] - 1)

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """All pairs, for each channel."""
        width = math.prod([{"i": channels[0], "j": channels[1]}[c] for c in self.stage.before])
        return math.prod(self.geometry.source) * self.geometry.source[self.stage.parts[0]] * width, 0

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """The kernel at all differences of two positions, `(d, i, j)`."""
        rank, part = len(self.geometry.target), self.stage.parts[0]
        pairs = kernel.reshape(kernel.shape[part], kernel.shape[rank + part], *kernel.shape[-2:])
        width = self.reach + 1
        return (torch.cat([pairs[1:width, 0].flip(0), pairs[0, :width]]),)

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """A convolution of images `(all that is outside, h)` whose channels are all that is inside."""
        axis = state.ndim - 2 - len(self.geometry.target) + self.stage.parts[0]
        inner = state.shape[axis + 1 :]
        images = state.reshape(len(state), -1, state.shape[axis], math.prod(inner)).permute(0, 3, 1, 2)
        kernel = weights[0].expand(-1, *state.shape[-2:])
        kernel = kernel.reshape(len(kernel), *(1,) * (len(inner) - 2), *kernel.shape[1:]).expand(-1, *inner)
        kernel = kernel.reshape(len(kernel), 1, 1, -1).permute(3, 1, 2, 0)
        return depthwise(images, kernel, 1, (0, self.reach)).permute(0, 2, 3, 1).reshape(state.shape)


@dataclass(frozen=True)
class BandStep(AxisStep):
    """Σ over h̃ and i along the last part of H, on which kernels reach only a few elements.

    k(h⁻¹h̃) is Toeplitz and banded there: an ordinary convolution along the h axis, from i to j channels.
    """

    rate: ClassVar[float] = 0.08

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whether the last part is all that is summed over, and its kernels are local."""
        last = len(geometry.target) - 1
        local = last >= 0 and geometry.reach[last] is not None and not geometry.periodic[last]
        return MatrixStep.fits(stage, geometry) and stage.parts == (last,) and local

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """Pairs within the band."""
        pairs = self.geometry.source[-1] * (2 * self.reach + 1) - self.reach * (self.reach + 1)
        return math.prod(self.geometry.source[:-1]) * pairs * math.prod(channels), 0

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """A convolution of images `(all that is outside, h)`."""
        count, channels = state.shape[-3:-1]
        images = state.reshape(len(state), -1, count, channels).permute(0, 3, 1, 2)
        kernel = rearrange(weights[0], "d i j -> j i 1 d")
        result = F.conv2d(images, kernel, padding=(0, self.reach)).permute(0, 2, 3, 1)
        return result.reshape(*state.shape[:-2], 1, -1)


@dataclass(frozen=True)
class EinsumStep:
    """Σ over h̃ (and i) of f(x, h̃) · k(h⁻¹h̃) at every x, for any table: what is left when nothing else fits."""

    rate: ClassVar[float] = 3.0
    stage: Stage
    geometry: Geometry

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whenever the stage is not spatial."""
        return not stage.spatial

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """All pairs, and copies in between."""
        widths = {"i": channels[0], "j": channels[1]}
        work = math.prod([widths[c] for c in {*self.stage.before, *self.stage.after}])
        for part, count in enumerate(self.geometry.source):
            work *= count * (self.geometry.target[part] if part in self.stage.parts else 1)
        return work, 0

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """`(o…, h…, i, j)` of the parts that are summed over."""
        rank, parts = len(self.geometry.target), self.stage.parts
        shape = [kernel.shape[part] for part in parts] + [kernel.shape[rank + part] for part in parts]
        return (kernel.reshape(*shape, *kernel.shape[-2:]),)

    def apply(self, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """One einsum."""
        rank, stage = len(self.geometry.target), self.stage
        source = "abcd"[:rank]
        outs = {part: "ABCD"[part] for part in stage.parts}
        target = "".join(outs.get(part, source[part]) for part in range(rank))
        kernel = "".join([*outs.values(), *(source[part] for part in stage.parts)])
        sums_i = "i" in stage.before and "i" not in stage.after
        result = torch.einsum(f"...{source}ij,{kernel}ij->...{target}{'j' if sums_i else 'ij'}", state, weights[0])
        return result.unsqueeze(-2) if sums_i else result


@dataclass(frozen=True)
class SpaceStep:
    """Σ over x̃ (and whatever else is left to sum) of f(x̃, …) · k(h⁻¹(x̃ − x), …): a grouped convolution."""

    rate: ClassVar[float] = 0.1
    stage: Stage
    geometry: Geometry

    @staticmethod
    def fits(stage: Stage, geometry: Geometry) -> bool:
        """Whenever the stage is spatial."""
        return stage.spatial

    def cost(self, channels: tuple[int, int]) -> tuple[float, float]:
        """Taps times what is summed over, for all that is left."""
        widths = {"i": channels[0], "j": channels[1]}
        work = math.prod([widths[c] for c in {*self.stage.before, *self.stage.after}])
        for part, count in enumerate(self.geometry.target):
            work *= count * (self.geometry.source[part] if part in self.stage.parts else 1)
        return work * self.geometry.taps, 0

    def _grouped(self) -> tuple[str, str]:
        """The axes over which this is a grouped convolution, and its output axes within a group."""
        o = letters("o", len(self.geometry.target))
        groups = [name for part, name in enumerate(o) if part not in self.stage.parts]
        outs = [name for part, name in enumerate(o) if part in self.stage.parts]
        (groups if "j" in self.stage.before else outs).append("j")
        return " ".join(groups), " ".join(outs)

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """The weight `(groups·out, k, in)` of a grouped convolution."""
        rank = len(self.geometry.target)
        o, h = letters("o", rank), letters("h", rank)
        groups, outs = self._grouped()
        axes = " ".join([*o, *h, "k i j"])
        return (rearrange(kernel, f"{axes} -> ({groups} {outs}) k ({' '.join([*h, 'i'])})").contiguous(),)

    def apply(self, state: Tensor, weights: Sequence[Tensor], bias: Tensor | None = None) -> Tensor:
        """`b … h… i j -> b … o… 1 j`."""
        (weight,), rank, parts = weights, len(self.geometry.target), self.stage.parts
        o, h = letters("o", rank), letters("h", rank)
        groups, outs = self._grouped()
        carries_j = ["j"] * ("j" in self.stage.before)
        kept = [name for part, name in enumerate(h) if part not in parts] + carries_j
        summed = [name for part, name in enumerate(h) if part in parts] + ["i"] + ["j"] * (not carries_j)
        axes = " ".join([*h, "i j"])
        rows = rearrange(state, f"b ... {axes} -> b ... ({' '.join([*kept, *summed])})").contiguous()
        sizes = dict(zip(o, self.geometry.target, strict=True))
        if bias is not None:
            bias = repeat(
                bias, f"j -> ({groups} {outs})", **{n: sizes[n] for n in f"{groups} {outs}".split() if n != "j"}
            )
        y = self.geometry.conv(rows, weight, bias, groups=rows.shape[-1] // weight.shape[-1])
        return rearrange(y, f"b ... ({groups} {outs}) -> b ... {' '.join([*o, '1 j'])}", **sizes)


WAYS = (SpaceStep, MatrixStep, FourierStep, AxisStep, BandStep, EinsumStep)


def nanoseconds(step: Step, channels: tuple[int, int]) -> float:
    """What a step is expected to take per pixel."""
    work, moved = step.cost(channels)
    return step.rate * work + MOVE * moved


@cache
def _cheapest(stage: Stage, geometry: Geometry, channels: tuple[int, int], compiling: bool) -> Step:
    steps = [way(stage, geometry) for way in WAYS if way.fits(stage, geometry)]
    if compiling:  # one product is better than many: nothing else is fused here
        steps = [step for step in steps if not isinstance(step, FourierStep)]

    costs = [nanoseconds(step, channels) for step in steps]
    return steps[costs.index(min(costs))]


def cheapest(stage: Stage, geometry: Geometry, channels: tuple[int, int]) -> Step:
    """The way that is expected to take the least time."""
    compiling = torch.compiler.is_compiling()
    choose = _cheapest.__wrapped__ if compiling else _cheapest
    return choose(stage, geometry, channels, compiling)
