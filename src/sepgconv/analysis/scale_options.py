"""What helps against losing a dilation, and by how much: one table for each remedy, on networks as they are drawn.

`sepgconv.analysis.scale` finds the causes. The tables here are printed by `python -m sepgconv.analysis.scale_options`.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

import sepgconv as sg
from sepgconv.actions import transform_space
from sepgconv.analysis.equivariance import OMEGAS, smooth_image, two_layers
from sepgconv.analysis.scale import MAX_SCALE, Table, as_markdown
from sepgconv.groups import SO2
from sepgconv.testing import relative

MAKERS = {"scale2": lambda n: sg.scale2(n, MAX_SCALE), "sim2": lambda n: sg.sim2(4, n, MAX_SCALE)}
WINDOW = 15


def _step(scales: int) -> Tensor:
    return torch.eye(2, dtype=torch.float64) * MAX_SCALE ** (1 / (scales - 1))


def _by_scale(features: Tensor, scales: int) -> Tensor:
    """Features with an axis of scales behind that of the other elements."""
    return features.unflatten(2, (-1, scales))


@torch.no_grad()
def read_error(group: str, scales: int, omega0: float, margin: int, cutoff: float | None, seeds: int = 3) -> float:
    """Relative error of two layers for one step of the grid, over the scales that a margin leaves at both ends."""
    total = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        net = two_layers(MAKERS[group](scales), omega0, size=WINDOW, cutoff=cutoff)
        before, after = (_by_scale(net(smooth_image(element=m)), scales) for m in (torch.eye(2), _step(scales)))
        wanted = transform_space(before.flatten(2, 3), _step(scales)).reshape(before.shape)
        read = slice(margin, scales - 1 - margin)  # whose place is read before the step, and the next one after it
        total += relative(after[:, :, :, 1:][:, :, :, read], wanted[:, :, :, read]) / seeds
    return total


def scales_read() -> Table:
    """By group, ω₀ and number of scales: all of them, those with neighbours on both sides, and with a cut-off."""
    rows = []
    for group in MAKERS:
        for omega0 in OMEGAS:
            for scales in (6, 12):
                cells = [read_error(group, scales, omega0, *case) for case in ((0, None), (1, None), (1, 0.4))]
                rows.append((group, f"{omega0:g}", scales, *map(_show, cells)))
    head = ("group", "ω₀", "scales", "all", "one at each end unread", "and a cut-off of 0.4")
    return "Scales that are read, by group and ω₀", head, rows


ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda own, end: torch.zeros_like(own),
    "half of the end": lambda own, end: end / 2,
    "the end again": lambda own, end: end,
    "computed, not read": lambda own, end: own,
}
"""What a convolution finds beyond the last scale that is read, made of what is there and of that last scale."""


@torch.no_grad()
def end_errors(
    beyond: Callable[[Tensor, Tensor], Tensor], cutoff: float | None, scales: int = 6, seeds: int = 3
) -> tuple[float, float]:
    """Relative error for one step of the grid, over all scales that are read and over all but the last ones."""
    errors = torch.zeros(2, dtype=torch.float64)
    for seed in range(seeds):
        torch.manual_seed(seed)
        net = two_layers(sg.scale2(scales + 2, MAX_SCALE), 10.0, size=WINDOW, cutoff=cutoff)

        def run(image: Tensor, net: nn.Sequential = net) -> Tensor:
            lifted = net[:2](image)
            first, last = lifted[:, :, :2].unbind(2), lifted[:, :, -2:].unbind(2)
            low, high = beyond(*first), beyond(*reversed(last))
            ends = torch.cat([low.unsqueeze(2), lifted[:, :, 1:-1], high.unsqueeze(2)], 2)
            return net[2:](ends)[:, :, 1:-1]

        matrix = _step(scales + 2)
        found = run(smooth_image(element=matrix))[:, :, 1:]
        wanted = transform_space(run(smooth_image()), matrix)[:, :, :-1]
        pairs = ((found, wanted), (found[:, :, 1:-1], wanted[:, :, 1:-1]))
        errors += torch.tensor([relative(*pair) for pair in pairs], dtype=torch.float64) / seeds
    return errors[0].item(), errors[1].item()


def beyond_the_ends() -> Table:
    """The band's end cut off, tapered, replicated, or computed and left unread."""
    rows = []
    for name, beyond in ENDS.items():
        cells = [error for cutoff in (None, 0.4) for error in end_errors(beyond, cutoff)]
        rows.append((name, *map(_show, cells)))
    head = ("beyond the ends", "all that are read", "without the last", "cut-off 0.4: all", "without the last")
    return "What a convolution finds beyond the ends", head, rows


@torch.no_grad()
def depth_error(depth: int, margin: int, *, copied: bool, scales: int = 8, seeds: int = 3) -> float:
    """Relative error of several group convolutions for one step of the grid, with a margin of scales unread."""
    total = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        grid, kernel = sg.scale2(scales, MAX_SCALE), sg.KernelConfig(cutoff=0.4)
        layers: list[nn.Module] = [sg.LiftingConv(1, 4, WINDOW, grid=grid, kernel=kernel), nn.ReLU()]
        for _ in range(depth):
            layers += [sg.ScalePool("copy", grid=grid, margin=1)] if copied else []
            layers += [sg.GroupConv(4, 4, WINDOW, grid=grid, kernel=kernel), nn.ReLU()]
        net = nn.Sequential(*layers).double().eval()
        matrix = _step(scales)
        read = slice(margin, scales - 1 - margin)
        found = net(smooth_image(49, matrix))[:, :, 1:][:, :, read]
        wanted = transform_space(net(smooth_image(49)), matrix)[:, :, :-1][:, :, read]
        total += relative(found, wanted, disc=0.5) / seeds
    return total


def ends_and_depth() -> Table:
    """By number of group convolutions: one scale at each end unread, with ends copied before each, one per layer."""
    rows = []
    for depth in (1, 2, 3):
        cases = ((0, False), (1, False), (1, True), (depth, False))
        rows.append((depth, *(_show(depth_error(depth, margin, copied=copied)) for margin, copied in cases)))
    head = ("group convolutions", "all", "one unread", "one unread, ends copied", "as many unread as convolutions")
    return "Ends, layer after layer", head, rows


def _turn(degrees: float) -> Tensor:
    return SO2(2).matrix(torch.tensor([math.radians(degrees)], dtype=torch.float64))


@torch.no_grad()
def border_errors(ground: float, seeds: int = 3, scales: int = 6, pictures: int = 9) -> list[float]:
    """Change of the maximum over space by one step of the grid, relative to how much it varies between pictures.

    Of all pixels, of those without half a window at the border, and of all where the image goes on beyond it.
    """
    errors, reach = torch.zeros(3, dtype=torch.float64), WINDOW // 2
    for seed in range(seeds):
        torch.manual_seed(seed)
        net = two_layers(sg.scale2(scales, MAX_SCALE), 10.0, size=WINDOW, cutoff=0.4)
        found = []
        for matrix in (torch.eye(2).double(), _step(scales)):
            images = ground + torch.cat(
                [smooth_image(element=matrix @ _turn(angle)) for angle in range(0, 360, 360 // pictures)]
            )
            features = net(images)
            further = net(nn.functional.pad(images, (2 * reach,) * 4, mode="replicate"))
            inner, whole = (slice(n, -n) for n in (reach, 2 * reach))
            pieces = (features, features[..., inner, inner], further[..., whole, whole])
            found.append([piece.amax((3, 4)) for piece in pieces])
        for case, (before, after) in enumerate(zip(*found, strict=True)):
            wanted, moved = before[:, :, 1:-2], after[:, :, 2:-1]
            errors[case] += (moved - wanted).norm() / (wanted - wanted.mean(0)).norm() / seeds
    return errors.tolist()


def what_the_border_spoils() -> Table:
    """Maxima over space, with half a window at the border, without it, and of an image that goes on."""
    rows = [(f"{ground:g}", *map(_show, border_errors(ground))) for ground in (0.0, 0.3, 1.0)]
    return "Maxima and the border", ("ground", "zeros beyond", "not read at the border", "the image goes on"), rows


def _show(error: float) -> str:
    return f"{error:.1e}"


TABLES: Iterable[Callable[[], Table]] = (scales_read, beyond_the_ends, ends_and_depth, what_the_border_spoils)

if __name__ == "__main__":
    for make in TABLES:
        print(as_markdown(make()), flush=True)
