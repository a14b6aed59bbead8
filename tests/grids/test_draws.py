"""Whose shift? A random grid's shift belongs to the forward pass that has drawn it."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import sepgconv as sg

KERNEL = sg.KernelConfig(hidden=8, layers=1)


def net(grid: sg.Grid, **options) -> nn.Sequential:
    return nn.Sequential(
        sg.LiftingConv(1, 2, 3, grid=grid, kernel=KERNEL),
        sg.BatchNorm(2),
        nn.ReLU(),
        sg.GroupConv(2, 2, 3, grid=grid, kernel=KERNEL, **options),
        sg.GroupPool("max"),
    )


def images() -> torch.Tensor:
    return torch.randn(3, 1, 7, 7)


def test_two_lifts_on_one_grid_before_a_convolution_are_an_error() -> None:
    grid = sg.se2(4)
    a, b = net(grid), net(grid)
    features = a[:3](images())
    b[:3](images())
    with pytest.raises(ValueError, match=r"GroupConv of Grid.*shift has changed since.*deepcopy"):
        a[3](features)


def test_one_lift_called_twice_is_an_error_too() -> None:
    model = net(sg.se2(4))
    first, second = model[:3](images()), model[:3](images())
    with pytest.raises(ValueError, match="shift has changed"):
        model[3](first)
    assert model[3](second).isfinite().all()  # these are of the last draw


def test_the_second_of_two_convolutions_is_not_fooled() -> None:
    """Between them somebody else has lifted and convolved on the same grid."""
    grid = sg.se2(4)
    a, b, last = net(grid), net(grid), sg.GroupConv(2, 2, 3, grid=grid)
    features = a[:4](images())
    b[:4](images())
    with pytest.raises(ValueError, match="shift has changed"):
        last(features)


def test_a_sum_of_two_lifts_is_an_error() -> None:
    grid = sg.se2(4)
    one, two = (sg.LiftingConv(1, 2, 3, grid=grid) for _ in range(2))
    with pytest.raises(ValueError, match="shift has changed"):
        sg.GroupConv(2, 2, 3, grid=grid)(one(images()) + two(images()))


def test_networks_that_share_a_grid_can_train_one_after_the_other() -> None:
    grid = sg.se2(4)
    shared, alone = [net(grid), net(grid)], []
    for model in shared:
        own = sg.se2(4)
        twin = net(own)
        twin.load_state_dict(model.state_dict())
        alone.append(twin)
    x = images()
    for turn in (0, 0, 1, 0, 1, 1):
        torch.manual_seed(turn)
        found = shared[turn](x)
        torch.manual_seed(turn)
        assert torch.equal(found, alone[turn](x))


def test_a_broken_forward_pass_does_not_spoil_the_next() -> None:
    model = net(sg.se2(4))
    model(images()).sum().backward()
    for _ in range(3):
        model[:2](images())  # somebody has stopped it here
    assert model(images()).isfinite().all()


def test_training_one_network_does_not_change_another_in_eval() -> None:
    grid = sg.se2(4)
    a, b = net(grid), net(grid).eval()
    x = images()
    before = b(x)
    a.train()
    a(x)
    assert grid.offset != 0
    assert torch.equal(b(x), before)
    assert a(x).isfinite().all()


def test_a_pass_that_somebody_moves_the_grid_in_is_an_error() -> None:
    """Another network on the same grid is put into eval, or lifts in eval, between two layers."""
    for disturb in (lambda other: other.eval(), lambda other: other(images())):
        grid = sg.se2(4)
        model, other = net(grid), net(grid).eval()
        features = model[:3](images())
        disturb(other)
        with pytest.raises(ValueError, match="shift has changed"):
            model[3](features)
        model(images())


def test_old_features_are_not_taken_for_new_ones() -> None:
    model = net(sg.se2(4))
    features = model[:3](images())
    model[3](features)
    model[:3](images())
    with pytest.raises(ValueError, match="shift has changed"):
        model[3](features)


def test_statistics_can_be_taken_again_without_gradients() -> None:
    model = net(sg.se2(4))
    model(images())
    model.eval()(images())
    with torch.no_grad():
        for _ in range(3):
            model.train()(images())


def test_a_frozen_layer_follows_the_network_that_trains() -> None:
    """A block in eval within a network in training lives on the shift that was drawn."""
    model, twin = net(sg.se2(4)), net(sg.se2(4))
    twin.load_state_dict(model.state_dict())
    x = images()
    model[3].eval()
    torch.manual_seed(0)
    found = model(x)
    torch.manual_seed(0)
    assert_close(found, twin(x))


def test_an_eval_layer_without_a_lift_does_not_guess() -> None:
    grid = sg.se2(4)
    layer, x = sg.GroupConv(2, 2, 3, grid=grid).eval(), torch.randn(1, 2, 4, 5, 5)
    layer(x)
    net(grid)(images())
    with pytest.raises(ValueError, match="or may have"):
        layer(x)
    layer.eval()  # moves the grid back
    layer(x)


def test_a_copied_layer_says_that_nobody_draws_its_grid() -> None:
    model = net(sg.se2(4))
    x = images()
    broken = nn.Sequential(*list(model[:4].children()), copy.deepcopy(model[3]))
    with pytest.raises(ValueError, match=r"no layer has drawn its random grid.*copied.*share one Grid object"):
        broken(x)
    apart = nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.se2(4)), sg.ResidualBlock(2, 2, 3, grid=sg.se2(4)))
    with pytest.raises(ValueError, match="no layer has drawn its random grid"):
        apart(x)
    broken.eval()(x)
    whole = copy.deepcopy(model)
    torch.manual_seed(0)
    found = whole.train()(x)
    torch.manual_seed(0)
    assert torch.equal(found, model.train()(x))
    for sampling in ("fixed",):
        fixed = net(sg.se2(4, sampling=sampling))
        nn.Sequential(*list(fixed[:4].children()), copy.deepcopy(fixed[3]))(x)


def test_a_layer_by_itself_trains_at_rest() -> None:
    block = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4))
    x = torch.randn(2, 2, 4, 5, 5, requires_grad=True)
    block(x).sum().backward()
    wrapped, seen = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4)), []
    wrapped.conv1.register_full_backward_hook(lambda *args: seen.append(1))
    wrapped(x).sum().backward()
    assert seen


def test_stock_checkpointing_is_right_or_an_error() -> None:
    model, twin = net(sg.se2(4)), net(sg.se2(4))
    twin.load_state_dict(model.state_dict())

    def run(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        return model[4](checkpoint(model[3], model[:3](x), use_reentrant=False))

    x = images()
    torch.manual_seed(0)
    run(model, x).sum().backward()
    torch.manual_seed(0)
    twin(x).sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(a.grad, b.grad)
    first, _ = run(model, x), run(model, x)
    with pytest.raises(ValueError, match="shift has changed"):
        first.sum().backward()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("disturb", [lambda other: other.eval(), lambda other: other.eval()(images())])
def test_reentrant_checkpointing_beside_a_network_in_eval(disturb, frozen: bool) -> None:
    """There features have no history, and the grid is at rest when the layer is computed again."""
    grid = sg.se2(4)
    model, other = net(grid), net(grid)
    model[3].train(not frozen)

    def run() -> torch.Tensor:
        return model[4](checkpoint(model[3], model[:3](images()), use_reentrant=True))

    run()  # a backward pass would be an error here, too: nobody knows which pass the draw is of
    found = run()
    disturb(other)
    with pytest.raises(ValueError, match="shift has changed"):
        found.sum().backward()
    alone = sg.ResidualBlock(2, 2, 3, grid=sg.se2(4))
    checkpoint(alone, torch.randn(2, 2, 4, 5, 5, requires_grad=True), use_reentrant=True).sum().backward()


def test_ready_models_have_a_grid_of_their_own() -> None:
    grid = sg.se2(4)
    a, b = (sg.models.resnet(grid, width=0.1, kernel=KERNEL) for _ in range(2))
    assert len({id(m) for net in (a, b) for m in net.modules() if isinstance(m, sg.Grid)} | {id(grid)}) == 3
    x = torch.randn(2, 1, 28, 28)
    features = a[0](x), b[0](x)
    for net, lifted in zip((a, b), features, strict=True):
        net[1:](lifted).sum().backward()


def test_to_empty_leaves_grids_at_rest() -> None:
    grid = sg.se2(4)
    model = net(grid)
    model(images())
    with torch.no_grad():
        grid.offset.fill_(torch.nan)  # whatever was in memory
    model.to_empty(device="cpu")
    assert torch.equal(grid.offset, torch.zeros(1))
    assert torch.equal(grid.elements[0], torch.zeros(1))
