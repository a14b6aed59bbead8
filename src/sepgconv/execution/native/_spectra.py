"""Spectra of images and back, by products in the cache: `sepgconv::image_spectra` and `spectra_images`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from sepgconv.execution.native import _library
from sepgconv.execution.native._operators import NO_MEMORY, OPERATORS, register


class _Plane(ctypes.Structure):
    """`sepgconv_plane` of native.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("image", "spectrum", "pixels")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "y", "x", "period_y", "period_x", "conjugate")),
    ]


def image_spectra(rows: Tensor, periods: Sequence[int], *, conjugate: bool = False) -> Tensor:
    """`torch.fft.rfft2` of float32 images, filled up with zeros to even periods, or its conjugate.

    It has no gradient, and is for where `applies` says yes.

    Shapes:
        rows `(b, y, x, c)` → `(f, b, c)`, complex; frequencies are those down times half of those across
    """
    return torch.ops.sepgconv.image_spectra.default(rows, list(periods), conjugate)


def spectra_images(spectra: Tensor, periods: Sequence[int], size: Sequence[int]) -> Tensor:
    """The way back, as `torch.fft.irfft2`: the first `size` pixels.

    Shapes:
        spectra `(f, b, c)` → `(b, y, x, c)`
    """
    return torch.ops.sepgconv.spectra_images.default(spectra, list(periods), list(size))


def _spectra(rows: Tensor, periods: Sequence[int], conjugate: bool) -> Tensor:
    """Memory for the spectra; what does not fit together is refused here."""
    b, y, x, c = rows.shape
    if any(p % 2 or p < n for p, n in zip(periods, (y, x), strict=True)) or not c:
        raise ValueError(f"sepgconv::image_spectra: rows {tuple(rows.shape)} and periods {periods} do not fit together")
    return rows.new_empty((periods[0] * (periods[1] // 2 + 1), b, c), dtype=torch.complex64)


def _images(spectra: Tensor, periods: Sequence[int], size: Sequence[int]) -> Tensor:
    """Memory for the images; what does not fit together is refused here."""
    f, b, c = spectra.shape
    fits = f == periods[0] * (periods[1] // 2 + 1) and c > 0
    if not fits or any(p % 2 or not 0 < n <= p for p, n in zip(periods, size, strict=True)):
        shapes = f"spectra {tuple(spectra.shape)}, periods {periods} and size {size}"
        raise ValueError(f"sepgconv::spectra_images: {shapes} do not fit together")
    return spectra.new_empty((b, *size, c), dtype=torch.float32)


def _run_spectra(rows: Tensor, periods: Sequence[int], conjugate: bool) -> Tensor:
    kernels, rows, result = _library.FOUND or _library.needed(), rows.contiguous(), _spectra(rows, periods, conjugate)
    b, y, x, c = rows.shape
    call = _Plane(rows.data_ptr(), result.data_ptr(), None, b, c, y, x, *periods, conjugate)
    if result.numel() and kernels.sepgconv_spectra(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


def _run_images(spectra: Tensor, periods: Sequence[int], size: Sequence[int]) -> Tensor:
    kernels, spectra = _library.FOUND or _library.needed(), spectra.resolve_conj().contiguous()
    result = _images(spectra, periods, size)
    call = _Plane(None, spectra.data_ptr(), result.data_ptr(), *spectra.shape[1:], *size, *periods, 0)
    if result.numel() and kernels.sepgconv_spectra_back(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(NO_MEMORY)
    return result


OPERATORS.define("image_spectra(Tensor rows, int[] periods, bool conjugate) -> Tensor")
OPERATORS.define("spectra_images(Tensor spectra, int[] periods, int[] size) -> Tensor")
register("image_spectra", _run_spectra, _spectra)
register("spectra_images", _run_images, _images)
