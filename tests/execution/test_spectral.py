"""Convolutions by way of spectra are those tap by tap."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import sepgconv as sg
from sepgconv.execution import spectral
from sepgconv.testing import equivariance_error

CASES = {
    "same": (3, 12, 12, 5, 2),
    "valid": (3, 12, 12, 5, 0),
    "more padding than taps": (2, 7, 7, 3, 4),
    "odd, not square": (2, 9, 14, 7, 3),
    "one tap": (2, 5, 6, 1, 0),
    "a kernel as large as the image": (2, 5, 5, 5, 0),
    "a kernel larger than the image": (2, 3, 4, 5, 2),
}


def drawn(images: int, y: int, x: int, side: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    rows = torch.randn(images, y, x, 3, dtype=dtype, requires_grad=True)
    return rows, torch.randn(4, side * side, 3, dtype=dtype, requires_grad=True)


def tap_by_tap(rows: Tensor, weight: Tensor, padding: int) -> Tensor:
    side = round(weight.shape[1] ** 0.5)
    kernel = weight.unflatten(1, (side, side)).movedim(-1, 1)
    return F.conv2d(rows.movedim(-1, 1), kernel, padding=padding).movedim(1, -1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_and_gradients_are_those_tap_by_tap(case):
    *sizes, padding = case
    rows, weight = drawn(*sizes)
    expected, found = tap_by_tap(rows, weight, padding), spectral.convolve(rows, weight, padding)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    slope = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (rows, weight), slope),
        torch.autograd.grad(expected, (rows, weight), slope),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_first_and_second_derivatives():
    rows, weight = drawn(2, 4, 5, 3)
    assert torch.autograd.gradcheck(lambda r, w: spectral.convolve(r, w, 1), (rows, weight))
    assert torch.autograd.gradgradcheck(lambda r, w: spectral.convolve(r, w, 1), (rows, weight))


def test_gradients_of_one_side_only():
    rows, weight = drawn(2, 6, 6, 3)
    for one, other in ((rows, weight.detach()), (weight, rows.detach())):
        sides = (one, other) if one is rows else (other, one)
        (ours,) = torch.autograd.grad(spectral.convolve(*sides, 1).sum(), one)
        (theirs,) = torch.autograd.grad(tap_by_tap(*sides, 1).sum(), one)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "numbers"), [("IMAGES", 2 * 8 * 5 * 4), ("KERNELS", 7 * 3 * 4)])  # 2 images, 7 waves
def test_images_and_frequencies_may_be_taken_a_few_at_a_time(name, numbers, monkeypatch):
    rows, weight = drawn(5, 6, 6, 3)
    whole = spectral.convolve(rows, weight, 1)
    grads = torch.autograd.grad(whole.square().sum(), (rows, weight))
    monkeypatch.setattr(spectral, name, numbers)
    parts = spectral.convolve(rows, weight, 1)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-13)
    for ours, theirs in zip(torch.autograd.grad(parts.square().sum(), (rows, weight)), grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_single_precision_rounds_no_more_than_tap_by_tap():
    """With as many terms as a layer has, against float64."""
    torch.manual_seed(0)
    rows, weight = torch.randn(4, 28, 28, 64), torch.randn(64, 49, 64)
    exact = tap_by_tap(rows.double(), weight.double(), 3)
    error = (spectral.convolve(rows, weight, 3) - exact).norm() / exact.norm()
    plain = (tap_by_tap(rows, weight, 3) - exact).norm() / exact.norm()
    assert error < 5e-7
    assert error < plain


@pytest.mark.parametrize(("length", "expected"), [(1, 2), (8, 8), (17, 18), (28, 30), (31, 32), (37, 40), (67, 72)])
def test_periods_are_what_transforms_like(length, expected):
    assert spectral.period(length) == expected


def test_it_is_left_to_what_pays_and_to_those_who_know_complex_numbers():
    def pays(images=64, channels=64, side=7, dtype=torch.float32) -> bool:
        rows, weight = torch.empty(images, 28, 28, channels, dtype=dtype), torch.empty(channels, side**2, channels)
        return spectral.pays(rows, weight.to(dtype), side // 2)

    assert pays()
    assert pays(dtype=torch.float64)
    assert not pays(images=1)
    assert not pays(channels=8)
    assert not pays(side=3)
    assert not pays(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert not pays()
    assert not torch.func.vmap(lambda _: torch.tensor(pays()))(torch.zeros(2)).any()
    assert not spectral.pays(torch.empty(64, 28, 28, 64, device="meta"), torch.empty(64, 49, 64, device="meta"), 3)


@pytest.mark.parametrize("grid", [sg.se2(4), sg.e2(4), sg.sim2(4, 2)], ids=str)
def test_a_layer_is_the_same_and_as_equivariant(grid, monkeypatch):
    torch.manual_seed(0)
    layer = sg.GroupConv(3, 4, 5, grid=grid, factorisation="nonseparable").double().eval()
    features = torch.randn(2, 3, grid.size, 11, 11, dtype=torch.float64)
    expected = layer(features)
    monkeypatch.setattr(spectral, "pays", lambda *_: True)
    torch.testing.assert_close(layer(features), expected, rtol=0, atol=1e-12)
    found = equivariance_error(layer, features, grid=grid, angles=[90.0, 180.0])
    assert len(found.exact) == 2
    assert max(entry.error for entry in found) < 1e-12
