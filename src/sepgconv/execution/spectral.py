"""Dense convolutions over the plane by way of their spectra: a product of matrices per frequency, not one per tap.

On images of n×n pixels a kernel of 7×7 taps takes 49·n² products of channels with channels. Its spectrum takes n²/2
complex ones, a twelfth of the multiply-adds, and the transforms cost as much again. Sums are short, so that results
round less than those of a convolution tap by tap. All operations are torch's own, but for compiled transforms where
these are to be had.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from sepgconv.execution.native import ORDINARY, applies, image_spectra, in_transform, spectra_images

IMAGES, KERNELS = 1 << 23, 1 << 22
"""Numbers in the spectra of images and of kernels that are held at a time; other images and frequencies come later."""
DIRECT, PRODUCTS, TABLE, FILL, TRANSFORM = 0.0175, 0.13, 0.04, 1.0, 5.0
"""Nanoseconds: of a multiply-add tap by tap, of a complex one, of one in the table of waves, of writing a number of a
kernel's spectrum, of transforming a pixel there or back. On one AVX-512 core; only their ratios matter."""
COMPILED, PER_POINT, CHANNELS, LONGEST = 1.5, 0.018, 16, 192
"""Of compiled transforms: nanoseconds a pixel, and more for every point of a line; how many channels they take at a
time; how many points a line may have before torch's own are faster. Fitted to an AVX2 core, in the same unit."""


def pays(rows: Tensor, weight: Float[Tensor, "out k in"], padding: int) -> bool:
    """Whether spectra are the faster way, and nobody looks at what is computed who does not know complex numbers."""
    if torch.compiler.is_compiling() or not torch.backends.mkl.is_available() or rows.ndim != 4:
        return False
    ordinary = all(type(t) in ORDINARY and t.device.type == "cpu" for t in (rows, weight))
    if not ordinary or rows.dtype != weight.dtype or rows.dtype not in (torch.float32, torch.float64):
        return False
    if in_transform() or torch.is_autocast_enabled("cpu"):
        return False
    (images, *size, ins), (outs, taps, _) = rows.shape, weight.shape
    results, periods = extents(size, math.isqrt(taps), padding)
    direct = DIRECT * images * math.prod(results) * taps * ins * outs
    mixing = periods[0] * (periods[1] // 2 + 1) * ins * outs * (PRODUCTS * images + TABLE * taps + FILL)
    channels, transform = ins + outs, TRANSFORM
    if max(periods) <= LONGEST and applies(rows):
        channels = sum(math.ceil(c / CHANNELS) * CHANNELS for c in (ins, outs))
        transform = COMPILED + PER_POINT * max(periods)
    return mixing + transform * math.prod(periods) * images * channels < direct


def convolve(rows: Float[Tensor, "b y x in"], weight: Float[Tensor, "out k in"], padding: int) -> Tensor:
    """A convolution of stride 1, `b y x in -> b y x out`, padded with zeros."""
    return _Convolution.apply(rows, weight, padding)


def period(length: int) -> int:
    """The least even number of no other factors than 2, 3 and 5, which transforms like, that is at least a length."""
    found = length + length % 2
    while 30**12 % found:
        found += 2
    return found


def extents(size: Sequence[int], side: int, padding: int) -> tuple[list[int], list[int]]:
    """The size of a result, and the periods of its waves.

    A period holds the result, and an image with the padding of one side: what comes round from the other is zero.
    """
    results = [length + 2 * padding - side + 1 for length in size]
    return results, [period(max(n + padding, out)) for n, out in zip(size, results, strict=True)]


class Waves:
    """The plane waves that images of a size are made of.

    Args:
        size: height and width of the images.
        side: taps of a kernel in one direction.
        padding: zeros on all sides of an image.
    """

    def __init__(self, size: tuple[int, int], side: int, padding: int, dtype: torch.dtype) -> None:
        self.size, (self.out, self.periods) = size, extents(size, side, padding)
        self.half = self.periods[1] // 2 + 1  # the others are their conjugates
        self.short = max(self.periods) <= LONGEST
        taps, down, across = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (side, *self.periods))
        down, across = (torch.outer(line / len(line), taps - padding) for line in (down, across))
        phases = 2 * math.pi * (down[:, None, :, None] + across[None, : self.half, None, :]).flatten(0, 1).flatten(1)
        self.cosines, self.sines = phases.cos().to(dtype), phases.sin().to(dtype)
        counts = torch.full((self.periods[0], self.half), 2.0, dtype=dtype, device="cpu")
        counts[:, [0, -1]] = 1
        self.counts = counts.flatten() / math.prod(self.periods)

    def spectra(self, rows: Float[Tensor, "b y x c"], *, conjugate: bool = False) -> Complex[Tensor, "f b c"]:
        """Of images, or their conjugates: it is nothing to make them so, and a copy to turn them into it."""
        if self.short and applies(rows):
            return image_spectra(rows, self.periods, conjugate=conjugate)
        found = torch.fft.rfft2(rows, s=self.periods, dim=(1, 2)).permute(1, 2, 0, 3)
        found = found.reshape(-1, len(rows), rows.shape[-1])
        return found.conj() if conjugate else found

    def images(self, spectra: Complex[Tensor, "f b c"], size: Sequence[int]) -> Float[Tensor, "b y x c"]:
        """The first pixels of what has these spectra."""
        if self.short and applies() and spectra.dtype == torch.complex64:
            return spectra_images(spectra, self.periods, size)
        planes = spectra.permute(1, 2, 0).contiguous().unflatten(2, (self.periods[0], self.half))
        found = torch.fft.irfft2(planes, s=self.periods)[..., : size[0], : size[1]]
        return found.movedim(1, -1).contiguous()

    def blocks(self, weight: Float[Tensor, "out k in"]) -> Iterator[slice]:
        """The frequencies, so many at a time that a kernel's spectrum stays small."""
        count = max(KERNELS // (weight.shape[0] * weight.shape[2]), 1)
        return (slice(start, start + count) for start in range(0, len(self.cosines), count))

    def kernel_spectrum(
        self, weight: Float[Tensor, "out k in"], at: slice, *, conjugate: bool = True
    ) -> Complex[Tensor, "f in out"]:
        """What the spectra of images are multiplied by: conjugate, since a convolution here is a correlation."""
        taps, sines = weight.permute(1, 2, 0).flatten(1), self.sines[at]
        found = torch.complex(self.cosines[at] @ taps, (sines if conjugate else -sines) @ taps)
        return found.unflatten(1, (weight.shape[2], weight.shape[0]))

    def kernel(self, spectrum: Complex[Tensor, "f in out"], at: slice) -> Float[Tensor, "out k in"]:
        """What a spectrum adds to the taps, as gradients need them: the transpose of `kernel_spectrum`."""
        flat, counts = spectrum.flatten(1), self.counts[at, None]
        taps = (self.cosines[at] * counts).T @ flat.real + (self.sines[at] * counts).T @ flat.imag
        return taps.unflatten(1, spectrum.shape[1:]).permute(2, 0, 1)


@lru_cache(maxsize=32)
def waves(size: tuple[int, int], side: int, padding: int, dtype: torch.dtype) -> Waves:
    """Waves are the same for all layers of a size."""
    with torch.inference_mode(False):
        return Waves(size, side, padding, dtype)


class _Convolution(torch.autograd.Function):
    """Keeps what a convolution keeps, and makes the spectra again for gradients."""

    @staticmethod
    def forward(ctx, rows: Tensor, weight: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.padding = padding
        of = _waves(rows, weight, padding)
        return torch.cat([_forward(of, part, weight) for part in rows.split(_at_once(of, weight))])

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (rows, weight), (grad,) = ctx.saved_tensors, grads
        needs = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # somebody wants second derivatives
            return *_plain_gradients(grad, rows, weight, ctx.padding, *needs), None
        of = _waves(rows, weight, ctx.padding)
        count = _at_once(of, weight)
        parts = zip(rows.split(count), grad.split(count), strict=True)
        of_rows, of_weight = zip(*(_backward(of, slope, part, weight, *needs) for part, slope in parts), strict=True)
        return torch.cat(of_rows) if needs[0] else None, torch.stack(of_weight).sum(0) if needs[1] else None, None


def _forward(of: Waves, rows: Tensor, weight: Tensor) -> Tensor:
    spectra = of.spectra(rows)
    result = spectra.new_empty(*spectra.shape[:2], len(weight))
    for at in of.blocks(weight):
        torch.bmm(spectra[at], of.kernel_spectrum(weight, at), out=result[at])
    return of.images(result, of.out)


def _backward(
    of: Waves, grad: Tensor, rows: Tensor, weight: Tensor, needs_rows: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """The gradients, empty where none is needed."""
    slopes = of.spectra(grad)
    spectra = of.spectra(rows, conjugate=True) if needs_weight else slopes
    result = slopes.new_empty(*slopes.shape[:2], rows.shape[-1]) if needs_rows else slopes
    of_weight = torch.zeros_like(weight) if needs_weight else weight.new_empty(0)
    for at in of.blocks(weight):
        if needs_rows:
            torch.bmm(slopes[at], of.kernel_spectrum(weight.transpose(0, 2), at, conjugate=False), out=result[at])
        if needs_weight:
            of_weight += of.kernel(spectra[at].mT @ slopes[at], at)
    return of.images(result, of.size) if needs_rows else rows.new_empty(0), of_weight


def _waves(rows: Tensor, weight: Tensor, padding: int) -> Waves:
    return waves((rows.shape[1], rows.shape[2]), math.isqrt(weight.shape[1]), padding, rows.dtype)


def _at_once(of: Waves, weight: Tensor) -> int:
    """How many images are transformed at a time."""
    return max(IMAGES // (len(of.cosines) * max(weight.shape[0], weight.shape[2])), 1)


def _plain_gradients(
    grad: Tensor, rows: Tensor, weight: Tensor, padding: int, needs_rows: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Tap by tap, with operations that can be differentiated again."""
    side = math.isqrt(weight.shape[1])
    images, slopes = rows.movedim(-1, 1), grad.movedim(-1, 1)
    kernel = weight.unflatten(1, (side, side)).movedim(-1, 1)
    options = ([1, 1], [padding, padding], [1, 1], False, [0, 0], 1, [needs_rows, needs_weight, False])
    of_rows, of_weight, _ = torch.ops.aten.convolution_backward(slopes, images, kernel, None, *options)
    return (
        of_rows.movedim(1, -1) if needs_rows else None,
        of_weight.movedim(1, -1).flatten(1, 2) if needs_weight else None,
    )
