"""Dilations through the layers of a network: the comparison itself, on layers whose error is known to be small."""

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.analysis.scale_trained import as_drawn, layer_errors, step_of
from sepgconv.training import Classifier, GridConfig, NetworkConfig


def blobs(scale: float) -> torch.Tensor:
    return smooth_image(48, torch.eye(2, dtype=torch.float64) * scale)


def test_a_dilation_moves_features_by_one_scale_and_the_step() -> None:
    torch.manual_seed(0)
    grid, kernel = sg.scale2(4, 3**0.5), sg.KernelConfig(cutoff=0.4)
    net = nn.Sequential(sg.LiftingConv(1, 4, 15, grid=grid, kernel=kernel), nn.ReLU(), sg.GroupPool("max")).double()
    step = step_of(grid)
    assert step == pytest.approx(3 ** (1 / 6))
    errors = dict(layer_errors(net.eval(), blobs(2.0), blobs(2.0 * step), step))
    assert list(errors) == ["0 LiftingConv", "1 ReLU"]  # behind the projection there are no scales
    assert all(len(found) == 3 and max(found) < 0.05 for found in errors.values())
    still = dict(layer_errors(net, blobs(2.0), blobs(2.0), step))
    assert min(still["0 LiftingConv"]) > 0.1


def test_maxima_of_a_pyramid_move_by_one_scale() -> None:
    torch.manual_seed(0)
    grid = sg.scale2(4, 2.0)
    net = sg.models.shallow(grid, pool=1).double().eval()
    ((name, errors),) = layer_errors(net, blobs(2.0), blobs(2.0 * step_of(grid)), step_of(grid))
    assert name == "0 ScalePyramid"
    assert max(errors) < 0.05


def test_a_network_as_drawn_has_the_statistics_of_its_images() -> None:
    network = NetworkConfig(width=0.1, pyramid=True)
    settings = dict(Classifier(network, GridConfig("scale2", scales=2)).hparams)
    images = 5 + torch.randn(20, 1, 16, 16, dtype=torch.float64)
    net = as_drawn(settings, images)
    assert not net.training
    assert net(images).std() > 0
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert all(int(norm.num_batches_tracked) == 1 and norm.running_mean.abs().max() > 0 for norm in norms)


def test_other_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"this is for networks on scale2, .* got Grid"):
        step_of(sg.sim2(4, 3))
