"""Where is a dilation lost? One experiment for each suspect, on two-layer networks as they are drawn.

Blobs are drawn afresh at another size, so that no picture is interpolated, and what a network makes of them is compared
with what it made before, moved along the grid of scales. The tables are printed by `python -m sepgconv.analysis.scale`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.actions import transform_space
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.testing import relative

MAX_SCALE = 3**0.5
Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def net_of(grid: sg.Grid, *, size: int = 15, cutoff: float | None = None, mixing: bool = True) -> nn.Sequential:
    """A lifting and a group convolution, each with a ReLU; without mixing, k_H sees its own scale only."""
    kernel = sg.KernelConfig(cutoff=cutoff)
    conv = sg.GroupConv(4, 4, size, grid=grid, kernel=kernel)
    net = (
        nn.Sequential(sg.LiftingConv(1, 4, size, grid=grid, kernel=kernel), nn.ReLU(), conv, nn.ReLU()).double().eval()
    )
    if not mixing:
        own = torch.eye(grid.size, dtype=torch.float64)
        conv.kernel.register_buffer("volume0", conv.kernel.get_buffer("volume0") * own, persistent=False)
    return net


@torch.no_grad()
def errors_by_scale(
    depth: int, *, scales: int = 6, seeds: int = 3, ground: float = 0.0, support: int = 1, **settings: Any
) -> list[float]:
    """Relative error at every scale but the first, of a net's first layers, for a dilation by one step of the grid."""
    total = torch.zeros(scales - 1, dtype=torch.float64)
    for seed in range(seeds):
        torch.manual_seed(seed)
        grid = sg.scale2(scales, MAX_SCALE, scale_support=support)
        net = net_of(grid, **settings)[:depth]
        matrix = torch.eye(2, dtype=torch.float64) * MAX_SCALE ** (1 / (scales - 1))
        before, after = net(smooth_image() + ground), net(smooth_image(element=matrix) + ground)
        expected = transform_space(before, matrix)[:, :, :-1]
        pairs = zip(after[:, :, 1:].unbind(2), expected.unbind(2), strict=True)
        total += torch.tensor([relative(found, wanted) for found, wanted in pairs], dtype=torch.float64) / seeds
    return total.tolist()


def layers_and_ends() -> Table:
    """Layer by layer and scale by scale: the last scale of the second layer misses a neighbour, as does the first."""
    rows = [(name, *map(_show, errors_by_scale(depth))) for name, depth in (("lifting", 2), ("group convolution", 4))]
    return "The layers, scale by scale", ("after", *(f"scale {n}" for n in range(2, 7))), rows


def read_and_unread() -> Table:
    """All scales, or all but a margin at each end, by number of scales and cut-off."""
    rows = []
    for scales in (4, 6, 8):
        for cutoff in (None, 0.4):
            errors = errors_by_scale(4, scales=scales, cutoff=cutoff)
            inner = errors[1:-1]  # before and after the move, neither end
            rows.append((scales, cutoff or "none", _show(_rms(errors)), _show(_rms(inner))))
    return "Scales that are read", ("scales", "cut-off", "all", "without one at each end"), rows


def small_kernels() -> Table:
    """By window and cut-off, at the scales whose neighbours are there."""
    rows = []
    for size in (7, 11, 15, 21):
        cells = [_show(_rms(errors_by_scale(4, size=size, cutoff=cutoff)[1:-1])) for cutoff in (None, 0.5, 0.4)]
        rows.append((size, f"{(size + 1) / MAX_SCALE - 1:.1f}", *cells))
    return "Kernels", ("window", "pixels at the smallest scale", "as drawn", "cut-off 0.5", "cut-off 0.4"), rows


def borders() -> Table:
    """On a ground that is not zero, padding by zeros is an edge that does not grow with the picture."""
    rows = [(f"{ground:g}", _show(_rms(errors_by_scale(4, ground=ground)[1:-1]))) for ground in (0.0, 0.3, 1.0)]
    return "The border", ("ground", "error, read scales"), rows


def mixing() -> Table:
    """Neighbouring scales that k_H mixes, at all scales and at those that are read."""
    rows = []
    for name, settings in (("none", {"mixing": False}), ("1", {}), ("2", {"support": 2})):
        errors = errors_by_scale(4, scales=8, **settings)
        margin = {"none": 0, "1": 1, "2": 2}[name]
        rows.append((name, _show(_rms(errors)), _show(_rms(errors[margin : len(errors) - margin]))))
    return "Neighbours that k_H mixes", ("neighbours", "all scales", "scales with all neighbours"), rows


@torch.no_grad()
def statistics_by_scale(seeds: int = 3) -> Table:
    """Deviation of features at each scale, relative to that over all scales: what one norm for all divides by."""
    found = []
    for name, depth in (("lifting", 1), ("group convolution", 3)):
        total = torch.zeros(6, dtype=torch.float64)
        for seed in range(seeds):
            torch.manual_seed(seed)
            features = net_of(sg.scale2(6, MAX_SCALE))[:depth](torch.randn(4, 1, 33, 33, dtype=torch.float64))
            total += features.std((0, 1, 3, 4)) / features.std() / seeds
        found.append((name, *(f"{v:.2f}" for v in total.tolist())))
    return "Deviations by scale, white noise", ("after", *(f"scale {n}" for n in range(1, 7))), found


@torch.no_grad()
def maxima(seeds: int = 3) -> Table:
    """Change of the maximum over scales and space by half a step of the grid, where samples miss the most."""
    rows = []
    for scales in (4, 6, 8, 12):
        cells = []
        for reduce in ("max", "peak"):
            change = 0.0
            for seed in range(seeds):
                torch.manual_seed(seed)
                grid = sg.scale2(scales, 3.0)
                lift = sg.LiftingConv(1, 16, 21, grid=grid, kernel=sg.KernelConfig(cutoff=0.4)).double().eval()
                net = nn.Sequential(lift, nn.ReLU(), sg.ScalePool(reduce, grid=grid), sg.GroupPool("max"))
                matrix = torch.eye(2, dtype=torch.float64) * 3.0 ** (0.5 / (scales - 1))
                before, after = net(smooth_image()), net(smooth_image(element=matrix))
                change += ((after - before).norm() / before.norm()).item() / seeds
            cells.append(_show(change))
        rows.append((scales, *cells))
    return "The maximum over scales, half a step", ("scales from 1 to 3", "of the samples", "between them"), rows


@torch.no_grad()
def pyramids(seeds: int = 3) -> Table:
    """One step of the grid, spatial maxima of two layers, by the way in which kernels are widened."""
    rows: list[Sequence[object]] = []
    for scales in (4, 6, 8):
        cells = []
        for pyramid in (False, True):
            total = 0.0
            for seed in range(seeds):
                torch.manual_seed(seed)
                grid = sg.scale2(scales, MAX_SCALE)
                net = _pyramid(grid) if pyramid else _maxima(net_of(grid))
                matrix = torch.eye(2, dtype=torch.float64) * MAX_SCALE ** (1 / (scales - 1))
                before, after = net(smooth_image()), net(smooth_image(element=matrix))
                total += ((after[:, :, 1:] - before[:, :, :-1]).norm() / before[:, :, :-1].norm()).item() / seeds
            cells.append(_show(total))
        rows.append((scales, *cells))
    return "All scales, maximum over space", ("scales", "windows of 15 pixels", "pyramid, windows of 7 pixels"), rows


def _maxima(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda image: net(image).amax((3, 4))


def _pyramid(grid: sg.Grid) -> Callable[[Tensor], Tensor]:
    plain, kernel = sg.translation2(), sg.KernelConfig()
    layers = nn.Sequential(
        sg.LiftingConv(1, 4, 7, grid=plain, kernel=kernel),
        nn.ReLU(),
        sg.GroupConv(4, 4, 7, grid=plain, kernel=kernel),
        nn.ReLU(),
    )
    net = sg.ScalePyramid(layers, grid=grid, padding=6).double().eval()
    return lambda image: net(image).flatten(2)


TABLES: tuple[Callable[[], Table], ...] = (
    layers_and_ends,
    read_and_unread,
    small_kernels,
    borders,
    mixing,
    statistics_by_scale,
    maxima,
    pyramids,
)


def _show(error: float) -> str:
    return f"{error:.1e}"


def _rms(errors: Sequence[float]) -> float:
    return (sum(e * e for e in errors) / max(len(errors), 1)) ** 0.5


def as_markdown(table: Table) -> str:
    """A table with its title."""
    title, head, rows = table
    lines = [f"**{title}**", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""])


if __name__ == "__main__":
    for make in TABLES:
        print(as_markdown(make()), flush=True)
