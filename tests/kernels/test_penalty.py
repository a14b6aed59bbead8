import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.kernels import KernelConfig, frequency_penalty


def net(config: KernelConfig, factorisation: str = "separable") -> nn.Sequential:
    torch.manual_seed(0)
    grid = sg.se2(4)
    lift = sg.LiftingConv(1, 3, 7, grid=grid, kernel=config)
    return nn.Sequential(lift, sg.GroupConv(3, 2, 7, grid=grid, kernel=config, factorisation=factorisation))


def test_it_is_the_share_of_the_power_above_a_frequency() -> None:
    lift = net(KernelConfig())[0]
    values = lift.kernel()[0] * lift.kernel()[1]
    power = torch.fft.fft2(values.reshape(4, 7, 7, 1, 3), s=(14, 14), dim=(1, 2)).abs().square()
    line = torch.fft.fftfreq(14)
    high = (line[:, None] ** 2 + line**2).sqrt() > 0.3
    expected = (power * high[None, :, :, None, None]).sum() / power.sum()
    torch.testing.assert_close(frequency_penalty(lift, 0.3), expected)


@pytest.mark.parametrize("factorisation", ["separable", "nonseparable", "dgseparable"])
def test_smooth_kernels_pay_less_and_descent_makes_them_smoother(factorisation: str) -> None:
    rough = net(KernelConfig(omega0=20.0), factorisation)
    before = frequency_penalty(rough)
    assert frequency_penalty(net(KernelConfig(omega0=20.0, cutoff=0.25), factorisation)) < before / 3
    optimiser = torch.optim.Adam(rough.parameters(), 1e-3)
    for _ in range(10):
        optimiser.zero_grad()
        frequency_penalty(rough).backward()
        optimiser.step()
    assert frequency_penalty(rough) < 0.8 * before


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"cutoff must be positive and at most 0\.5 cycles per pixel, got 0\.6"):
        frequency_penalty(net(KernelConfig()), 0.6)
    with pytest.raises(ValueError, match="Linear has no kernel of more than one tap"):
        frequency_penalty(nn.Linear(2, 2))
