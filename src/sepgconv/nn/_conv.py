"""Lifting and group convolutions."""

import math
from collections.abc import Sequence
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sepgconv.factors import LIFTING, Factor, resolve
from sepgconv.functional import Dense, Structured, Weights
from sepgconv.geometry import Geometry
from sepgconv.grids import Grid
from sepgconv.kernels import GroupKernel
from sepgconv.nn._check import AXES, floating, hooked, inference, symmetric_sampling, whole
from sepgconv.nn._norm import affine, rectify
from sepgconv.siren import KernelConfig

EXECUTIONS = ("auto", "dense", "structured")


class _Conv(nn.Module):
    """What both convolutions do: sample the kernel (once, in eval), pick an execution, convolve."""

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
        if execution not in EXECUTIONS:
            raise ValueError(f"execution must be one of {', '.join(EXECUTIONS)}; got {execution!r}")
        self.stride, self.execution = whole("stride", stride, 1), execution
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"padding must be 'same', 'valid' or a number of pixels, got {padding!r}")
            self.padding = kernel_size // 2 if padding == "same" else 0
        else:
            self.padding = whole("padding", padding, 0)
        self.kernel = GroupKernel(channels, kernel_size, factors=factors, config=kernel, grid=grid, source=source)
        self.bias = nn.Parameter(torch.zeros(channels[1])) if bias else None
        self.redraws = source is not grid
        point = kernel_size == 1 and self.stride == 1 and self.padding == 0
        self._dense, self._structured = Dense(), Structured(self.kernel.terms, point)
        self._cache: tuple[object, Weights] | None = None

    @property
    def out_grid(self) -> Grid:
        """The grid that the output lives on."""
        return self.kernel.grid

    @property
    def geometry(self) -> Geometry:
        """Sizes at the grids' current resolution."""
        targets = self.kernel.grid.axes
        sources = self.kernel.source.axes if self.kernel.source else ()
        return Geometry(
            space=self.out_grid.space,
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            source=tuple(axis.count for axis in sources) or (1,) * len(targets),
            target=tuple(axis.count for axis in targets),
            periodic=tuple(axis.group.period is not None for axis in targets),
            reach=tuple(axis.neighbours(source) for axis, source in zip_longest(targets, sources)),
        )

    @property
    def executor(self) -> Dense | Structured:
        """The execution in use for images of a usual size."""
        return self.executor_for(1 << 14)

    def executor_for(self, pixels: int) -> Dense | Structured:
        """The execution that is expected to be faster on so many pixels, unless one was asked for."""
        if self.execution != "auto":
            return self._dense if self.execution == "dense" else self._structured
        if [stage.spatial for stage in self._structured.stages] == [True]:
            return self._dense  # one convolution either way, and this one rounds less
        sizes = (self.geometry, (self.in_channels, self.out_channels), pixels)
        return (
            self._structured if self._structured.nanoseconds(*sizes) < self._dense.nanoseconds(*sizes) else self._dense
        )

    def save_memory(self) -> None:
        """Takes large features a few images at a time: less memory, the same numbers, a tenth more time."""
        self._structured.save_memory()

    def _weights(self, executor: Dense | Structured, scale: Tensor | None) -> Weights:
        """The sampled kernel in the executor's form; in eval without gradients it is kept until something changes.

        `scale` multiplies output channels.
        """
        sizes = (self.geometry, (self.in_channels, self.out_channels))
        if self.training or not inference():
            self._cache = None
            return executor.prepare(self._values(scale), *sizes)
        grids = [self.kernel.grid, *([self.kernel.source] if self.kernel.source else [])]
        tensors = [*self.kernel.parameters(), *(grid.offset for grid in grids)]
        stamps = tuple((t.data_ptr(), t.dtype, 0 if t.is_inference() else t._version) for t in tensors)
        key = (stamps, self.geometry, executor, None if scale is None else tuple(scale.tolist()))
        if self._cache is None or self._cache[0] != key:
            self._cache = (key, executor.prepare(self._values(scale), *sizes))
        return self._cache[1]

    def _values(self, scale: Tensor | None) -> list[Tensor]:
        values = self.kernel()
        if scale is not None:
            last = max(n for n, term in enumerate(self.kernel.terms) if "j" in term.channels)
            values[last] = values[last] * scale
        return values

    def _convolve(
        self,
        features: Float[Tensor, "b i h *space"],
        norm: nn.modules.batchnorm._BatchNorm | None = None,
        *,
        private: bool = False,
    ) -> Float[Tensor, "b j o *out"]:
        """Convolves, with a norm as part of the kernel if one is given; `private` is as in `piecewise`."""
        like = next(self.kernel.parameters())
        if features.dtype != like.dtype and not torch.is_autocast_enabled(features.device.type):
            raise ValueError(f"input is {features.dtype} but the layer's parameters are {like.dtype}")
        if self.out_grid.axes:
            symmetric_sampling(self, tuple(features.shape[3:]), self.kernel_size, self.stride, self.padding)
        if self.training and self.redraws:
            self.out_grid.resample()
        bias, scale = self.bias, None
        if norm is not None:
            scale, shift = affine(norm)
            bias = shift if bias is None else bias * scale + shift
        executor = self.executor_for(len(features) * math.prod(features.shape[3:]))
        sizes = (self.geometry, (self.in_channels, self.out_channels))
        return executor.apply(features, self._weights(executor, scale), *sizes, bias, private=private)

    def _check_axes(self, x: Tensor, names: str) -> None:
        floating(x, self)
        axes = f"({names}, {AXES[self.out_grid.space]})"
        if x.ndim != axes.count(",") + 1:
            raise ValueError(f"{type(self).__name__} takes {axes}, got {x.ndim} axes: {tuple(x.shape)}")
        if x.shape[1] != self.in_channels:
            raise ValueError(
                f"{type(self).__name__} has in_channels={self.in_channels}, got {x.shape[1]}: {tuple(x.shape)}"
            )
        reach = [size + 2 * self.padding for size in x.shape[axes.count(",") + 1 - self.out_grid.space :]]
        if min(reach) < self.kernel_size:
            raise ValueError(
                f"{type(self).__name__} with kernel_size={self.kernel_size} and padding={self.padding} "
                f"does not fit an input of shape {tuple(x.shape)}"
            )

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_cache": None}

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

    @property
    def grid(self) -> Grid:
        """The grid that the output lives on."""
        return self.kernel.grid

    def forward(self, images: Float[Tensor, "b i *space"]) -> Float[Tensor, "b j h *out"]:
        """Convolves images with the kernel at every element of the grid."""
        self._check_axes(images, "b, c")
        return self._convolve(images.unsqueeze(2))


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
        if target.reach != grid.reach:
            raise ValueError(f"grid and out_grid must have one max_scale, got {grid.reach:g} and {target.reach:g}")
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
        self._check(features)
        return self._convolve(features)

    def rectified(
        self,
        features: Float[Tensor, "b i h *space"],
        norm: nn.modules.batchnorm._BatchNorm,
        *,
        private: bool = False,
    ) -> Float[Tensor, "b j o *out"]:
        """`relu(norm(self(features)))`; in eval without gradients the norm becomes part of the kernel.

        Modules with hooks are called one by one; without them nobody but the norm sees what it is given. `private` is
        as in `lean.batch_norm`.
        """
        if hooked(self, norm):
            return rectify(self(features), norm, private=private)
        self._check(features)
        if norm.training or norm.running_mean is None or not inference():
            return rectify(self._convolve(features, private=True), norm, private=private)
        return F.relu(self._convolve(features, norm), inplace=True)

    def _check(self, features: Tensor) -> None:
        self._check_axes(features, "b, c, h")
        if features.shape[2] != self.grid.size:
            raise ValueError(
                f"the h axis has length {features.shape[2]} but the grid has {self.grid.size} elements: "
                f"input {tuple(features.shape)}, {self.grid}"
            )
