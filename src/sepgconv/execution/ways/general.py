"""Ways that take any table: over the subgroup an einsum, over space a grouped convolution."""

import math
from collections.abc import Sequence

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sepgconv.execution import spectral
from sepgconv.execution.native import depthwise, followed
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways.base import Way

TERMS, CHAINS = 512, 8
"""A channels-last convolution adds up all its terms in one chain. On a group it is split into chains of about 512
terms, and at most eight, since each adds up a whole map. Shorter sums round less, so that a quarter turn changes the
result less (2e-6 instead of 5e-6)."""

FEW = 3
"""Elements of a group of channels up to which compiled depthwise convolutions are faster than a grouped one."""


class Einsum(Way):
    """Σ over h̃ (and i) of f(x, h̃) · k(h⁻¹h̃) at every x, for any table: what is left when nothing else fits."""

    rate, name = 3.0, "an einsum"

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        source, outs = "abcd"[: self.rank], {part: "ABCD"[part] for part in contraction.parts}
        target = "".join(outs.get(part, source[part]) for part in range(self.rank))
        kernel = "".join([*outs.values(), *(source[part] for part in contraction.parts)])
        self.sums_i = "i" in contraction.before and "i" not in contraction.after
        self.formula = f"...{source}ij,{kernel}ij->...{target}{'j' if self.sums_i else 'ij'}"

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whenever nothing is summed over space."""
        return not contraction.spatial

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """`(o…, h…, i, j)` of the parts that are summed over."""
        parts = self.contraction.parts
        shape = [kernel.shape[part] for part in parts] + [kernel.shape[self.rank + part] for part in parts]
        return (kernel.reshape(*shape, *kernel.shape[-2:]),)

    def apply(self, state: Tensor, weights: Sequence[Tensor], *, native: bool) -> Tensor:
        """One einsum."""
        result = torch.einsum(self.formula, state, weights[0])
        return result.unsqueeze(-2) if self.sums_i else result


class Space(Way):
    """Σ over x̃ (and whatever else is left to sum) of f(x̃, …) · k(h⁻¹(x̃ − x), …): a grouped convolution."""

    rate, name = 0.1, "a grouped convolution over x"
    dense_rate = 0.038
    """Nanoseconds per multiply-add where all channels and elements are mixed."""

    def __init__(self, contraction: Contraction, sizes: Sizes) -> None:
        super().__init__(contraction, sizes)
        if self.dense:
            self.name = "a convolution over x"
        parts, carries_j = contraction.parts, "j" in contraction.before
        groups = [name for part, name in enumerate(self.o) if part not in parts] + ["j"] * carries_j
        outs = [name for part, name in enumerate(self.o) if part in parts] + ["j"] * (not carries_j)
        kept = [name for part, name in enumerate(self.h) if part not in parts] + ["j"] * carries_j
        summed = [name for part, name in enumerate(self.h) if part in parts] + ["i"] + ["j"] * (not carries_j)
        o, h, out = " ".join(self.o), " ".join(self.h), " ".join([*groups, *outs])
        self.elements = dict(zip(self.o, sizes.target, strict=True))
        self.to_weight = f"{o} {h} k i j -> ({out}) k ({h} i)"
        self.to_rows = f"b ... {h} i j -> b ... ({' '.join([*kept, *summed])})"
        self.to_state = f"b ... ({out}) -> b ... {o} 1 j"
        self.to_addend = f"b ... ({o}) j -> b ... ({out})"
        self.to_bias = f"j -> ({out})"

    @staticmethod
    def fits(contraction: Contraction, sizes: Sizes) -> bool:
        """Whenever something is summed over space."""
        return contraction.spatial

    @property
    def work(self) -> float:
        """Taps times what is summed over, for all that is left."""
        sizes, parts = self.sizes, self.contraction.parts
        width = sizes.width("".join({*self.contraction.before, *self.contraction.after}))
        pairs = [n * (sizes.source[part] if part in parts else 1) for part, n in enumerate(sizes.target)]
        return math.prod([width, *pairs, sizes.taps])

    @property
    def dense(self) -> bool:
        """Whether everything is mixed with everything."""
        return self.contraction.mixes and len(self.contraction.parts) == self.rank

    @property
    def entries(self) -> float:
        """The whole kernel, where it is dense."""
        return self.work if self.dense else 0

    def nanoseconds(self, pixels: int) -> float:
        """As for all ways, with a rate of its own for dense convolutions."""
        faster = pixels * self.work * (self.rate - self.dense_rate) if self.dense else 0
        return super().nanoseconds(pixels) - faster

    def prepare(self, kernel: Tensor) -> tuple[Tensor, ...]:
        """The weight `(groups·out, k, in)` of a grouped convolution."""
        return (rearrange(kernel, self.to_weight).contiguous(),)

    def apply(
        self,
        state: Tensor,
        weights: Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        native: bool,
        relu: bool = False,
        addend: Tensor | None = None,
        unread: bool = False,
    ) -> Tensor:
        """`b … h… i j -> b … o… 1 j`, and what follows: the addend is `b … h j`. If `unread`, only gradients count."""
        rows, weight = rearrange(state, self.to_rows).contiguous(), weights[0]
        groups = rows.shape[-1] // weight.shape[-1]
        if bias is not None:
            bias = repeat(bias, self.to_bias, **self.elements)
        if addend is not None:
            addend = rearrange(addend, self.to_addend, **self.elements)
        if self.sizes.space == 2 and weight.shape[-1] == 1 and groups == len(weight):
            size, padding = self.sizes.kernel_size, (self.sizes.padding, self.sizes.padding)
            kernel, beside = weight.reshape(groups, 1, size, size), None if addend is None else addend.movedim(-1, 1)
            after = {"relu": relu, "addend": beside, "native": native, "unread": unread}
            result = depthwise(rows.movedim(-1, 1), kernel, self.sizes.stride, padding, bias, **after).movedim(1, -1)
        elif self.sizes.space == 2 and native and weight.shape[-1] <= FEW and rows.shape[-1] == len(weight):
            result = followed(by_offset(rows, weight, self.sizes), bias, relu=relu, addend=addend)
        else:
            result = convolve(rows, weight, self.sizes, bias, groups, relu=relu, addend=addend)
        return rearrange(result, self.to_state, **self.elements)


def by_offset(rows: Tensor, weight: Float[Tensor, "out k in"], sizes: Sizes) -> Tensor:
    """A convolution with groups of n inputs and n outputs as n depthwise ones: for each input, the next, and so on.

    Results are moved, not inputs: so the backward pass keeps one input for all of them.
    """
    count, padding = weight.shape[-1], (sizes.padding, sizes.padding)
    features, pairs = rows.movedim(-1, 1), weight.unflatten(0, (-1, count))  # b (g h) … and g o k h
    result: Tensor | None = None
    for offset in range(count):
        kernel = torch.stack([pairs[:, h - offset, :, h] for h in range(count)], 1).flatten(0, 1)
        kernel = kernel.unflatten(-1, (1, sizes.kernel_size, sizes.kernel_size))
        found = depthwise(features, kernel, sizes.stride, padding, native=True).movedim(1, -1)
        found = found.unflatten(-1, (-1, count)).roll(-offset, -1).flatten(-2) if offset else found
        result = found if result is None else result + found
    assert result is not None
    return result


def convolve(
    rows: Tensor,
    weight: Float[Tensor, "out k in"],
    sizes: Sizes,
    bias: Tensor | None = None,
    groups: int = 1,
    *,
    relu: bool = False,
    addend: Tensor | None = None,
) -> Tensor:
    """An ordinary convolution over space, `b … in -> b … out`, and what follows it; torch sees it as channels-last."""
    if sizes.space == 2 and groups == sizes.stride == 1 and spectral.pays(rows, weight, sizes.padding):
        return followed(spectral.convolve(rows, weight, sizes.padding), bias, relu=relu, addend=addend)
    chains = min(math.ceil(weight[0].numel() / TERMS), weight.shape[-1], CHAINS) if sizes.target else 1
    if chains == 1:
        return followed(_convolve(rows, weight, sizes, bias, groups), None, relu=relu, addend=addend)
    pairs = zip(rows.unflatten(-1, (groups, -1)).chunk(chains, -1), weight.chunk(chains, -1), strict=True)
    result: Tensor | None = None
    for part, kernel in pairs:
        found = _convolve(part.flatten(-2).contiguous(), kernel.contiguous(), sizes, None, groups)
        result = found if result is None else result.add_(found)
    assert result is not None
    return followed(result, bias, relu=relu, addend=addend)


def _convolve(
    rows: Tensor, weight: Float[Tensor, "out k in"], sizes: Sizes, bias: Tensor | None, groups: int
) -> Tensor:
    weight = weight.unflatten(1, (sizes.kernel_size,) * sizes.space).movedim(-1, 1)
    function = (F.conv1d, F.conv2d, F.conv3d)[sizes.space - 1]
    return function(rows.movedim(-1, 1), weight, bias, sizes.stride, sizes.padding, 1, groups).movedim(1, -1)
