"""Lifting and group convolutions."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from sepgconv.execution.kept import Kept, sources
from sepgconv.execution.plan import Plan, Weights, make_plan
from sepgconv.execution.sizes import Sizes
from sepgconv.grids import Grid
from sepgconv.grids._draws import KEY, check_draw
from sepgconv.kernels import LIFTING, Factor, GroupKernel, KernelConfig, resolve
from sepgconv.nn._check import AXES, check_memory, described, groups_for, symmetric_sampling, whole
from sepgconv.nn._norm import BatchNorm

EXECUTIONS = ("auto", "dense", "structured")


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
        self._seen = 0
        self._kept: Kept | None = None
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

    def _weights(self, plan: Plan, scale: Tensor | None) -> Weights:
        """The sampled kernel in the plan's form; without gradients it is kept until something changes.

        `scale` multiplies output channels.
        """
        now = sources(self.kernel, self.kernel.points)
        if now is None:
            self._kept = None
            return self._sample(plan, scale)
        now.facts.append(plan)
        if scale is not None:
            now.tensors.append(scale)
        kept = self._kept  # read once: other threads may put another in its place
        if kept is None or not kept.holds(now):
            kept = self._kept = Kept(now, self._sample(plan, scale))
        return kept.weights

    def _sample(self, plan: Plan, scale: Tensor | None) -> Weights:
        with torch.autocast(self.kernel.points.device.type, enabled=False):
            values = self.kernel()
            if scale is not None:
                last = max(n for n, term in enumerate(self.kernel.terms) if "j" in term.channels)
                values[last] = values[last] * scale
            return plan.prepare(values)

    def convolve(
        self,
        features: Float[Tensor, "b i h *space"],
        norm: BatchNorm | None = None,
        *,
        addend: Tensor | None = None,
        own: bool = False,
    ) -> Float[Tensor, "b j o *out"]:
        """Convolves; with a norm in eval as part of the kernel, a ReLU behind it, and then an addend and another ReLU.

        With `own`, the gradient that comes back belongs to this layer alone, and may be written over.
        """
        grid, source = self.kernel.grid, self.kernel.source
        watched = not torch.compiler.is_compiling() and _functorch.peek_interpreter_stack() is None
        if source is not None and source.random and watched and (self.training or source.origin == "layer"):
            self._seen = check_draw(features, source, self._seen, self)
        if self.redraws:
            grid.redraw() if self.training else grid.rest()
        bias, scale = self.bias, None
        if norm is not None:
            scale, shift = norm.folded()
            bias = shift if bias is None else bias * scale + shift
        own_ways = features.device.type == "cpu" and not torch.compiler.is_compiling()
        plan = self._plans["cpu" if own_ways else "other"]
        features = features if source else features.unsqueeze(2)  # an image lives on one element
        weights = self._sample(plan, scale) if self.training else self._weights(plan, scale)
        after = {"relu": norm is not None, "addend": addend}
        result = plan.run(features, weights, bias, **after, saving=self.saves_memory, own=own)
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


class LiftingConv(_Conv):
    """Lifts an image to the group: (f ⋆ k)(x, h) = Σ_x̃ f(x̃) · k(h⁻¹(x̃ − x)) / |det h|.

    In training it redraws a randomly sampled grid, once per call.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the feature map.
        kernel_size: odd width of the kernel's window in pixels, at the grid's largest scale.
        grid: where the output lives.
        kernel: settings of the kernel networks.
        stride: spatial stride.
        padding: `same` (zeros), `valid`, or a number of pixels.
        bias: whether to add a learned bias per channel.

    Shapes:
        `(b, in_channels, y, x)` → `(b, out_channels, h, y, x)`; in d dimensions, d spatial axes.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        grid: Grid,
        kernel: KernelConfig = KernelConfig(),
        stride: int = 1,
        padding: str | int = "same",
        bias: bool = False,
    ) -> None:
        super().__init__(
            (in_channels, out_channels),
            kernel_size,
            factors=LIFTING,
            kernel=kernel,
            grid=grid,
            source=None,
            stride=stride,
            padding=padding,
            bias=bias,
            execution="dense",
        )
        if kernel_size > 1 and self.kernel.radius <= 1:
            raise ValueError(
                f"kernel_size={kernel_size} leaves a single pixel at the smallest scale, since the window is filled at "
                f"the largest, {grid.widening:g}; take {2 * int(grid.widening) + 1} at least"
            )

    @property
    def grid(self) -> Grid:
        """The grid that the output lives on."""
        return self.kernel.grid

    def forward(self, images: Float[Tensor, "b i *space"]) -> Float[Tensor, "b j h *out"]:
        """Convolves images with the kernel at every element of the grid."""
        self.check(images)
        return self.convolve(images)


class GroupConv(_Conv):
    """Convolves on the group: (f ⋆ k)(x, h) = Σ_x̃ Σ_h̃ f(x̃, h̃) · k(h⁻¹(x̃ − x), h⁻¹h̃) / |det h|.

    Sums over h̃ are weighted by the volume of the grid's cells, so that they do not depend on its resolution.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: odd width of the kernel's window in pixels, at the grid's largest scale.
        grid: where the input lives.
        out_grid: where the output lives, if elsewhere; in training the layer redraws it if it is sampled at random.
        factorisation: a name out of `FACTORISATIONS`, or a table of `Factor`.
        kernel: settings of the kernel networks.
        stride: spatial stride.
        padding: `same` (zeros), `valid`, or a number of pixels.
        bias: whether to add a learned bias per channel.
        execution: `dense`, `structured`, or `auto` for the cheaper one.

    Shapes:
        `(b, in_channels, h, y, x)` → `(b, out_channels, h, y, x)`; in d dimensions, d spatial axes.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        grid: Grid,
        out_grid: Grid | None = None,
        factorisation: str | Sequence[Factor] = "separable",
        kernel: KernelConfig = KernelConfig(),
        stride: int = 1,
        padding: str | int = "same",
        bias: bool = False,
        execution: str = "auto",
    ) -> None:
        target = grid if out_grid is None else out_grid
        if target.group != grid.group:
            raise ValueError(f"grid and out_grid must sample one group, got {grid.group} and {target.group}")
        if target.widening != grid.widening:
            raise ValueError(
                f"grid and out_grid must have one max_scale, got {grid.widening:g} and {target.widening:g}"
            )
        super().__init__(
            (in_channels, out_channels),
            kernel_size,
            factors=resolve(factorisation, grid),
            kernel=kernel,
            grid=target,
            source=grid,
            stride=stride,
            padding=padding,
            bias=bias,
            execution=execution,
        )

    @property
    def grid(self) -> Grid:
        """The grid that the input lives on."""
        assert self.kernel.source is not None
        return self.kernel.source

    def forward(self, features: Float[Tensor, "b i h *space"]) -> Float[Tensor, "b j o *out"]:
        """Convolves features on `grid` to features on `out_grid`."""
        self.check(features)
        return self.convolve(features)
