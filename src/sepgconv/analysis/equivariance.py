"""How far from equivariant is a network for elements between pixels and between grid elements?

Quarter turns are exact. Everything else depends on how smooth the kernels are (ω₀) and how finely H is sampled: the
tables made here show it, beside the error of interpolating the picture itself. They are printed by
`python -m sepgconv.analysis.equivariance`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.actions import act, transform_space
from sepgconv.data import rotate
from sepgconv.testing import equivariance_error, relative

OMEGAS = (1.0, 3.0, 10.0)
SCALES = (4, 7, 13)
CUTOFFS = (None, 0.5, 0.4, 0.3)


def smooth_image(
    size: int = 33, element: Float[Tensor, "2 2"] | None = None, middle: Sequence[float] = (0.0, 0.0)
) -> Float[Tensor, "1 1 y x"]:
    """A few Gaussian blobs, fading towards the border; with a matrix, the blobs moved by it and drawn afresh.

    `middle` is the point (x, y) among the blobs that is the picture's centre.
    """
    line = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(-line, line, indexing="ij")
    points = torch.stack([x, y], dim=-1)
    if element is not None:
        points = points @ torch.linalg.inv(element.double()).T
    points = points + points.new_tensor(middle)
    image = torch.zeros(size, size, dtype=torch.float64)
    for weight, width, center in ((1.0, 2.4, (3.5, 2.0)), (0.8, 2.2, (-4.0, 3.0)), (-1.0, 2.6, (1.0, -4.5))):
        distance = (points - points.new_tensor(center)).square().sum(-1)
        image += weight * torch.exp(-distance / (2 * width**2))
    return image[None, None]


def two_layers(
    grid: sg.Grid,
    omega0: float,
    *,
    size: int = 9,
    cutoff: float | None = None,
    between: nn.Module | None = None,
    after: nn.Module | None = None,
) -> nn.Sequential:
    """A lifting and a group convolution with a nonlinearity between and after: ReLU, unless told."""
    kernel = sg.KernelConfig(omega0=omega0, cutoff=cutoff)
    lift = sg.LiftingConv(1, 4, size, grid=grid, kernel=kernel)
    conv = sg.GroupConv(4, 4, size, grid=grid, kernel=kernel)
    return nn.Sequential(lift, between or nn.ReLU(), conv, after or nn.ReLU()).double().eval()


def averaged(net: nn.Module, grid: sg.Grid, draws: int) -> Callable[[Tensor], Tensor]:
    """The net's projection over H, averaged over random grids: a picture that should turn with its input."""

    def run(image: Tensor) -> Tensor:
        total = torch.zeros(())
        for seed in range(draws):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                grid.resample()
            total = total + net(image).mean(2) / draws
        return total

    return run


def rotation_errors(
    degrees: float, rotations: int, omega0: float, *, draws: int = 1, seeds: int = 3, **settings: Any
) -> tuple[float, float]:
    """Relative error of a two-layer SE(2) net for one turn of a smooth image, and that of interpolating the image.

    With one draw the grid is the fixed one; with several it is sampled at random and the outputs are averaged. Further
    settings are those of `two_layers`.
    """
    errors, alone = [], 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        grid = sg.se2(rotations, sampling="random" if draws > 1 else "fixed")
        net = two_layers(grid, omega0, **settings)
        element = torch.tensor([degrees * torch.pi / 180], dtype=torch.float64)
        report = equivariance_error(averaged(net, grid, draws), smooth_image(), grid=grid, elements=[element])
        errors.append(report[0].error)
        matrix = grid.group.matrix(element)
        turned = smooth_image(element=matrix)
        alone = ((transform_space(smooth_image(), matrix) - turned).norm() / turned.norm()).item()
    return sum(errors) / seeds, alone


@torch.no_grad()
def centre_errors(
    degrees: float,
    rotations: int,
    omega0: float,
    *,
    size: int = 9,
    places: int = 100,
    seeds: int = 3,
    cutoff: float | None = None,
) -> float:
    """As `rotation_errors`, at the one pixel that a turn leaves where it is: nothing is interpolated.

    The picture's blobs are drawn afresh around many points, turned and not, and the outputs at the centre compared.
    """
    random = torch.Generator().manual_seed(0)
    middles = (24 * torch.rand(places, 2, generator=random, dtype=torch.float64) - 12).tolist()
    errors = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        grid = sg.se2(rotations, sampling="fixed")
        net = two_layers(grid, omega0, size=size, cutoff=cutoff)
        seen = 2 * size - 1  # the pixels on which one output depends
        matrix = grid.group.matrix(torch.tensor([degrees * torch.pi / 180], dtype=torch.float64))
        upright, turned = (
            net(torch.cat([smooth_image(seen, element, middle) for middle in middles]))[..., seen // 2, seen // 2].mean(
                2
            )
            for element in (None, matrix)
        )
        errors.append(((turned - upright).norm() / upright.norm()).item())
    return sum(errors) / seeds


@torch.no_grad()
def dilation_errors(
    make: Callable[..., sg.Grid], scales: int, omega0: float, *, seeds: int = 6
) -> tuple[float, float, float]:
    """Relative error of a two-layer net for a dilation by one grid step: at one scale, at all scales, and of the image.

    The net is made with four scales and then sampled more finely. The one scale is two thirds of the way to the
    largest, in logarithms: all its neighbours are on the grid; at the ends of the truncated grid they are missing.
    """
    inside, everywhere, alone = [], [], 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        grid = make(4)
        net = two_layers(grid, omega0, size=15)
        sg.set_resolution(net, scales=scales)
        vector = torch.zeros(len(grid.axes), dtype=torch.float64)
        vector[-1] = grid.axes[-1].cell
        element = grid.group.exp(vector)
        image = smooth_image()
        there = act(image, element, grid)[0]
        expected, valid = act(net(image), element, grid)
        found = net(there)
        one = torch.arange(grid.size) % scales == 2 * (scales - 1) // 3
        inside.append(relative(found[:, :, one], expected[:, :, one]))
        everywhere.append(relative(found[:, :, valid], expected[:, :, valid]))
        moved = smooth_image(element=grid.group.matrix(element))
        alone = ((there - moved).norm() / moved.norm()).item()
    return sum(inside) / seeds, sum(everywhere) / seeds, alone


def rotation_table() -> list[tuple[float, int, dict[str, float], float]]:
    """(ω₀, rotations, errors by case, largest interpolation error) for every ω₀ and 4, 8, 16 rotations."""
    cases = {"45° fixed": (45.0, 1), "10° random": (10.0, 8), "30° random": (30.0, 8)}
    rows = []
    for omega0 in OMEGAS:
        for rotations in (4, 8, 16):
            found = {name: rotation_errors(d, rotations, omega0, draws=n) for name, (d, n) in cases.items()}
            rows.append((omega0, rotations, {k: v[0] for k, v in found.items()}, max(v[1] for v in found.values())))
    return rows


def band_limit_table(cutoffs: Iterable[float | None] = CUTOFFS) -> list[tuple[float | None, dict[str, float]]]:
    """(cut-off, errors by nonlinearity) for a turn by 45° with ω₀ = 10 and 8 rotations.

    The last one is that of `centre_errors`, without any interpolation.
    """
    linear, relu, silu = nn.Identity(), nn.ReLU(), nn.SiLU()
    cases = {
        "none": (linear, linear),
        "ReLU between": (relu, linear),
        "ReLU between and after": (relu, relu),
        "the same, then pooled": (relu, nn.Sequential(relu, sg.SpatialPool("mean", 3, stride=2, antialias=True))),
        "SiLU between and after": (silu, silu),
    }
    rows: list[tuple[float | None, dict[str, float]]] = []
    for cutoff in cutoffs:
        found = {
            name: rotation_errors(45.0, 8, 10.0, cutoff=cutoff, between=between, after=after)[0]
            for name, (between, after) in cases.items()
        }
        found["ReLUs, at the centre"] = centre_errors(45.0, 8, 10.0, cutoff=cutoff)
        rows.append((cutoff, found))
    return rows


@torch.no_grad()
def logit_changes(net: nn.Module, images: Float[Tensor, "b 1 y x"], degrees: Iterable[float]) -> list[float]:
    """How much turns of the images change a network's logits, relative to how much these vary from image to image.

    Both in the Euclidean norm over all images: 0 for an invariant network, and about √2 for one that sees nothing that
    a turn leaves.
    """
    logits = net.eval()(images)
    spread = (logits - logits.mean(0)).norm()
    return [((net(rotate(images, angle)) - logits).norm() / spread).item() for angle in degrees]


def dilation_table() -> list[tuple[str, float, int, float, float, float]]:
    """(group, ω₀, scales, errors at one and at all scales, of interpolation) for a step of `scale2` and `sim2`."""
    makers = {"scale2": lambda n: sg.scale2(n, 3**0.5), "sim2": lambda n: sg.sim2(4, n, 3**0.5)}
    rows = []
    for name, make in makers.items():
        for omega0 in OMEGAS:
            for scales in SCALES:
                rows.append((name, omega0, scales, *dilation_errors(make, scales, omega0)))
    return rows


def as_markdown() -> str:
    """All tables."""
    lines = ["| ω₀ | rotations | 45°, fixed grid | 10°, random grids | 30°, random grids | interpolating the image |"]
    lines.append("|---|---|---|---|---|---|")
    for omega0, rotations, errors, alone in rotation_table():
        lines.append(
            f"| {omega0:g} | {rotations} | " + " | ".join(f"{e:.1e}" for e in [*errors.values(), alone]) + " |"
        )
    table = band_limit_table()
    lines += ["", f"| cut-off | {' | '.join(table[0][1])} |", "|---" * (len(table[0][1]) + 1) + "|"]
    for cutoff, errors in table:
        lines.append(f"| {cutoff or 'none'} | {' | '.join(f'{e:.1e}' for e in errors.values())} |")
    lines += [
        "",
        "| group | ω₀ | scales | error, one scale | error, all scales | interpolating the image |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for name, omega0, scales, inside, everywhere, alone in dilation_table():
        lines.append(f"| {name} | {omega0:g} | {scales} | {inside:.1e} | {everywhere:.1e} | {alone:.1e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown())
