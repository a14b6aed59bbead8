"""Whatever is changed about a kernel, and however: it is seen."""

import pytest
import torch
from kept_helpers import fresh, net
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close


def last(model: nn.Sequential) -> nn.Linear:
    return model[1].conv1.kernel.networks[0].out


def scale_through_data(model: nn.Sequential) -> None:
    last(model).weight.data.mul_(3)


def average_by_hand(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.data.lerp_(torch.ones_like(parameter), 0.3)


def prune_weights(model: nn.Sequential) -> None:
    prune.random_unstructured(last(model), "weight", amount=0.5)


def change_mask(model: nn.Sequential) -> None:
    prune.identity(last(model), "weight")
    with torch.no_grad():
        model(torch.ones(1, 1, 5, 5))
    last(model).weight_mask.zero_()


def change_frequency(model: nn.Sequential) -> None:
    model[1].conv1.kernel.networks[0].hidden[1].omega0 = 3.0


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def parametrise(model: nn.Sequential) -> None:
    parametrize.register_parametrization(last(model), "weight", Twice())


def hook(model: nn.Sequential) -> None:
    last(model).register_forward_hook(lambda module, inputs, output: 2 * output)


def change_window(model: nn.Sequential) -> None:
    model[1].conv1.kernel.points.mul_(0.5)


def swap_storage(model: nn.Sequential) -> None:
    last(model).weight.data = torch.randn_like(last(model).weight)


def change_running_statistics(model: nn.Sequential) -> None:
    model[1].norm1.running_var.data.mul_(4)


def fused_step(model: nn.Sequential) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        model(torch.ones(1, 1, 5, 5)).sum().backward()
    model(torch.ones(1, 1, 5, 5))  # kept after the last pass with gradients
    optimiser.step()


class Tenfold(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(input)


def change_class(model: nn.Sequential) -> None:
    last(model).__class__ = Tenfold


class Listed(nn.Module):
    """A parametrisation of somebody's own, whose number is in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factors[0] * x


def change_list(model: nn.Sequential) -> None:
    listed = Listed()
    parametrize.register_parametrization(last(model), "weight", listed)
    model(torch.ones(1, 1, 5, 5))
    listed.factors[0] = 3.0


def negative_view(model: nn.Sequential) -> None:
    last(model).weight.data = torch._neg_view(last(model).weight.data)  # pyright: ignore[reportPrivateImportUsage]


CHANGES = [
    scale_through_data,
    average_by_hand,
    prune_weights,
    change_mask,
    change_frequency,
    parametrise,
    hook,
    change_window,
    swap_storage,
    change_running_statistics,
    fused_step,
    change_class,
    change_list,
    negative_view,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@torch.no_grad()
def test_a_change_is_seen(change) -> None:
    model, x = net(), torch.randn(2, 1, 6, 6)
    before = model(x)
    change(model)
    after = model(x)
    assert not torch.allclose(after, before)
    assert_close(after, fresh(model, x), atol=1e-5, rtol=1e-4)
