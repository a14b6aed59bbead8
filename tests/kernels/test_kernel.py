import math

import pytest
import torch
from torch.testing import assert_close

import sepgconv as sg
from sepgconv.grids import relative_elements
from sepgconv.kernels import LIFTING, GroupKernel, KernelNetwork, ball, multiply, resolve, taps


def kernel(factorisation="separable", *, size: int = 5, grid=None, out_grid=None, channels=(2, 3)) -> GroupKernel:
    grid = grid or sg.se2(8)
    factors = resolve(factorisation, grid)
    return GroupKernel(channels, size, factors=factors, config=sg.KernelConfig(), grid=out_grid or grid, source=grid)


def rows_seen(module: torch.nn.Module) -> dict[str, int]:
    """How many rows reach each kernel network in one sampling."""
    counts: dict[str, int] = {}
    hooks = []
    for name, network in module.named_modules():
        if isinstance(network, KernelNetwork):
            hooks.append(network.register_forward_pre_hook(lambda _, x, n=name: counts.__setitem__(n, len(x[0]))))
    module()
    for hook in hooks:
        hook.remove()
    return counts


def test_named_factorisations() -> None:
    expected = {"nonseparable", "separable", "h_separable", "gseparable", "dseparable", "dgseparable"}
    assert set(sg.FACTORISATIONS) == expected
    assert resolve("separable", sg.sim2(4, 3))[0].coordinates == "rotation scale"
    assert resolve("separable", sg.translation2())[0].coordinates == ""


@pytest.mark.parametrize(("sizes", "offsets"), [((8, 8), 8), ((4, 12), 12), ((8, 12), 24), ((6, 4), 12), ((1, 1), 1)])
def test_rotation_offsets_are_circulant_and_evaluated_once(sizes, offsets) -> None:
    source, target = (sg.se2(n).axes[0] for n in sizes)
    table = relative_elements(source, target)
    assert len(table.elements) == offsets == math.lcm(*sizes)
    pairs = source.elements[None, :, 0] - target.elements[:, None, 0]
    difference = torch.remainder(table.elements[table.index][..., 0] - pairs + 1, 2 * math.pi) - 1
    assert difference.abs().max() < 1e-12
    assert (table.elements > -math.pi + 1e-9).all()
    assert_close(table.weight, torch.full_like(table.weight, 1 / sizes[0]))
    if sizes[0] == sizes[1]:
        for row in range(1, sizes[0]):
            assert torch.equal(table.index[row], table.index[0].roll(row))
    assert table.circulant == (sizes[0] == sizes[1])
    assert table.band == (sizes[0] - 1 if table.circulant else None)


def test_an_offset_of_half_a_turn_is_one_offset() -> None:
    table = relative_elements(sg.se2(8).axes[0], sg.se2(8).axes[0])
    half = table.index[torch.arange(8), (torch.arange(8) + 4) % 8]
    assert len(half.unique()) == 1
    assert table.elements[half[0]].item() == pytest.approx(math.pi)


def test_scale_offsets_are_toeplitz_and_banded() -> None:
    axis = sg.scale2(5, 3.0).axes[0]
    table = relative_elements(axis, axis)
    assert_close(table.elements[:, 0].log(), torch.tensor([-1.0, 0.0, 1.0]).double() * axis.cell)
    band = (torch.arange(5)[None] - torch.arange(5)[:, None]).abs() <= 1
    assert torch.equal(table.weight > 0, band)
    assert (table.circulant, table.band) == (False, 1)
    wide = sg.scale2(5, 3.0, scale_support=2).axes[0]
    assert len(relative_elements(wide, wide).elements) == 5
    assert relative_elements(wide, wide).band == 2
    assert relative_elements(wide, axis).band == 2  # the source says how far a kernel sees
    assert relative_elements(wide, sg.scale2(4, 3.0).axes[0]).band is None


@pytest.mark.parametrize("rotations", [4, 8, 16])
def test_k_h_is_evaluated_on_n_offsets_not_n_squared(rotations: int) -> None:
    counts = rows_seen(kernel("separable", grid=sg.se2(rotations)))
    assert counts["networks.0"] == rotations
    assert counts["networks.1"] == rotations * 25
    sim = rows_seen(kernel("separable", grid=sg.sim2(rotations, 5)))
    assert sim["networks.0"] == rotations * 3  # the element's scale and its two neighbours
    apart = rows_seen(kernel("h_separable", grid=sg.sim2(rotations, 5)))
    assert [apart[f"networks.{n}"] for n in range(2)] == [3, rotations]


def test_window_is_a_ball_that_fits_the_taps() -> None:
    for size in (1, 3, 5, 7, 9):
        window = kernel("separable", grid=sg.se2(4), size=size).window
        outermost = torch.tensor([(size - 1) / (size + 1), 1.0]).double()
        assert window(outermost).tolist() == pytest.approx([1, 0])
        assert window(torch.zeros(1)).item() == 1
    line = torch.linspace(0, 1.2, 2000).double()
    assert ball(line, 0.25).diff().abs().max() < 0.01  # no jump
    assert (ball(line, 0.25).diff() <= 1e-12).all()


@pytest.mark.parametrize("size", [7, 15])
def test_the_windows_edge_is_a_pixel_wide_at_the_smallest_scale(size: int) -> None:
    layer = kernel("separable", grid=sg.scale2(3, 3**0.5), size=size)
    pixels = torch.linspace(0, size, 10_000).double()
    for scale in (1.0, 3**0.5):
        window = layer.window(pixels / layer.radius / scale)
        edge = pixels[window < 1e-9].min() - pixels[window > 1 - 1e-9].max()
        assert edge == pytest.approx(scale, rel=0.01)


def test_taps_are_in_weight_order_with_y_up() -> None:
    assert taps(3, 2).tolist()[:4] == [[-1, 1], [0, 1], [1, 1], [-1, 0]]
    assert taps(3, 1).tolist() == [[-1], [0], [1]]
    assert taps(3, 3).tolist()[0] == [-1, 1, -1]
    assert taps(1, 2).tolist() == [[0, 0]]


def test_dilation_widens_the_kernel_and_divides_by_its_volume() -> None:
    """k(x/s)/s² at the largest scale fills the window; at scale 1 it is the same function, narrower."""
    grid = sg.scale2(2, 2.0)
    lifting = GroupKernel(
        (1, 1), 15, factors=LIFTING, config=sg.KernelConfig(omega0=2.0), grid=grid, source=None
    ).double()
    small, large = multiply(lifting()).reshape(2, 15, 15).detach()
    at = torch.arange(-3, 4) + 7
    assert_close(large[1::2, 1::2] * 4, small[at][:, at], atol=1e-12, rtol=1e-9)
    reach = (small.abs() > 0).nonzero().sub(7).abs().max().item()
    assert reach == 3  # outer radius 8 at scale 2 is 4 at scale 1, where the window has come to zero
    assert (large.abs() > 0).nonzero().sub(7).abs().max().item() == 7


@pytest.mark.parametrize("size", [1, 3])
def test_determinant_of_a_similarity_is_s_squared_in_every_layer(size: int) -> None:
    grid = sg.sim2(4, 3, 4.0)
    layer = kernel("separable", grid=grid, size=size)
    window = layer.positions()[1][0, :, size * size // 2]
    expected = torch.tensor([1, 1 / 4, 1 / 16]) if size > 1 else torch.ones(3)  # δ(h⁻¹x)/|det h| = δ(x)
    assert_close(window, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constants_follow_the_precision(dtype: torch.dtype) -> None:
    layer = kernel().to(dtype)
    assert {buffer.dtype for buffer in layer.buffers() if buffer.is_floating_point()} == {dtype}
    exact = kernel().double()
    assert_close(layer.points.double(), exact.points, atol=6e-8 if dtype == torch.float32 else 0, rtol=0)


def test_user_tables() -> None:
    table = (sg.Factor("rotation", "ij"), sg.Factor("x scale", "j"))
    assert [f.coordinates for f in resolve(table, sg.sim2(4, 2))] == ["rotation", "x scale"]
    layer = sg.GroupConv(2, 3, 3, grid=sg.sim2(4, 2), factorisation=table)
    assert layer(torch.randn(1, 2, 8, 5, 5)).shape == (1, 3, 8, 5, 5)


@pytest.mark.parametrize(
    ("table", "grid", "message"),
    [
        (
            "spectral",
            sg.se2(4),
            "nonseparable, separable, h_separable, gseparable, dseparable, dgseparable.*'spectral'",
        ),
        (
            "h_separable",
            sg.se2(4),
            "needs two coordinates.*a product of rotations and scales.*got a grid with rotation",
        ),
        ("h_separable", sg.scale2(4), "got a grid with scale"),
        ("h_separable", sg.translation2(), "a trivial group"),
        (
            (sg.Factor("scale", "ij"),),
            sg.se2(4),
            r"sees \['scale'\], but this grid has \['x', 'h', 'rotation'\]",
        ),
        ((sg.Factor("x", "k"),), sg.se2(4), "channels must be 'ij', 'i', 'j' or '', got 'k'"),
        ((sg.Factor("x h", "j"),), sg.se2(4), "no factor carries the channel index i"),
        ((), sg.se2(4), "no factor carries the channel index i or j"),
        (("x",), sg.se2(4), "a table of Factor, got 'x'"),
    ],
)
def test_bad_factorisations(table, grid, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(table, grid)


GROUPS = {
    "se2": lambda: sg.se2(8),
    "scale2": sg.scale2,
    "sim2": lambda: sg.sim2(4, 3),
    "plain": sg.translation2,
}


@pytest.mark.parametrize("group", GROUPS)
def test_variance_through_six_layers_at_init(group: str) -> None:
    """White noise through one lifting and five group convolutions without normalisation, for every factorisation.

    With fan-in alone it would grow by a factor of 10⁴ to 10¹⁰ here, because smooth kernels make smooth features, of
    which they lose less and less.
    """
    print()
    for factorisation in sg.FACTORISATIONS:
        if factorisation == "h_separable" and group != "sim2":
            continue
        variances = torch.zeros(3, 6)
        for seed in range(3):
            torch.manual_seed(seed)
            grid = GROUPS[group]()
            x = torch.randn(2, 16, 28, 28)
            for depth in range(6):
                if depth == 0:
                    layer = sg.LiftingConv(16, 32, 5, grid=grid)
                else:
                    layer = sg.GroupConv(32, 32, 5, grid=grid, factorisation=factorisation)
                with torch.no_grad():
                    x = layer.eval()(x)
                variances[seed, depth] = x.var()
        mean = variances.mean(0)
        print(f"{group:7s}{factorisation:14s}" + " ".join(f"{v:.2f}" for v in mean))
        assert 0.8 < mean[0] < 1.25
        assert mean.min() > 0.5, factorisation
        assert mean.max() < 2, factorisation


@pytest.mark.parametrize("group", ["e2", "se3"])
def test_variance_through_six_layers_of_groups_that_do_not_commute(group: str) -> None:
    """As above, in the middle of the volumes, where no border has been. Kernels of x and h together are made of fewer
    functions than there are pairs of taps and elements: for them the limits hold for the deviation, not the variance.
    """
    print()
    grid, size, image, border = {"e2": (sg.e2(8), 5, 28, 0), "se3": (sg.se3(12), 3, 16, 6)}[group]
    for factorisation in sg.FACTORISATIONS:
        if factorisation == "h_separable" and group == "se3":
            continue
        variances = torch.zeros(2, 6)
        for seed in range(2):
            torch.manual_seed(seed)
            x = torch.randn(2, 16, *(image,) * grid.space)
            for depth in range(6):
                if depth == 0:
                    layer = sg.LiftingConv(16, 16, size, grid=grid)
                else:
                    layer = sg.GroupConv(16, 16, size, grid=grid, factorisation=factorisation)
                with torch.no_grad():
                    x = layer.eval()(x)
                inner = slice(border, image - border)
                variances[seed, depth] = x[(..., *(inner,) * grid.space)].square().mean()
        mean = variances.mean(0)
        print(f"{group:7s}{factorisation:14s}" + " ".join(f"{v:.2f}" for v in mean))
        low, high = (0.25, 4) if factorisation in ("nonseparable", "dseparable") else (0.5, 2)
        assert mean.min() > low, factorisation
        assert mean.max() < high, factorisation


def test_a_coordinate_of_several_columns_counts_once() -> None:
    """Otherwise the nine entries of a rotation would leave a kernel with next to no frequencies in x."""
    torch.manual_seed(0)
    network = sg.GroupConv(2, 2, 3, grid=sg.se3(12), factorisation="nonseparable").kernel.networks[0]
    weight = network.hidden[0].weight.detach()
    assert network.columns == (1, 1, 1, 9)
    assert 0.22 < weight[:, :3].abs().max() <= 1 / 4
    assert 0.07 < weight[:, 3:].abs().max() <= 1 / 12


@pytest.mark.parametrize("group", GROUPS)
def test_the_weights_of_all_factors_are_of_one_size_at_init(group: str) -> None:
    """So that one learning rate is right for all of them."""
    for factorisation in sg.FACTORISATIONS:
        if factorisation == "h_separable" and group != "sim2":
            continue
        for kernel_size in (3, 7):
            kernel = sg.GroupConv(16, 16, kernel_size, grid=GROUPS[group](), factorisation=factorisation).kernel
            sizes = torch.stack([network.last.detach().square().mean().sqrt() for network in kernel.networks])
            assert_close(sizes, sizes[:1].expand(len(sizes)))
            assert 0.05 < sizes[0] < 0.8, (factorisation, kernel_size)  # 0.2, but for a factor of 4
