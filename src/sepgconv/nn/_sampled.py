"""What lifting and group convolutions share: sample the kernel, convolve as planned, refuse what does not fit."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from sepgconv.execution.kept import Kept, sources
from sepgconv.execution.plan import Plan, Weights, make_plan
from sepgconv.execution.sizes import Sizes
from sepgconv.grids import Grid
from sepgconv.grids._draws import KEY, NEVER, check_draw, computed_again
from sepgconv.kernels import Factor, GroupKernel, KernelConfig
from sepgconv.nn._check import AXES, check_grid, check_memory, described, groups_for, symmetric_sampling, whole
from sepgconv.nn._norm import BatchNorm

EXECUTIONS = ("auto", "dense", "structured")
Prepared = tuple[Weights, Tensor | None]
"""Weights in a plan's form, and the bias."""


class _Conv(nn.Module):
    """What both convolutions do: sample the kernel (once, in eval), convolve as planned."""

    def __init__(
        self,
        channels: tuple[int, int],
        kernel_size: int,
        *,
        factors: tuple[Factor, ...],
        kernel: KernelConfig,
        grid: Grid,
        source: Grid | None,
        stride: int,
        padding: str | int,
        bias: bool,
        execution: str,
    ) -> None:
        super().__init__()
        check_grid(grid)
        if not isinstance(kernel, KernelConfig):
            raise ValueError(f"kernel must be a KernelConfig, such as sg.KernelConfig(layers=1); got {kernel!r}")
        self.in_channels = whole("in_channels", channels[0], 1)
        self.out_channels = whole("out_channels", channels[1], 1)
        self.kernel_size = whole("kernel_size", kernel_size, 1)
        if kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size must be odd, so that the kernel has a centre to turn about; got {kernel_size}"
            )
        self.stride, self.execution = whole("stride", stride, 1), execution
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"padding must be 'same', 'valid' or a number of pixels, got {padding!r}")
            self.padding = kernel_size // 2 if padding == "same" else 0
        else:
            self.padding = whole("padding", padding, 0)
        if execution not in EXECUTIONS:
            raise ValueError(f"execution must be one of {', '.join(EXECUTIONS)}; got {execution!r}")
        check_memory(kernel_size, channels, factors, kernel, (grid, source))
        self.kernel = GroupKernel(channels, kernel_size, factors=factors, config=kernel, grid=grid, source=source)
        self.bias = nn.Parameter(torch.zeros(channels[1])) if bias else None
        self.redraws = source is not grid
        self.saves_memory = False
        self._axes = f"({'b, c' if source is None else 'b, c, h'}, {AXES[grid.space]})"
        self._seen = (0, NEVER)
        self._kept: Kept[Prepared] | None = None
        self._planned: tuple[object, ...] = ()
        self._plans: dict[str, Plan] = {}
        self.refresh()

    @property
    def out_grid(self) -> Grid:
        """The grid that the output lives on."""
        return self.kernel.grid

    @property
    def plan(self) -> Plan:
        """How the layer computes at the grids' resolution and on its device; `print` shows it."""
        if "kernel" not in vars(self).get("_modules", {}):
            raise RuntimeError(f"{type(self).__name__} has no plan before it is built: call super().__init__() first")
        self.refresh()
        stock = torch.compiler.is_compiling() or self.kernel.points.device.type != "cpu"
        return self._plans["other" if stock else "cpu"]

    def refresh(self) -> None:
        """Makes tables and plans anew if the grids have another resolution."""
        kernel, rank = self.kernel, len(self.kernel.names)
        kernel.refresh()
        wanted = (kernel.built, kernel.grid.shape, kernel.source and kernel.source.shape, self.execution)
        if self._planned == wanted:
            return
        if self.execution not in EXECUTIONS:
            allowed = ", ".join(EXECUTIONS)
            raise ValueError(f"execution must be one of {allowed}; got {self.execution!r} in {described(self)}")
        sizes = Sizes(
            names=tuple(kernel.names),
            space=kernel.grid.space,
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            channels=(self.in_channels, self.out_channels),
            source=kernel.source.shape if kernel.source else (1,) * rank,
            target=kernel.grid.shape,
            circulant=tuple(table.circulant for table in kernel.relatives) or (False,) * rank,
            dihedral=tuple(table.dihedral for table in kernel.relatives) or (False,) * rank,
            band=tuple(table.band for table in kernel.relatives) or (None,) * rank,
        )
        self._plans = {kind: make_plan(kernel.terms, sizes, self.execution, kind) for kind in ("cpu", "other")}
        self._planned = wanted

    def save_memory(self) -> None:
        """Takes large features a few images at a time: less memory, the same numbers, a tenth more time."""
        self.saves_memory = True

    def _prepared(self, plan: Plan, norm: BatchNorm | None) -> Prepared:
        """As `_sample`, but without gradients it is kept until something changes."""
        now = sources((self.kernel,) if norm is None else (self.kernel, norm), self.kernel.points)
        if now is None:
            self._kept = None
            return self._sample(plan, norm)
        now += (self.bias, plan)
        kept = self._kept  # read once: other threads may put another in its place
        if kept is None or not kept.holds(now):
            kept = self._kept = Kept(now, lambda: self._sample(plan, norm))
        return kept.made

    def _sample(self, plan: Plan, norm: BatchNorm | None) -> Prepared:
        """The sampled kernel in the plan's form and the bias, both with a norm in eval as part of them."""
        with torch.autocast(self.kernel.points.device.type, enabled=False):
            values, bias = self.kernel(), self.bias
            if norm is not None:
                scale, shift = norm.folded()
                bias = shift if bias is None else bias * scale + shift
                last = max(n for n, term in enumerate(self.kernel.terms) if "j" in term.channels)
                values[last] = values[last] * scale
            return plan.prepare(values), bias

    def convolve(
        self,
        features: Float[Tensor, "b i h *space"],
        norm: BatchNorm | None = None,
        *,
        addend: Tensor | None = None,
        own: bool = False,
        native: bool,
    ) -> Float[Tensor, "b j o *out"]:
        """Convolves; with a norm in eval as part of the kernel, a ReLU behind it, and then an addend and another ReLU.

        With `own`, the gradient that comes back belongs to this layer alone, and may be written over. `native` says
        whether compiled kernels may be used for features, bias and addend.
        """
        grid, source = self.kernel.grid, self.kernel.source
        watched = not torch.compiler.is_compiling() and _functorch.peek_interpreter_stack() is None
        read = source if source is not None and source.random and watched else None
        if read is not None and (self.training or read.origin == "layer" or computed_again()):
            self._seen = check_draw(features, read, self._seen, self)
        if self.redraws:
            grid.redraw() if self.training else grid.rest()
        own_ways = features.device.type == "cpu" and not torch.compiler.is_compiling()
        plan = self._plans["cpu" if own_ways else "other"]
        features = features if source else features.unsqueeze(2)  # an image lives on one element
        weights, bias = self._sample(plan, norm) if self.training else self._prepared(plan, norm)
        after = {"relu": norm is not None, "addend": addend}
        result = plan.run(features, weights, bias, **after, saving=self.saves_memory, own=own, native=native)
        if grid.random and watched and result.grad_fn is not None:
            cast(dict, result.grad_fn.metadata).setdefault(KEY, {})[grid.key] = grid.moves
        return result

    def output_shape(self, x: Tensor) -> torch.Size:
        """The shape of what it makes of an input that `check` lets pass."""
        space = x.shape[x.ndim - self.kernel.grid.space :]
        sizes = [(n + 2 * self.padding - self.kernel_size) // self.stride + 1 for n in space]
        return torch.Size((len(x), self.out_channels, self.kernel.grid.size, *sizes))

    def check(self, x: Tensor) -> None:
        """Refuses what the layer cannot take."""
        name, kernel, space = type(self).__name__, self.kernel, self.kernel.grid.space
        if self._planned != (kernel.built, kernel.grid.shape, kernel.source and kernel.source.shape, self.execution):
            self.refresh()
        if not x.is_floating_point():
            raise ValueError(f"{name} takes real floating-point input, got {x.dtype}")
        if x.ndim != self._axes.count(",") + 1:
            others = groups_for(x.ndim - self._axes.count(",") - 1 + space)
            raise ValueError(
                f"{name} takes {self._axes}, got {x.ndim} axes: {tuple(x.shape)}; its grid acts on R^{space}{others}"
            )
        if x.shape[1] != self.in_channels:
            raise ValueError(f"{name} has in_channels={self.in_channels}, got {x.shape[1]}: {tuple(x.shape)}")
        if kernel.source is not None and x.shape[2] != kernel.source.size:
            raise ValueError(
                f"the h axis has length {x.shape[2]} but the grid has {kernel.source.size} elements: "
                f"input {tuple(x.shape)}, {kernel.source}, in {described(self)}"
            )
        if x.dtype != kernel.points.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"input is {x.dtype} but the layer's parameters are {kernel.points.dtype}")
        if min(x.shape[-space:]) + 2 * self.padding < self.kernel_size:
            raise ValueError(
                f"{name} with kernel_size={self.kernel_size} and padding={self.padding} "
                f"does not fit an input of shape {tuple(x.shape)}"
            )
        if not torch.compiler.is_compiling() and torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise ValueError(f"{name} cannot be traced by torch.jit, which would freeze its kernel; use torch.export")
        if kernel.names and self.stride > 1:
            symmetric_sampling(self, tuple(x.shape[-space:]), self.kernel_size, self.stride, self.padding)

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_kept": None}

    def extra_repr(self) -> str:
        """Channels, kernel size and whatever is not the default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, padding={self.padding}"
        return (
            text
            + (f", stride={self.stride}" if self.stride > 1 else "")
            + (", bias=True" if self.bias is not None else "")
        )
