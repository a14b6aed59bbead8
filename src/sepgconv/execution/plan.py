"""A plan: in which order a group convolution's sums are taken, and which way each.

On a grid every factor of a kernel is a tensor over some of the axes (o…, h…, taps, i, j), and a group convolution is
the contraction Σ f[b, x̃, h…, i] · Π factors over h…, taps and i. Taken at once it is the dense convolution: slow and
obviously right. Taken factor by factor, sums over the subgroup come first and the one over space last (paper, sec. 4).
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from sepgconv.execution.native import ORDINARY, followed, in_transform, recipe
from sepgconv.execution.pieces import in_pieces
from sepgconv.execution.sizes import Contraction, Sizes
from sepgconv.execution.ways import WAYS, Fourier, Space, Way
from sepgconv.kernels import Term, Values

Weights = list[list[tuple[Tensor, ...]]]
"""Per chunk of output channels, the weights of each way."""

PIXELS = 1 << 14
"""Pixels of a batch for which a plan is made: 21 images of 28×28. A plan never depends on the batch itself."""
CHUNK = 8
"""Output channels at a time where a state carries i and j: there is no cheaper order than keeping that product."""
LARGE, SAVING, PIECE = 1 << 28, 1 << 26, 1 << 25
"""Where more than 256 MB would lie between the ways (64 MB if memory is to be saved), features are convolved in pieces
of about 32 MB. That costs a tenth of the time. Smaller blocks would stay in glibc's heap when they are freed, and add
to the peak."""


def contractions(terms: Sequence[Term]) -> tuple[Contraction, ...]:
    """Terms that share a coordinate are contracted together; space comes last.

    The input channel i is summed over in the last contraction that carries it.
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
    # What sees no coordinate is multiplied into a contraction that carries its channels anyway.
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
        spatial = any(terms[n].spatial for n in group)
        result.append(Contraction(tuple(sorted(group)), parts, spatial, labels, after))
        labels = after
    return tuple(result)


def joined(steps: Sequence[Contraction]) -> tuple[Contraction, ...]:
    """The same with all sums over the subgroup taken at once: more multiply-adds, but one pass over the features."""
    apart = [step for step in steps if not step.spatial]
    if len(apart) < 2 or (apart[0].before, apart[-1].after) != ("i", "j"):
        return tuple(steps)
    terms, parts = ({n for step in apart for n in step.terms}, {n for step in apart for n in step.parts})
    return Contraction(tuple(sorted(terms)), tuple(sorted(parts)), False, "i", "j"), *steps[len(apart) :]


def cheapest(contraction: Contraction, sizes: Sizes, kind: str) -> Way:
    """The way that is expected to take the least time; timings of a CPU decide nothing elsewhere."""
    ways = [way(contraction, sizes) for way in WAYS if way.fits(contraction, sizes)]
    if kind != "cpu":  # one large product, not a basis of small ones
        ways = [way for way in ways if not isinstance(way, Fourier)]
    return min(ways, key=lambda way: way.nanoseconds(PIXELS))


class Plan:
    """An order of contractions, each with the way it is taken; `print` shows it.

    Args:
        steps: the ways, in order.
        sizes: of the convolution.
    """

    def __init__(self, steps: Sequence[Way], sizes: Sizes) -> None:
        self.steps, self.sizes = tuple(steps), sizes
        self.open = any(step.contraction.after == "ij" for step in steps)
        self.chunk = CHUNK if self.open else sizes.channels[1]
        self.taps, self.outputs = sizes.taps, math.prod(sizes.target)

    @property
    def execution(self) -> str:
        """`dense` if all is summed at once, `structured` if not."""
        (first, *rest) = self.steps
        return "dense" if not rest and isinstance(first, Space) and first.dense else "structured"

    @property
    def nanoseconds(self) -> float:
        """What it is expected to take on a CPU, forward and backward."""
        chunks = math.ceil(self.sizes.channels[1] / self.chunk)
        launches = sum(step.nanoseconds(0) for step in self.steps)
        return launches * (chunks - 1) + sum(step.nanoseconds(PIXELS) for step in self.steps)

    def multiply_adds(self, before: int = 1, after: int = 1) -> int:
        """Multiply-adds for so many pixels of the input, where elements and channels are mixed, and of the output."""
        return round(sum(s.work * (after if isinstance(s, Space) else before) for s in self.steps))

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            parts, space, before, after = step.contraction[1:]
            summed = [self.sizes.names[part] for part in parts if self.sizes.source[part] > 1] + ["x"] * space
            summed += ["i"] * ("i" in before and "i" not in after)
            lines.append((f"sum over {', '.join(summed) or 'nothing'}", step.name, f"{step.work:,.0f}"))
        wide = [max(len(line[n]) for line in lines) for n in range(3)]
        rows = [f"  {a:<{wide[0]}}  {b:<{wide[1]}}  {c:>{wide[2]}} multiply-adds per pixel" for a, b, c in lines]
        ends = [" × ".join(map(str, shape)) or "1" for shape in (self.sizes.source, self.sizes.target)]
        return "\n".join([f"{self.execution}, from {ends[0]} to {ends[1]} elements", *rows])

    def prepare(self, values: Sequence[Values]) -> Weights:
        """Weights from sampled factors."""
        total, weights = self.sizes.channels[1], []
        for start in range(0, total, self.chunk):
            stop = min(start + self.chunk, total)
            part = [v if v.shape[-1] == 1 else v[..., start:stop] for v in values] if self.chunk < total else values
            kernels = [self._kernel(step.contraction, part, stop - start) for step in self.steps]
            weights.append([step.prepare(kernel) for step, kernel in zip(self.steps, kernels, strict=True)])
        return weights

    def _kernel(self, contraction: Contraction, values: Sequence[Values], width: int) -> Values:
        """The product of some terms, expanded along what is summed over and, over space, along all outputs."""
        (_, parts, spatial, before, after), sizes = contraction, self.sizes
        first, *rest = (values[n] for n in contraction.terms)
        kernel = math.prod(rest, start=first)
        shape = [n if spatial or part in parts else 1 for part, n in enumerate(sizes.target)]
        shape += [n if part in parts else 1 for part, n in enumerate(sizes.source)]
        # What sees no space is the same for all output elements along parts that it does not see.
        kernel = kernel[tuple(slice(0, 1) if n == 1 else slice(None) for n in shape)]
        inputs, outputs = kernel.shape[-2:]
        if spatial and "j" in before:  # one kernel per group, even if it is the same for all
            outputs = width
        elif (before, after) == ("i", "j"):
            inputs, outputs = sizes.channels[0], width
        return kernel.expand(*shape, self.taps if spatial else 1, inputs, outputs)

    def run(
        self,
        features: Tensor,
        weights: Weights,
        bias: Tensor | None = None,
        *,
        relu: bool = False,
        addend: Tensor | None = None,
        saving: bool = False,
        own: bool = False,
        native: bool = False,
    ) -> Tensor:
        """Convolves features `(b, i, h, …)` to `(b, j, o, …)`.

        Args:
            features: what to convolve.
            weights: as `prepare` has made them.
            bias: to add to every output channel.
            relu: whether to rectify what comes out.
            addend: features to add to that, before another ReLU.
            saving: whether to take all but small features in pieces.
            own: as in `in_pieces`.
            native: whether compiled kernels may be used for these features, bias and addend.
        """
        rows, results = rearrange(features, "b c h ... -> b ... h c"), []
        rows = rows.reshape(*rows.shape[:-2], *self.sizes.source, rows.shape[-1])
        beside = None if addend is None else rearrange(addend, "b c h ... -> b ... h c")
        last = {"relu": relu, "addend": beside} if len(weights) == 1 else {}
        native = native and all(type(t) in ORDINARY and t.dtype == rows.dtype for c in weights for w in c for t in w)
        pieces = self._pieces(rows, SAVING if saving else LARGE) if torch.is_grad_enabled() else 1
        shifts = [None] * len(weights) if bias is None else bias.split(self.chunk)
        for chunk, shift in zip(weights, shifts, strict=True):
            counts, tensors = [len(weight) for weight in chunk], sum(chunk, ())
            run = partial(self._run, counts, native=native, **last)
            if pieces == 1:
                results.append(run(rows, *tensors, bias=shift))
            else:
                again = run if relu or addend is not None else partial(run, unread=True)
                made = recipe(features, rows.shape)
                results.append(in_pieces(run, pieces, rows, tensors, shift, own=own, again=again, made=made))
        rows = results[0] if last else torch.cat(results, dim=-1)
        rows = rows.reshape(*rows.shape[: rows.ndim - len(self.sizes.target) - 1], self.outputs, rows.shape[-1])
        result = rearrange(rows, "b ... h c -> b c h ...")
        return result if last else followed(result, None, relu=relu, addend=addend)

    def _run(
        self,
        counts: list[int],
        rows: Tensor,
        *tensors: Tensor,
        native: bool,
        bias: Tensor | None = None,
        relu: bool = False,
        addend: Tensor | None = None,
        unread: bool = False,
    ) -> Tensor:
        """`b … h… i -> b … o… j`; the addend is `b … h j`. An `unread` result is for its gradients alone."""
        state, rest = rows.unsqueeze(-1), tensors  # b … h… i j
        for step, count in zip(self.steps, counts, strict=True):
            weights, rest = rest[:count], rest[count:]
            if isinstance(step, Space):  # the last one
                after = {"relu": relu, "addend": addend, "unread": unread}
                return step.apply(state, weights, bias, native=native, **after).squeeze(-2)
            state = step.apply(state, weights, native=native)
        state = state.squeeze(-2)
        return followed(state, bias, relu=relu, addend=None if addend is None else addend.reshape(state.shape))

    def _pieces(self, rows: Tensor, limit: int) -> int:
        """In how many pieces a batch is convolved on a CPU, so that what lies between the ways stays small."""
        if self.open or rows.device.type != "cpu" or torch.compiler.is_compiling():
            return 1
        image = math.prod(rows.shape[1:]) * rows.element_size()
        between = image * len(rows) * max(self.sizes.channels[1] / self.sizes.channels[0], 1) * (len(self.steps) - 1)
        if not any(isinstance(step, Space) for step in self.steps):
            limit //= 2  # sums over the subgroup alone are soon taken again
        if between <= limit or in_transform():
            return 1
        return max(len(rows) // math.ceil(PIECE / image), 1)


def make_plan(terms: Sequence[Term], sizes: Sizes, execution: str = "auto", kind: str = "cpu") -> Plan:
    """The plan for a kernel: at once (`dense`), factor by factor (`structured`), or what is cheaper (`auto`).

    Args:
        terms: what the kernel's factors depend on.
        sizes: of the convolution.
        execution: which plan to make.
        kind: `cpu`, or anything else for another device or a compiler.
    """
    everything = Contraction(tuple(range(len(terms))), tuple(range(len(sizes.target))), True, "i", "j")
    dense = Plan([Space(everything, sizes)], sizes)
    if execution == "dense":
        return dense
    if sizes.kernel_size == 1 and sizes.stride == 1 and sizes.padding == 0:  # nothing is spatial
        terms = [term._replace(spatial=False) for term in terms]
    orders = [steps := contractions(terms)]
    if kind == "cpu":
        orders.append(joined(steps))
    plans = [Plan([cheapest(step, sizes, kind) for step in order], sizes) for order in orders]
    if execution == "auto":
        plans.append(dense)
    return min(plans, key=lambda plan: plan.nanoseconds)
