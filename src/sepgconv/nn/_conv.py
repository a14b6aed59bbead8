"""Lifting and group convolutions."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from sepgconv.execution.native import applies
from sepgconv.grids import Grid
from sepgconv.kernels import LIFTING, Factor, KernelConfig, resolve
from sepgconv.nn._check import check_grid
from sepgconv.nn._sampled import _Conv


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
        if self.kernel_size >= 2 * max(images.shape[2:]) and self.grid.widening > 1:
            raise ValueError(
                f"images of {tuple(images.shape[2:])} pixels cannot show scales up to {self.grid.widening:g} with "
                f"kernel_size={self.kernel_size}, whose edge lies beyond the image from every pixel; take a smaller "
                f"max_scale, and a window of {2 * max(images.shape[2:]) - 1} pixels at most"
            )
        return self.convolve(images, native=applies(images, self.bias))


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
        check_grid(grid)
        check_grid(target, "out_grid")
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
        return self.convolve(features, native=applies(features, self.bias))
