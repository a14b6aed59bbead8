import pytest
import torch
from torch import nn
from torch.testing import assert_close

import sepgconv as sg


def rows_layout(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, in memory as (b, y, x, h, c)."""
    order = [0, *range(3, x.ndim), 2, 1]
    back = [order.index(axis) for axis in range(x.ndim)]
    return x.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("space", [(5,), (5, 4), (5, 4, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_per_channel_in_every_layout(space, training: bool) -> None:
    x = torch.randn(3, 4, 2, *space) * 3 + 1
    reference = nn.BatchNorm1d(4).train(training)
    expected = reference(x.flatten(2)).reshape(x.shape)
    for layout in (lambda t: t, rows_layout):
        norm = sg.BatchNorm(4).train(training)
        assert_close(norm(layout(x)), expected, atol=1e-5, rtol=1e-4)
        assert_close(norm.running_var, reference.running_var)
        assert set(norm.state_dict()) == set(reference.state_dict())


def test_batch_norm_keeps_the_layout() -> None:
    x = rows_layout(torch.randn(2, 4, 3, 5, 5))
    assert sg.BatchNorm(4)(x).stride() == x.stride()


def test_batch_norm_bad_input() -> None:
    with pytest.raises(ValueError, match="has 4 channels, got 3"):
        sg.BatchNorm(4)(torch.randn(1, 3, 2, 5, 5))
    with pytest.raises(ValueError, match=r"takes \(b, c, h"):
        sg.BatchNorm(4)(torch.randn(1, 4, 2))
    with pytest.raises(ValueError, match="floating-point"):
        sg.BatchNorm(4)(torch.ones(1, 4, 2, 5, 5, dtype=torch.int32))


@pytest.mark.parametrize("reduce", ["max", "mean", "sum"])
def test_group_pool(reduce: str) -> None:
    x = torch.randn(2, 3, 4, 5, 6)
    function = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum}[reduce]
    assert_close(sg.GroupPool(reduce)(x), function(x, dim=(2, 3, 4)))
    assert_close(sg.GroupPool(reduce, space=False)(x), function(x, dim=2))


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize("space", [(8,), (8, 6), (4, 8, 6)])
def test_spatial_pool_pools_every_element_by_itself(reduce: str, space) -> None:
    x = torch.randn(2, 3, 4, *space)
    names = {"max": "MaxPool", "mean": "AvgPool"}
    pool = getattr(nn, f"{names[reduce]}{len(space)}d")(2)
    expected = torch.stack([pool(x[:, :, h]) for h in range(4)], dim=2)
    assert_close(sg.SpatialPool(reduce, 2)(x), expected)


def test_pool_bad_input() -> None:
    with pytest.raises(ValueError, match="reduce must be one of max, mean, sum, logsumexp, peak; got 'median'"):
        sg.GroupPool("median")
    with pytest.raises(ValueError, match="reduce must be one of max, mean; got 'sum'"):
        sg.SpatialPool("sum")
    with pytest.raises(ValueError, match="kernel_size must be a whole number"):
        sg.SpatialPool("max", 0)
    with pytest.raises(ValueError, match="padding must be at most half of kernel_size=2, got 2"):
        sg.SpatialPool("max", 2, padding=2)
    with pytest.raises(ValueError, match="got 3 axes"):
        sg.GroupPool()(torch.randn(1, 2, 3))
    with pytest.raises(ValueError, match="got 2 axes"):
        sg.SpatialPool()(torch.randn(1, 2))
    with pytest.raises(ValueError, match="a window of 4 does not fit"):
        sg.SpatialPool("max", 4)(torch.randn(1, 1, 1, 3, 9))
    with pytest.raises(ValueError, match="floating-point"):
        sg.SpatialPool()(torch.ones(1, 1, 1, 4, 4, dtype=torch.int64))


def test_pooling_an_odd_size_is_reported_with_the_fix() -> None:
    pool = sg.SpatialPool("max", 2)
    with pytest.warns(sg.EquivarianceWarning, match=r"SpatialPool\('max', kernel_size=2.*size 69.*sees 68 or 70"):
        pool(torch.randn(1, 1, 4, 69, 69))
    model = sg.models.resnet(sg.se2(4), width=0.25, image_size=29).eval()
    with pytest.warns(sg.EquivarianceWarning, match="sees 28 or 30"):
        model(torch.randn(1, 1, 29, 29))


def test_block_adds_the_identity_where_it_can() -> None:
    grid, other = sg.se2(4), sg.se2(8)
    assert isinstance(sg.ResidualBlock(3, 3, 3, grid=grid).shortcut, nn.Identity)
    wider = sg.ResidualBlock(3, 5, 3, grid=grid).shortcut
    assert isinstance(wider, sg.GroupConv)
    assert wider.kernel_size == 1
    assert wider.kernel.networks[0].config.hidden == 32
    moved = sg.ResidualBlock(3, 3, 3, grid=grid, out_grid=other)
    assert isinstance(moved.shortcut, sg.GroupConv)
    assert moved(torch.randn(2, 3, 4, 6, 6)).shape == (2, 3, 8, 6, 6)


def test_block_formula() -> None:
    block = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4)).eval()
    x = torch.randn(1, 2, 4, 6, 6)
    inner = torch.relu(block.norm1(block.conv1(x)))
    inner = torch.relu(block.norm2(block.conv2(inner)))
    assert_close(block(x), torch.relu(inner + x))


def test_a_block_draws_its_out_grid_once() -> None:
    """Both branches must be sampled on the same elements; else their sum is not equivariant."""
    grid, out = sg.se2(4), sg.se2(4)
    block = sg.ResidualBlock(2, 2, 3, grid=grid, out_grid=out)
    seen = []
    for conv in (block.conv2, block.shortcut):
        conv.register_forward_hook(lambda *_: seen.append(out.offset.clone()))
    block(torch.randn(2, 2, 4, 6, 6))
    assert seen[0] == seen[1] != 0
