"""Spectra of images through the compiled kernels, against transforms in float64."""

import pytest
import torch
from torch import Tensor

from sepgconv.execution import native, spectral

UNIT = 2.0**-24
SHAPES = {  # images, y, x, channels, and the periods
    "as in a layer": (3, 28, 28, 32, (32, 32)),
    "odd, not square, a few channels more": (2, 9, 14, 35, (12, 18)),
    "fewer channels than a vector": (2, 6, 5, 3, (10, 8)),
    "less than half of a period": (1, 3, 2, 16, (12, 20)),
    "whole periods": (2, 8, 6, 20, (8, 6)),
    "one pixel": (2, 1, 1, 2, (2, 2)),
    "a line": (1, 1, 40, 33, (2, 72)),
}


def in_float64(rows: Tensor, periods: tuple[int, int]) -> Tensor:
    found = torch.fft.rfft2(rows.double(), s=periods, dim=(1, 2))
    return found.permute(1, 2, 0, 3).flatten(0, 1)


def back_in_float64(spectra: Tensor, periods: tuple[int, int], size: tuple[int, int]) -> Tensor:
    planes = spectra.to(torch.complex128).permute(1, 2, 0).unflatten(2, (periods[0], -1))
    return torch.fft.irfft2(planes, s=periods)[..., : size[0], : size[1]].movedim(1, -1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_there_and_back_are_the_transforms_in_float64(shape, vectors: str) -> None:
    images, y, x, channels, periods = shape
    rows = torch.randn(images, y, x, channels)
    bound = UNIT * (y + x + 4) * rows.double().abs().sum((1, 2))
    found, wanted = native.image_spectra(rows, periods), in_float64(rows, periods)
    assert found.shape == wanted.shape
    assert ((found - wanted).abs() <= bound).all()
    assert torch.equal(native.image_spectra(rows, periods, conjugate=True), found.conj())
    spectra = torch.randn(len(found), images, channels, dtype=torch.complex64)
    pixels, exact = native.spectra_images(spectra, periods, (y, x)), back_in_float64(spectra, periods, (y, x))
    bound = UNIT * (sum(periods) + 4) * 2 * spectra.to(torch.complex128).abs().sum(0) / (periods[0] * periods[1])
    assert pixels.shape == exact.shape
    assert ((pixels - exact).abs() <= bound[:, None, None]).all()


@pytest.mark.usefixtures("kernels")
def test_images_come_back() -> None:
    rows, periods = torch.randn(2, 7, 9, 5), (12, 10)
    assert torch.allclose(native.spectra_images(native.image_spectra(rows, periods), periods, (7, 9)), rows, atol=1e-6)


def test_results_do_not_depend_on_threads(kernels, two_threads: None) -> None:
    rows, spectra = torch.randn(9, 14, 14, 40), torch.randn(180, 9, 40, dtype=torch.complex64)
    found = []
    for threads in (2, 1, 3):
        torch.set_num_threads(threads)
        found.append((native.image_spectra(rows, (18, 18)), native.spectra_images(spectra, (18, 18), (14, 14))))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("kernels")
def test_other_layouts_empty_batches_and_compilers() -> None:
    rows = torch.randn(3, 5, 6, 7)
    expected = native.image_spectra(rows, (8, 8))
    assert torch.equal(native.image_spectra(rows.movedim(-1, 1).contiguous().movedim(1, -1), (8, 8)), expected)
    images = native.spectra_images(expected.conj(), (8, 8), (5, 6))
    assert torch.equal(images, native.spectra_images(expected.conj().resolve_conj(), (8, 8), (5, 6)))
    assert native.image_spectra(torch.randn(0, 5, 6, 7), (8, 8)).shape == (40, 0, 7)
    assert native.spectra_images(expected[:, :0], (8, 8), (5, 6)).shape == (0, 5, 6, 7)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.sepgconv.image_spectra.default, (rows, [8, 8], False), test_utils=checks)
    torch.library.opcheck(torch.ops.sepgconv.spectra_images.default, (expected, [8, 8], [5, 6]), test_utils=checks)


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    rows, spectra = torch.randn(1, 5, 6, 2), torch.randn(40, 1, 2, dtype=torch.complex64)
    for periods in ((4, 8), (8, 7), (7, 8)):
        with pytest.raises(ValueError, match=r"image_spectra: rows \(1, 5, 6, 2\) and periods .* do not fit"):
            native.image_spectra(rows, periods)
    for periods, size in (((8, 6), (5, 6)), ((8, 8), (9, 6)), ((8, 8), (5, 0))):
        with pytest.raises(ValueError, match=r"spectra_images: spectra \(40, 1, 2\), periods .* do not fit"):
            native.spectra_images(spectra, periods, size)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("longest", [0, spectral.LONGEST])
def test_convolutions_and_gradients_are_those_in_float64(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's transforms and with compiled ones."""
    monkeypatch.setattr(spectral, "LONGEST", longest)
    spectral.waves.cache_clear()
    rows, weight, slope = torch.randn(5, 11, 9, 20), torch.randn(18, 25, 20), torch.randn(5, 11, 9, 18)

    def run(*tensors: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors[:2]]
        result = spectral.convolve(*leaves, 2)
        return [result.detach(), *torch.autograd.grad(result, leaves, tensors[2])]

    for found, wanted in zip(run(rows, weight, slope), run(*(t.double() for t in (rows, weight, slope))), strict=True):
        assert (found - wanted).norm() <= 5e-7 * wanted.norm()
    spectral.waves.cache_clear()


@pytest.mark.usefixtures("kernels")
def test_compiled_transforms_pay_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    def pays(channels: int) -> bool:
        return spectral.pays(torch.empty(64, 28, 28, channels), torch.empty(channels, 49, channels), 3)

    assert pays(16)
    assert not pays(8)
    monkeypatch.setattr(spectral, "applies", lambda *_: False)
    assert pays(32)
    assert not pays(16)
