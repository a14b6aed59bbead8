import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.redundancy import (
    explained_by_first,
    explained_variance,
    full_kernel,
    subgroup_kernel,
    subgroup_variance,
    subgroup_variance_relative,
)

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def conv(factorisation: str, grid: sg.Grid | None = None) -> sg.GroupConv:
    return sg.GroupConv(2, 3, 5, grid=grid or sg.se2(8), factorisation=factorisation, kernel=KERNEL)


def test_one_spatial_kernel_explains_all_of_a_product() -> None:
    weights, spatial = torch.randn(8, 1, 2, 3), torch.randn(1, 25, 2, 3)
    assert explained_by_first(weights * spatial) == pytest.approx(torch.ones(2, 3))


def test_independent_kernels_share_what_is_to_be_explained() -> None:
    orthogonal = torch.eye(8)[:, :, None, None]  # after centring, seven equal components
    assert explained_by_first(orthogonal).item() == pytest.approx(1 / 7)


@pytest.mark.parametrize("factorisation", ["separable", "dgseparable", "gseparable"])
def test_separable_kernels_are_wholly_redundant(factorisation: str) -> None:
    """As the paper says of them: the first component is the shared spatial kernel."""
    (layer,) = explained_variance(nn.Sequential(conv(factorisation)))
    assert layer.values == pytest.approx(torch.ones(2, 3), abs=1e-6)


@pytest.mark.parametrize("grid", [sg.se2(6), sg.scale2(4), sg.sim2(4, 3)], ids=["se2", "scale2", "sim2"])
def test_nonseparable_kernels_are_not(grid: sg.Grid) -> None:
    (layer,) = explained_variance(nn.Sequential(conv("nonseparable", grid)))
    assert layer.values.shape == (2, 3)
    assert layer.kernels == grid.nominal.shape[0] * 6
    assert ((layer.values > 0) & (layer.values < 1 - 1e-4)).all()


def test_the_full_kernel_is_the_one_that_is_convolved_with() -> None:
    layer = conv("nonseparable").eval()
    impulse = torch.zeros(2, 2, 8, 5, 5)
    impulse[0, 0, 3, 2, 2] = impulse[1, 1, 6, 2, 2] = 1
    with torch.no_grad():
        response, kernel = layer(impulse)[:, :, 0], full_kernel(layer)
    for number, element in ((0, 3), (1, 6)):
        expected = kernel[element, :, number].T.reshape(3, 5, 5).flip(-2, -1)
        assert response[number] == pytest.approx(expected, abs=1e-5)


def test_variance_of_the_subgroup_kernel() -> None:
    layer = conv("separable")
    with torch.no_grad():
        layer.kernel.networks[0].out.weight.zero_()
        layer.kernel.networks[0].out.bias.fill_(2.0)
    network = nn.Sequential(layer)
    assert subgroup_kernel(layer).shape == (8, 2, 3)
    assert subgroup_variance(network)[0].values == pytest.approx(torch.zeros(2, 3), abs=1e-10)
    with torch.no_grad():
        layer.kernel.networks[0].out.weight.normal_()
    before = subgroup_variance(network)[0].values
    relative = subgroup_variance_relative(network)[0].values
    with torch.no_grad():
        layer.kernel.networks[0].scale_out(3.0)
        layer.kernel.networks[0].out.bias.mul_(3.0)
    assert subgroup_variance(network)[0].values == pytest.approx(9 * before, rel=1e-4)
    assert subgroup_variance_relative(network)[0].values == pytest.approx(relative, rel=1e-4)


def test_layers_without_a_subgroup_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match="k_H"):
        subgroup_kernel(conv("nonseparable"))


def test_shortcuts_are_left_out_and_the_mode_is_kept() -> None:
    network = sg.models.resnet(sg.se2(4), width=0.1, kernel=KERNEL).train()
    assert len(explained_variance(network)) == 5
    assert network.training
