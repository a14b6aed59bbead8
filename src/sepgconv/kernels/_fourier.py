"""Kernels in a basis with a cut-off: waves in a ball of which hardly anything lies above a frequency."""

import itertools
import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from sepgconv.groups import Coordinate
from sepgconv.kernels._networks import PARAMETRISATIONS, KernelConfig
from sepgconv.kernels._parametrisation import Domain, Parametrisation
from sepgconv.kernels._window import ball

ABOVE = 0.008
"""Share of a kernel's energy that may lie above the cut-off, as measured on a lattice: less than 0.01 in truth."""
CUTOFF = 0.4
"""Cycles per pixel, if none are asked for."""
HARMONICS = 3
"""The highest frequency along a circle of H, and one less than the number of waves along a line."""
FINE = {1: 8, 2: 4, 3: 3}
"""Samples per pixel on which energies are measured, by the dimension of space."""


class FourierBasis(Parametrisation):
    """Linear combinations of waves in space, times harmonics along H; linear in all that is learnt.

    Nothing with a compact support is free of high frequencies. But among the combinations of waves below the cut-off,
    window included, some have less energy above it than others. These are the eigenvectors of both energies together
    (Slepian's problem on a ball); those with at most a hundredth above span the basis, and so has every kernel in it.
    """

    def __init__(self, domain: Domain, out_features: int, config: KernelConfig) -> None:
        waves, mixing = (), ((1.0,),)
        if domain.space and domain.radius:
            waves, mixing = band_limited(domain.space, domain.radius, domain.edge, config.cutoff or CUTOFF)
        along = math.prod(_width(coordinate) for coordinate in domain.coordinates)
        super().__init__(domain.columns, out_features)
        self.domain, self.waves, self.mixing = domain, waves, mixing
        self.read_out(len(mixing) * along, bias=False)  # a learnt constant would not stay below the cut-off

    def features(self, coordinates: Float[Tensor, "rows n"]) -> Float[Tensor, "rows units"]:
        """Products of what each coordinate has."""
        sizes = [self.domain.space, *(coordinate.columns for coordinate in self.domain.coordinates)]
        place, *others = coordinates.split(sizes, -1)
        directions = place.new_tensor(self.waves).reshape(len(self.waves), self.domain.space)
        units = _waves(place, directions) @ place.new_tensor(self.mixing).t()
        for coordinate, columns in zip(self.domain.coordinates, others, strict=True):
            units = (units[:, :, None] * _along(coordinate, columns)[:, None, :]).flatten(1)
        return units


def _waves(place: Float[Tensor, "rows d"], directions: Float[Tensor, "m d"]) -> Float[Tensor, "rows n"]:
    """1, and the cosine and sine of every wave; directions count periods per unit of the coordinates."""
    phase = 2 * math.pi * place @ directions.t()
    return torch.cat([place.new_ones(len(place), 1), phase.cos(), phase.sin()], -1)


def _width(coordinate: Coordinate) -> int:
    if coordinate.columns > 1:
        return 1 + coordinate.columns + coordinate.columns * (coordinate.columns + 1) // 2
    return 2 * HARMONICS + 1 if coordinate.period else HARMONICS + 1


def _along(coordinate: Coordinate, columns: Float[Tensor, "rows c"]) -> Float[Tensor, "rows n"]:
    """Harmonics on a circle, waves with a level end on a line, polynomials of degree 2 of several columns."""
    one = torch.ones_like(columns[:, :1])
    if coordinate.columns > 1:
        pairs = [columns[:, a : a + 1] * columns[:, a:] for a in range(coordinate.columns)]
        return torch.cat([one, columns, *pairs], -1)
    orders = torch.arange(1, HARMONICS + 1, device=columns.device, dtype=columns.dtype)
    if coordinate.period:
        return torch.cat([one, (math.pi * columns * orders).cos(), (math.pi * columns * orders).sin()], -1)
    return torch.cat([one, (math.pi / 2 * (columns + 1) * orders).cos()], -1)


@cache
def band_limited(
    space: int, radius: float, edge: float, cutoff: float
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Waves in the ball, and the combinations of them that stay below the cut-off when the window is multiplied in.

    Args:
        space: dimension of space.
        radius: where the window ends, in pixels.
        edge: width of its edge, relative to the radius.
        cutoff: in cycles per pixel.

    Returns:
        The waves' directions in periods per radius, and one combination a row. Plain numbers, as all that is kept for
        the whole process.
    """
    with torch.device("cpu"):
        steps = math.ceil(2 * cutoff * radius)
        line = [n / 2 for n in range(-steps, steps + 1)]  # periods per radius, two to the width of the ball and more
        lattice = [
            f for f in itertools.product(line, repeat=space) if math.hypot(*f) <= cutoff * radius and f > (0.0,) * space
        ]
        fine = FINE[space]
        count = (3 if space < 3 else 2) * math.ceil(2 * radius * fine)  # so that frequencies lie dense enough
        places = (torch.arange(count, dtype=torch.float64) - count / 2) / (fine * radius)
        grid = torch.stack(torch.meshgrid(*[places] * space, indexing="ij"), -1).reshape(-1, space)
        inside = grid.norm(dim=-1) < 1
        values = torch.zeros(len(grid), 2 * len(lattice) + 1, dtype=torch.float64)
        directions = torch.tensor(lattice, dtype=torch.float64).reshape(-1, space)
        values[inside] = _waves(grid[inside], directions) * ball(grid[inside].norm(dim=-1), edge)[:, None]
        spectrum = torch.fft.fftn(values.t().reshape(-1, *[count] * space), dim=list(range(1, space + 1))).flatten(1)
        frequencies = torch.fft.fftfreq(count, 1 / fine, dtype=torch.float64)
        above = torch.stack(torch.meshgrid(*[frequencies] * space, indexing="ij"), -1).norm(dim=-1).flatten() > cutoff
        energies = [(part @ part.mH).real for part in (spectrum, spectrum[:, above])]
        scale, vectors = torch.linalg.eigh(energies[0])
        kept = scale > 1e-9 * scale[-1]  # waves that are nearly combinations of the others are left out
        white = vectors[:, kept] / scale[kept].sqrt()
        shares, mixed = torch.linalg.eigh(white.t() @ energies[1] @ white)
        found = (white @ mixed)[:, shares <= ABOVE]
    if not found.shape[1]:
        raise ValueError(
            f"cutoff={cutoff:g} cycles per pixel is too low for a window of radius {radius:g} pixels: all functions on "
            f"it have at least {100 * shares[0].item():.1f} % of their energy above; take a larger kernel or cutoff"
        )
    return tuple(lattice), tuple(map(tuple, (found / found.norm(dim=0)).t().tolist()))


PARAMETRISATIONS["fourier"] = FourierBasis
