"""Band-limited kernels: smooth, and bit for bit the same under quarter turns."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.kernels import GroupKernel, KernelConfig, multiply, resolve
from sepgconv.kernels._initialisation import power_spectrum

CUT = KernelConfig(hidden=16, layers=1, cutoff=0.3)


def kernel(
    grid: sg.Grid, factorisation: object = "separable", size: int = 7, config: KernelConfig = CUT
) -> GroupKernel:
    factors = resolve(factorisation, grid)  # pyright: ignore[reportArgumentType]
    return GroupKernel((2, 3), size, factors=factors, config=config, grid=grid, source=grid)


def sampled(kernel: GroupKernel) -> Tensor:
    """All values `(o…, h…, y, x, i, j)`."""
    values = multiply(kernel())
    return values.unflatten(-3, (kernel.kernel_size,) * 2).detach()


@pytest.mark.parametrize("sampling", ["fixed", "random"])
@pytest.mark.parametrize("factorisation", ["separable", "nonseparable", "dseparable", (sg.Factor("h", "ij"),)], ids=str)
def test_a_quarter_turn_permutes_the_values_bit_for_bit(factorisation, sampling: str) -> None:
    grid = sg.se2(8, sampling=sampling)
    values = kernel(grid, factorisation)
    grid.resample()
    found = sampled(values).expand(8, 8, 7, 7, 2, 3)
    turned = found.rot90(1, (2, 3)).roll((2, 2), (0, 1))
    assert torch.equal(turned, found)


def high(values: Tensor, above: float) -> float:
    """Share of a kernel's power at frequencies above so many cycles per pixel, mean over everything else."""
    size = values.shape[-3]
    spectrum = power_spectrum(values.movedim((-4, -3), (0, 1)).reshape(size, size, -1))
    line = torch.fft.fftfreq(2 * size, dtype=torch.float64)
    radius = (line[:, None].square() + line.square()).sqrt().flatten()
    return (spectrum[radius > above].sum() / spectrum.sum()).item()


@pytest.mark.parametrize("cutoff", [0.2, 0.25, 0.3])
def test_what_lies_above_the_cutoff_is_taken_away(cutoff: float) -> None:
    torch.manual_seed(0)
    config = KernelConfig(omega0=30.0)
    plain = sampled(kernel(sg.se2(4), size=9, config=config))
    torch.manual_seed(0)
    cut = sampled(kernel(sg.se2(4), size=9, config=KernelConfig(omega0=30.0, cutoff=cutoff)))
    assert high(cut, 2 * cutoff) < 4e-3
    assert high(plain, 2 * cutoff) > 10 * high(cut, 2 * cutoff)


@pytest.mark.parametrize("size", [3, 7])
def test_the_kernel_still_ends_within_its_ball(size: int) -> None:
    values = kernel(sg.se2(8), size=size)
    away = values.positions()[0].norm(dim=-1) >= 1
    assert (multiply(values())[:, 0][away[..., None, None].expand(8, size * size, 2, 3)] == 0).all()
    assert sampled(values)[:, :, size // 2, size // 2].abs().min() > 0


def test_the_filter_is_part_of_k_at_every_scale() -> None:
    """Values at scale s and tap s·x are those at scale 1 and tap x, over s²."""
    values = kernel(sg.scale2(2, max_scale=2.0), size=9).double()
    found = multiply([v for v, t in zip(values(), values.terms, strict=True) if t.spatial]).unflatten(2, (9, 9))
    small, large = found[0], found[1]
    assert_close(large[:, ::2, ::2][:, 1:4, 1:4], small[:, 3:6, 3:6] / 4)


def test_one_tap_is_exempt_and_nothing_is_learned_anew() -> None:
    one = kernel(sg.se2(4), size=1)
    assert one.prefilter is None
    with_filter = kernel(sg.se2(4), config=CUT).state_dict()
    without = kernel(sg.se2(4), config=KernelConfig(hidden=16, layers=1)).state_dict()
    assert {k: v.shape for k, v in with_filter.items()} == {k: v.shape for k, v in without.items()}


def test_gradients_reach_every_weight_and_precision_may_change() -> None:
    values = kernel(sg.se2(4), "nonseparable")
    multiply(values()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in values.named_parameters() if "bias" not in n)
    single = sampled(values)
    assert_close(sampled(values.double()).float(), single, rtol=1e-4, atol=1e-6)


def test_six_layers_stay_of_one_size() -> None:
    torch.manual_seed(0)
    grid = sg.se2(4, sampling="fixed")
    x = torch.randn(2, 8, 4, 12, 12)
    for _ in range(6):
        x = sg.GroupConv(8, 8, 5, grid=grid, kernel=KernelConfig(cutoff=0.4))(x)
    assert 0.3 < x.std().item() < 3


@pytest.mark.parametrize("cutoff", [0.0, -0.1, 0.51, float("nan")])
def test_a_cutoff_that_pixels_do_not_hold(cutoff: float) -> None:
    with pytest.raises(ValueError, match=r"cutoff must be positive and at most 0\.5 cycles per pixel"):
        KernelConfig(cutoff=cutoff)


def test_a_filter_wider_than_the_kernel() -> None:
    with pytest.raises(ValueError, match=r"cutoff=0\.2 needs a filter that reaches 2\.5 pixels.*ends after 2 at"):
        kernel(sg.se2(4), size=3, config=KernelConfig(cutoff=0.2))
    with pytest.raises(ValueError, match=r"take a cutoff above 0\.433"):
        kernel(sg.scale2(2, max_scale=3**0.5), size=3, config=KernelConfig(cutoff=0.3))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("group", ["se2", "sim2"])
def test_quarter_turns_of_layers_are_as_exact_as_without(group: str, dtype: torch.dtype, most: float) -> None:
    for name in ("separable", "nonseparable", "gseparable"):
        grid = sg.se2(8) if group == "se2" else sg.sim2(4, 2)
        conv = sg.GroupConv(3, 2, 7, grid=grid, factorisation=name, kernel=KernelConfig(cutoff=0.4)).to(dtype).eval()
        grid.resample()
        x = torch.randn(2, 3, grid.size, 9, 9, dtype=dtype)
        report = sg.testing.equivariance_error(conv, x, grid=grid, angles=(90, 180, 270))
        assert max(entry.error for entry in report.exact) <= most, name
        assert len(report.exact) == 3


def test_kept_kernels_see_another_shift_and_resolution() -> None:
    grid = sg.se2(4)
    conv = sg.GroupConv(2, 2, 5, grid=grid, kernel=CUT).eval()
    x = torch.randn(1, 2, 4, 7, 7)
    with torch.no_grad():
        before = conv(x)
        grid.resample()
        assert not torch.equal(conv(x), before)
        sg.set_resolution(conv, rotations=8)
        assert conv(torch.randn(1, 2, 8, 7, 7)).shape == (1, 2, 8, 7, 7)
