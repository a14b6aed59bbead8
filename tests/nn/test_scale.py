"""Pyramids of images: their laws, and what layers on scales refuse."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.nn._pyramid import shrink, shrinking


def blobs(scale: float, size: int = 65) -> torch.Tensor:
    """Blobs of a size, drawn afresh."""
    return smooth_image(size, torch.eye(2, dtype=torch.float64) * scale)


def layers(grid: sg.Grid, size: int = 5) -> nn.Sequential:
    return nn.Sequential(
        sg.LiftingConv(1, 4, size, grid=grid, padding="valid"),
        sg.BatchNorm(4),
        nn.ReLU(),
        sg.GroupConv(4, 6, size, grid=grid, padding="valid"),
        nn.ReLU(),
    )


def pyramid(scales: int = 4, max_scale: float = 2.0, **settings) -> sg.ScalePyramid:
    torch.manual_seed(0)
    grid = sg.scale2(scales, max_scale)
    return sg.ScalePyramid(layers(sg.translation2()), grid=grid, padding=4, **settings).double()


@pytest.mark.parametrize("scale", [1.0, 0.5, 2**0.5, 2.0, 3.3])
def test_shrinking_keeps_constants_and_lines_and_moves_the_centre_nowhere(scale: float) -> None:
    matrix = shrinking(40, scale)
    assert torch.allclose(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))
    line = torch.arange(40, dtype=torch.float64) - 19.5
    found, inside = matrix @ line, slice(6, len(matrix) - 6)
    wanted = (torch.arange(len(matrix)) - (len(matrix) - 1) / 2) * scale
    assert torch.allclose(found[inside], wanted.double()[inside], atol=0.03 * scale)  # in pixels
    assert len(matrix) % 2 == 0  # as 40 is
    assert torch.allclose(found, -found.flip(0), atol=1e-12)


def test_one_is_no_change_and_a_border_goes_on() -> None:
    image = torch.randn(1, 1, 9, 8, dtype=torch.float64)
    assert torch.equal(shrink(image, 1.0), image)
    assert torch.equal(shrink(image, 1.0, 2), nn.functional.pad(image, (2, 2, 2, 2), mode="replicate"))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0**0.5, 3.0])
@pytest.mark.parametrize("size", [20, 21])
def test_centred_images_keep_their_size(scale: float, size: int) -> None:
    """They are the middle of the enlarged image, or the smaller one with its border."""
    image = torch.randn(1, 1, size, size, dtype=torch.float64)
    wide = shrink(image, scale, size)
    cut = (wide.shape[-1] - size) // 2
    found = shrink(image, scale, centred=True)
    assert torch.allclose(found, wide[..., cut : cut + size, cut : cut + size], rtol=0, atol=1e-14)
    assert torch.equal(shrink(image, 1.0, centred=True), image)


def test_shrinking_is_what_drawing_smaller_gives() -> None:
    for scale in (2**0.5, 2.0):
        small, drawn = shrink(blobs(3.0), scale), blobs(3.0 / scale, shrinking(65, scale).shape[0])
        assert ((small - drawn).norm() / drawn.norm()).item() < 0.01


@pytest.mark.parametrize("centred", [False, True])
def test_a_larger_object_moves_along_the_scales(centred: bool) -> None:
    net = pyramid(centred=centred).eval()
    step = 2 ** (1 / 3)
    before, after = net(blobs(2.0)), net(blobs(2.0 * step))
    assert before.shape == (1, 6, 4, 1, 1)
    error = (after[:, :, 1:] - before[:, :, :-1]).norm() / before.norm()
    still = (after - before).norm() / before.norm()
    assert error < 0.05
    assert still > 5 * error


def test_the_ground_does_not_matter_at_the_border() -> None:
    """A ground that is not zero changes what kernels see everywhere alike, and nothing near the border."""
    net = sg.ScalePyramid(layers(sg.translation2())[:1], grid=sg.scale2(3, 2.0), padding=2, space="max").double().eval()
    flat = net(torch.full((1, 1, 32, 32), 0.7, dtype=torch.float64))
    means = sg.ScalePyramid(net.layers, grid=net.grid, padding=2, space="mean").double().eval()
    assert torch.allclose(flat, means(torch.full((1, 1, 32, 32), 0.7, dtype=torch.float64)), atol=1e-12)


@pytest.mark.parametrize("centred", [False, True])
def test_norms_see_all_scales_together(centred: bool) -> None:
    net = pyramid(centred=centred)
    net.train()(torch.randn(4, 1, 32, 32, dtype=torch.float64))
    norm = net.layers[1]
    assert isinstance(norm, sg.BatchNorm)
    images = torch.randn(4, 1, 32, 32, dtype=torch.float64)
    levels = [net.layers[0](shrink(images, scale, 4, centred)) for scale in net.scales]
    values = torch.cat([level.flatten(3) for level in levels], -1)
    norm.momentum = 1.0
    net(images)
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean, values.mean((0, 2, 3)))


def block_pyramid(**settings) -> sg.ScalePyramid:
    torch.manual_seed(0)
    block = sg.ResidualBlock(4, 6, 3, grid=sg.translation2())
    body = nn.Sequential(sg.LiftingConv(1, 4, 3, grid=sg.translation2()), block)
    return sg.ScalePyramid(body, grid=sg.scale2(3, 2.0), **settings).double()


def test_norms_in_a_block_see_all_scales_together() -> None:
    net = block_pyramid()
    lift, block = net.layers
    assert isinstance(block, sg.ResidualBlock)
    block.norm1.momentum = block.norm2.momentum = 1.0
    images = torch.randn(4, 1, 32, 32, dtype=torch.float64)
    trained = net.train()(images)
    values = torch.cat([block.conv1(lift(shrink(images, scale))).flatten(3) for scale in net.scales], -1)
    assert torch.allclose(block.norm1.running_mean, values.mean((0, 2, 3)))
    # What a batch is normalised by is what a norm holds after it, but for n / (n - 1) in the variance.
    count = values.numel() / values.shape[1]
    for norm in (block.norm1, block.norm2):
        norm.running_var.mul_((count - 1) / count)
    assert torch.allclose(net.eval()(images), trained)


@pytest.mark.parametrize("centred", [False, True])
def test_a_block_on_a_pyramid_is_the_block_on_every_image(centred: bool) -> None:
    net = block_pyramid(space="mean", centred=centred)
    net.train()(torch.randn(4, 1, 32, 32, dtype=torch.float64))
    images = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    wanted = [net.eval().layers(shrink(images, scale, centred=centred)).mean((-2, -1)) for scale in net.scales]
    assert torch.allclose(net(images), torch.cat(wanted, -1)[..., None, None])


@pytest.mark.parametrize("centred", [False, True])
def test_a_random_grid_is_moved_once_for_all_scales(centred: bool) -> None:
    torch.manual_seed(0)
    grid = sg.se2(4)
    net = sg.ScalePyramid(layers(grid), grid=sg.sim2(4, 3, 2.0), padding=4, centred=centred).double()
    images = torch.randn(2, 1, 24, 24, dtype=torch.float64, requires_grad=True)
    shifts = []
    for layer in (net.layers[0], net.layers[3]):
        layer.register_forward_hook(lambda *_: shifts.append(grid.offset.item()))
    net(images).sum().backward()
    net(images).sum().backward()
    calls = 2 if centred else 6
    once, again = shifts[:calls], shifts[calls:]
    assert len(set(once)) == len(set(again)) == 1
    assert once[0] != again[0]
    lift = net.layers[0]
    assert isinstance(lift, sg.LiftingConv)
    assert lift.redraws
    net.eval()(images)
    assert set(shifts[2 * calls :]) == {0.0}


def test_a_pyramid_with_a_random_grid_is_what_its_fixed_twin_is_at_rest() -> None:
    torch.manual_seed(0)
    random = sg.models.resnet(sg.sim2(4, 2, 2.0), width=0.1, pyramid=True)
    fixed = sg.models.resnet(sg.sim2(4, 2, 2.0, sampling="fixed"), width=0.1, pyramid=True)
    random.train()(torch.randn(4, 1, 16, 16))
    fixed.load_state_dict(random.state_dict())
    images = torch.randn(2, 1, 16, 16)
    assert torch.equal(random.eval()(images), fixed.eval()(images))


class Doubled(sg.ResidualBlock):
    """A block of somebody else's."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(features)


def test_a_block_of_somebody_else_is_asked_itself() -> None:
    net = block_pyramid(space="mean").train()
    block = net.layers[1]
    theirs = Doubled(4, 6, 3, grid=sg.translation2()).double()
    theirs.load_state_dict(block.state_dict())
    net.layers[1] = theirs
    images = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    wanted = [net.layers(shrink(images, scale)).mean((-2, -1)) for scale in net.scales]
    assert torch.allclose(net(images), torch.cat(wanted, -1)[..., None, None])


def test_a_norm_of_another_kind_in_a_block_sees_one_image_at_a_time() -> None:
    net = block_pyramid(space="mean").train()
    net.layers[1].norm1 = nn.GroupNorm(2, 4).double()
    net.layers[1].norm2 = nn.GroupNorm(2, 6).double()
    images = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    assert torch.allclose(net(images[:1]), net(images)[:1])


@pytest.mark.parametrize(
    ("model", "size"),
    [("shallow", 28), ("shallow", 34), ("resnet", 28), ("resnet", 34), ("resnet, centred", 28)]
    + [(f"resnet, antialias{more}", size) for size in (28, 31, 34) for more in ("", ", centred")],
)
def test_quarter_turns_of_a_pyramid_with_rotations_are_exact(model: str, size: int) -> None:
    torch.manual_seed(0)
    name, *options = model.split(", ")
    more = {"pyramid": True, "width": 0.2, "image_size": size, **dict.fromkeys(options, True)}
    more = more if name == "resnet" else {}
    net = sg.models.create(name, sg.sim2(4, 3, 2.0), in_channels=1, factorisation="separable", **more).double().eval()
    images = torch.randn(2, 1, size, size, dtype=torch.float64)
    assert torch.allclose(net(images), net(images.rot90(1, (-2, -1))), atol=1e-11)


def test_quarter_turns_of_sim2_with_copied_and_unread_ends_are_exact() -> None:
    torch.manual_seed(0)
    grid, kernel = sg.sim2(4, 4, 2.0), sg.KernelConfig(cutoff=0.4)
    net = nn.Sequential(
        sg.LiftingConv(1, 4, 7, grid=grid, kernel=kernel),
        sg.BatchNorm(4),
        nn.ReLU(),
        sg.ScalePool("copy", grid=grid, margin=1),
        sg.GroupConv(4, 6, 7, grid=grid, kernel=kernel, factorisation="h_separable"),
        nn.ReLU(),
        sg.ScalePool("mean", grid=grid, margin=1, dropout=0.5),
        sg.GroupPool("max"),
    )
    images = torch.randn(2, 1, 29, 29, dtype=torch.float64)
    net = net.double().eval()
    assert torch.allclose(net(images), net(images.rot90(1, (-2, -1))), rtol=0, atol=1e-11)


def test_a_pyramid_learns_and_is_copied() -> None:
    net = sg.models.shallow(sg.scale2(3, 2.0), kernel_size=3)
    net(torch.randn(2, 1, 16, 16)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters() if p.ndim > 1)
    twin = copy.deepcopy(net.eval())
    images = torch.randn(2, 1, 16, 16)
    assert torch.equal(net(images), twin(images))


def test_layers_may_be_stock_torch() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    assert sg.ScalePyramid(body, grid=sg.scale2(3, 2.0))(torch.randn(2, 1, 16, 16)).shape == (2, 4, 3, 1, 1)


@pytest.mark.parametrize(("grid", "plain"), [(sg.scale1, sg.translation1), (sg.scale3, sg.translation3)])
def test_signals_and_volumes_move_along_the_scales_too(grid: Callable, plain: Callable) -> None:
    """A Gaussian twice as wide, at twice the scale, is what the narrow one was at the scale before."""
    torch.manual_seed(0)
    net = sg.ScalePyramid(layers(plain(), 3), grid=grid(3, 4.0), padding=2).double().eval()
    size = 48
    line = torch.arange(size, dtype=torch.float64) - (size - 1) / 2

    def blob(sigma: float) -> torch.Tensor:
        profile = torch.exp(-((line / sigma) ** 2) / 2)
        product = profile
        for _ in range(net.grid.space - 1):
            product = product[..., None] * profile
        return product[None, None]

    before, after = net(blob(3.0)), net(blob(6.0))
    assert before.shape == (1, 6, 3, *[1] * net.grid.space)
    assert (after[:, :, 1:] - before[:, :, :-1]).norm() < 0.005 * before.norm()
    folded = sg.fold(net)
    assert torch.allclose(folded(blob(3.0)), before)


def test_finest_begins_with_an_enlarged_image() -> None:
    assert pyramid(3, 4.0, finest=0.5).scales == pytest.approx([0.5, 1.0, 2.0])


def test_what_is_refused() -> None:
    grid, plain = sg.scale2(3, 2.0), sg.translation2()
    with pytest.raises(ValueError, match=r"ScalePool needs a grid with dilations, such as scale2 or sim2; got Grid"):
        sg.ScalePool("max", grid=sg.se2(4))
    with pytest.raises(ValueError, match="ScalePyramid needs a grid with dilations"):
        sg.ScalePyramid(layers(plain), grid=plain)
    mixed = sg.Grid(2, tuple(reversed(sg.sim2(2, 3, 2.0).axes)))
    with pytest.raises(ValueError, match="takes a grid whose last axis are dilations"):
        sg.ScalePyramid(layers(plain), grid=mixed)
    with pytest.raises(ValueError, match="margin=2 leaves none of 3 scales; take 1 at most"):
        sg.ScalePool("max", grid=grid, margin=2)
    with pytest.raises(ValueError, match="reduce must be one of max, mean, peak, none, copy; got 'sum'"):
        sg.ScalePool("sum", grid=grid)
    with pytest.raises(ValueError, match=r"dropout must lie between 0 and 1, got 1\.5"):
        sg.ScalePool("max", grid=grid, dropout=1.5)
    with pytest.raises(ValueError, match=r"dropout is for reduce max and mean, got 0\.5 with 'peak'"):
        sg.ScalePool("peak", grid=grid, dropout=0.5)
    with pytest.raises(ValueError, match="with 3 elements of Grid"):
        sg.ScalePool("max", grid=grid)(torch.zeros(1, 1, 4, 2, 2))
    with pytest.raises(ValueError, match=r"max_scale=20 leaves 1.6 pixels of images of 32; take one of 16 at most"):
        sg.ScalePyramid(layers(plain), grid=sg.scale2(3, 20.0))(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ValueError, match="finest must be positive, got 0"):
        sg.ScalePyramid(layers(plain), grid=grid, finest=0)
    with pytest.raises(ValueError, match="space must be 'max' or 'mean', got 'sum'"):
        sg.ScalePyramid(layers(plain), grid=grid, space="sum")
    with pytest.raises(ValueError, match=r"takes \(b, c, y, x\), got 3 axes"):
        sg.ScalePyramid(layers(plain), grid=grid)(torch.zeros(1, 32, 32))
    with pytest.raises(ValueError, match=r"takes \(b, c, x\), got 4 axes"):
        sg.ScalePyramid(layers(sg.translation1()), grid=sg.scale1(3, 2.0))(torch.zeros(1, 1, 32, 32))


def test_a_window_without_room_for_the_smallest_scale_is_refused() -> None:
    for size, max_scale, least in ((3, 2.0, 5), (5, 3.0, 7), (7, 4.5, 9)):
        with pytest.raises(ValueError, match=f"kernel_size={size} leaves a single pixel .* take {least} at least"):
            sg.LiftingConv(1, 1, size, grid=sg.scale2(3, max_scale))
        sampled = sg.LiftingConv(1, 1, least, grid=sg.scale2(3, max_scale)).kernel.positions()[1][0]
        assert (sampled > 0).sum() > 1
    sg.LiftingConv(1, 1, 1, grid=sg.scale2(3, 4.0))


def test_scales_that_no_image_can_show_are_refused() -> None:
    conv = sg.LiftingConv(1, 1, 33, grid=sg.scale2(2, 15.0))
    with pytest.raises(ValueError, match=r"images of \(16, 12\) pixels cannot show scales up to 15 .* of 31 pixels"):
        conv(torch.zeros(1, 1, 16, 12))
    assert conv(torch.zeros(1, 1, 17, 12)).shape == (1, 1, 2, 17, 12)
    wide = sg.LiftingConv(1, 1, 33, grid=sg.se2(2))  # without dilations nothing is promised of sizes
    assert wide(torch.zeros(1, 1, 16, 16)).shape == (1, 1, 2, 16, 16)
