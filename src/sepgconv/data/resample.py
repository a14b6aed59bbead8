"""Turning, scaling and bending batches of images about their centre, zero outside."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Mode = Literal["bicubic", "bilinear", "spline"]
MODES: tuple[Mode, ...] = ("bicubic", "bilinear", "spline")
SPLINE_RIM = 10  # pixels by which a spline is continued beyond an image, where it has fallen to 2e-6


def rotate(images: Tensor, degrees: float | Tensor, mode: Mode = "bicubic") -> Tensor:
    """Turn each image counter-clockwise, as displayed, about its centre ((y-1)/2, (x-1)/2).

    `rotate(images, 90)` is `torch.rot90(images, 1, (-2, -1))`: multiples of 90° (of 180° if the images
    are not square) only move pixels and are exact. Other angles read the image between its pixels.

    Args:
        images: floats.
        degrees: one angle for all, or one for each image.
        mode: `"bicubic"`, `"bilinear"`, or `"spline"`, which blurs least.

    Shapes:
        images `(b, c, y, x)`, degrees `()` or `(b,)`; returns `(b, c, y, x)`.
    """
    _check_images(images)
    _check_mode(mode)
    angles = _per_image(images, degrees, "degrees").remainder(360)
    square = images.shape[-1] == images.shape[-2]
    quarters = torch.where(angles.remainder(90 if square else 180) == 0, angles / 90, -1.0)
    if (quarters >= 0).all():
        turned = torch.empty_like(images)
    else:
        turned = _sample(images, *_turned_places(angles, *images.shape[-2:]), mode)
    for k in range(4):
        exact = quarters == k
        if exact.any():
            turned[exact] = torch.rot90(images[exact], k, (-2, -1))
    return turned


def warp(
    images: Tensor, degrees: float | Tensor, factors: float | Tensor, offsets: Tensor, mode: Mode = "bicubic"
) -> Tensor:
    """Turn and scale each image about its centre and move its pixels, reading it once; zero outside.

    The same in steps would read what was read between pixels before, and blur it each time. Nothing is averaged where
    an image shrinks, so factors far below 1 alias; `scale` is for these.

    Args:
        images: floats.
        degrees: as in `rotate`.
        factors: as in `scale`.
        offsets: how far from there, in pixels down and to the right, each pixel of the result is read.
        mode: as in `rotate`.

    Shapes:
        images `(b, c, y, x)`, degrees and factors `()` or `(b,)`, offsets `(b, 2, y, x)`; returns `(b, c, y, x)`.
    """
    _check_images(images)
    _check_mode(mode)
    angles, sizes = _per_image(images, degrees, "degrees"), _positive(images, factors)
    wanted = (len(images), 2, *images.shape[-2:])
    if offsets.shape != wanted:
        raise ValueError(f"offsets must be (b, 2, y, x), here {wanted}, got {tuple(offsets.shape)}")
    y, x = _turned_places(angles, *images.shape[-2:], stretch=1 / sizes)
    return _sample(images, y + offsets[:, 0], x + offsets[:, 1], mode)


def _turned_places(angles: Tensor, height: int, width: int, stretch: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """Where each output pixel lies in the input, times `stretch`: y, which points down, and x, each `(b, y, x)`."""
    y = torch.arange(height, dtype=angles.dtype, device=angles.device) - (height - 1) / 2
    x = torch.arange(width, dtype=angles.dtype, device=angles.device) - (width - 1) / 2
    dy, dx = torch.meshgrid(y, x, indexing="ij")
    cos, sin = ((stretch * f(angles.deg2rad()))[:, None, None] for f in (torch.cos, torch.sin))
    return dx * sin + dy * cos + (height - 1) / 2, dx * cos - dy * sin + (width - 1) / 2


def _sample(images: Tensor, y: Tensor, x: Tensor, mode: Mode) -> Tensor:
    """Read images between their pixels, at places `(b, y, x)`.

    Not `F.grid_sample`: its cubic kernel has a = -0.75, which ripples on a plain slope, where a = -0.5
    is exact; turning a smooth image there and back leaves an eighth of the error.
    """
    height, width = images.shape[-2:]
    if mode == "spline":
        kernel, taps, rim = bspline, 4, SPLINE_RIM
        padded = _spline_coefficients(F.pad(images, [rim] * 4))
    else:
        kernel, taps = (_cubic, 4) if mode == "bicubic" else (_hat, 2)
        rim = taps  # places further out read nothing but zeros, so they may as well be at that distance
        padded = F.pad(images, [rim] * 4)
    padded, stride = padded.flatten(2), width + 2 * rim
    first_row, first_column = y.floor() + 1 - taps // 2, x.floor() + 1 - taps // 2
    row_weights, column_weights = (
        [kernel(step - offset) for step in range(taps)]
        for offset in ((y - first_row).to(images)[:, None], (x - first_column).to(images)[:, None])
    )
    last_row, last_column = height + rim - taps, width + rim - taps
    corner = (first_row.clamp(-rim, last_row) + rim) * stride + first_column.clamp(-rim, last_column) + rim
    index = corner.long().flatten(1)[:, None].expand(-1, images.shape[1], -1)
    result = torch.zeros_like(images)
    for row, row_weight in enumerate(row_weights):
        line = torch.zeros_like(images)
        for column, column_weight in enumerate(column_weights):
            shifted = padded[..., row * stride + column :]
            line = line.addcmul(shifted.gather(2, index).view_as(images), column_weight)
        result = result.addcmul(line, row_weight)
    return result


def _spline_coefficients(images: Tensor) -> Tensor:
    """Coefficients of the cubic B-spline through an image's pixels: 1, 4 and 1 sixths of three make up a pixel."""
    for axis in (-2, -1):
        n = images.shape[axis]
        lines = torch.ones(n, dtype=torch.float64, device=images.device)
        through = torch.diag(lines * 4 / 6) + torch.diag(lines[1:] / 6, 1) + torch.diag(lines[1:] / 6, -1)
        images = (images.movedim(axis, -1) @ through.inverse().to(images)).movedim(-1, axis)
    return images


def scale(images: Tensor, factors: float | Tensor) -> Tensor:
    """Scale each image about its centre, keeping the size of the canvas: bicubic, zero outside.

    A factor below 1 shrinks the picture and pads it with zeros, one above 1 enlarges and crops it.

    Args:
        images: floats.
        factors: one factor for all, or one for each image; positive.

    Shapes:
        images `(b, c, y, x)`, factors `()` or `(b,)`; returns `(b, c, y, x)`.
    """
    _check_images(images)
    sizes = _positive(images, factors)
    rows, columns = (_resampling(sizes, n).to(images)[:, None] for n in images.shape[-2:])
    return rows @ images @ columns.mT


def _resampling(factors: Tensor, n: int) -> Tensor:
    """The matrix `(b, n, n)` that scales a line of n pixels: output i reads the input at (i-m)/s + m.

    Shrinking must average what it drops, or thin strokes alias and vanish; so the cubic kernel is
    widened by 1/s, as Pillow and `F.interpolate(antialias=True)` do. It is one matrix per image, so
    a batch of different factors is two matrix products and not a loop.
    """
    s = factors[:, None, None]
    shrink = s.clamp(max=1)
    pixels = torch.arange(n, dtype=s.dtype, device=s.device)
    middle = (n - 1) / 2
    centres = (pixels[:, None] - middle) / s + middle
    # A line's weights sum to 1 over all pixels, those beyond the border included: they are zeros.
    reach = int((2 / shrink.min()).ceil())
    around = centres.floor() + torch.arange(-reach, reach + 1, dtype=s.dtype, device=s.device)
    total = _cubic((around - centres) * shrink).sum(-1, keepdim=True)
    return _cubic((pixels - centres) * shrink) / total


def _cubic(t: Tensor, a: float = -0.5) -> Tensor:
    """Keys' cubic kernel, nonzero on (-2, 2)."""
    t = t.abs()
    near, far = t.clamp(max=1), t.clamp(1, 2)  # each piece is 0 at its ends beyond, so the two add up
    return ((a + 2) * near - (a + 3)) * near * near + 1 + (((far - 5) * far + 8) * far - 4) * a


def _hat(t: Tensor) -> Tensor:
    """The kernel of linear interpolation, nonzero on (-1, 1)."""
    return (1 - t.abs()).clamp(min=0)


def bspline(t: Tensor) -> Tensor:
    """The cubic B-spline, nonzero on (-2, 2)."""
    t = t.abs()
    return (2 - t).clamp(min=0) ** 3 / 6 - (1 - t).clamp(min=0) ** 3 * 4 / 6


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")


def _check_images(images: Tensor) -> None:
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be a floating point tensor (b, c, y, x), got {images.dtype} of shape {tuple(images.shape)}"
        )


def _positive(images: Tensor, factors: float | Tensor) -> Tensor:
    """One positive number per image."""
    sizes = _per_image(images, factors, "factors")
    if not (sizes > 0).all():
        raise ValueError(f"factors must be positive, got {sizes.min().item():g}")
    return sizes


def _per_image(images: Tensor, value: float | Tensor, name: str) -> Tensor:
    """One float64 number per image: angles and places keep their accuracy in half precision too."""
    values = torch.as_tensor(value, dtype=torch.float64, device=images.device)
    if values.dim() > 1 or values.numel() not in (1, len(images)):
        raise ValueError(
            f"{name} must be one number or one for each of the {len(images)} images, got shape {tuple(values.shape)}"
        )
    if not values.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values[~values.isfinite()].tolist()[0]}")
    return values.expand(len(images))
