import math

import pytest
import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import smooth_image
from sepgconv.testing import assert_equivariant, equivariance_error


def test_numbers_per_element() -> None:
    grid = sg.se2(8)
    net = nn.Sequential(sg.LiftingConv(1, 3, 9, grid=grid), nn.ReLU(), sg.GroupConv(3, 3, 9, grid=grid))
    report = equivariance_error(net, smooth_image().float(), grid=grid)
    assert [entry.element for entry in report.exact] == ["rotation 90°", "rotation 180°", "rotation -90°"]
    assert len(report.interpolated) == 4
    assert all(entry.error < 1e-5 for entry in report.exact)
    assert all(0 < entry.interpolation < 1e-2 < entry.error + 1e-2 < 0.3 for entry in report.interpolated)
    assert "rotation 45°" in str(report)
    assert net.training


def test_a_broken_network_is_caught_with_its_numbers() -> None:
    grid = sg.se2(4)
    broken = nn.Sequential(sg.LiftingConv(1, 3, 3, grid=grid), nn.Conv3d(3, 3, (1, 3, 3), padding=(0, 1, 1)))
    x = torch.randn(1, 1, 8, 8)
    assert min(entry.error for entry in equivariance_error(broken, x, grid=grid)) > 0.01
    with pytest.raises(AssertionError, match=r"not equivariant to 1e-05[\s\S]*rotation 90°"):
        assert_equivariant(broken, x, grid=grid)
    assert_equivariant(broken[0], x, grid=grid)


def test_tolerances() -> None:
    grid = sg.se2(8)
    lift = sg.LiftingConv(1, 3, 5, grid=grid)
    x = smooth_image().float()
    assert_equivariant(lift, x, grid=grid, interpolated_tolerance=0.3)
    with pytest.raises(AssertionError, match="interpolated: 1e-06"):
        assert_equivariant(lift, x, grid=grid, interpolated_tolerance=1e-6)
    with pytest.raises(AssertionError, match=r"no element of .* is exact"):
        assert_equivariant(sg.LiftingConv(1, 1, 3, grid=sg.scale2(3)), x, grid=sg.scale2(3))
    nan = nn.Sequential(lift, nn.Threshold(10.0, math.nan))
    with pytest.raises(AssertionError):
        assert_equivariant(nan, x, grid=grid)


def test_trim_must_leave_something() -> None:
    grid = sg.scale2(3)
    lift = sg.LiftingConv(1, 1, 3, grid=grid)
    with pytest.raises(ValueError, match="trim=1 leaves none of 3 scales"):
        equivariance_error(lift, smooth_image().float(), grid=grid, trim=1)


class Asymmetric(nn.Module):
    """An invariant, plus what only an upright image has, plus a constant."""

    def __init__(self, asymmetry: float, offset: float, grid: sg.Grid) -> None:
        super().__init__()
        self.net = nn.Sequential(sg.LiftingConv(1, 4, 5, grid=grid), nn.ReLU(), sg.GroupPool("mean"))
        self.asymmetry, self.offset = asymmetry, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.asymmetry * x[..., :4, :].mean((1, 2, 3))[:, None] + self.offset


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, 1e6), (torch.float64, 1e13)])
def test_an_offset_hides_nothing(dtype: torch.dtype, offset: float) -> None:
    """The asymmetry is lost in the size of the output, but not in how much it varies from image to image."""
    grid, x = sg.se2(4), torch.rand(4, 1, 12, 12, dtype=dtype)
    plain, hidden = (Asymmetric(20.0, constant, grid).to(dtype).eval() for constant in (0.0, offset))
    with pytest.raises(AssertionError, match="not equivariant to 1e-"):
        assert_equivariant(plain, x, grid=grid)
    with pytest.raises(AssertionError, match="of the variation"):
        assert_equivariant(hidden, x, grid=grid)
    for entry in equivariance_error(hidden, x, grid=grid):
        assert entry.error < {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
        assert entry.variation_error is not None
        assert entry.variation_error > 0.5
    assert_equivariant(Asymmetric(0.0, offset, grid).to(dtype).eval(), x, grid=grid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-5, 1e-7])
def test_rounding_is_not_taken_for_asymmetry(spread: float, dtype: torch.dtype) -> None:
    """Images that are nearly equal vary by little more than rounding, which must not fail an equivariant network."""
    for factorisation, grid in (("separable", sg.se2(4)), ("h_separable", sg.sim2(4, 2))):
        model = sg.models.create("resnet", grid, factorisation=factorisation, width=0.2).to(dtype)
        x = torch.rand(1, 1, 20, 20, dtype=dtype) + spread * torch.randn(3, 1, 20, 20, dtype=dtype)
        report = assert_equivariant(model, x, grid=grid)
        assert all(entry.variation_error is not None for entry in report.exact)


def test_the_second_number_is_the_error_over_the_deviation_from_the_mean() -> None:
    """Outputs (7, 9) vary by 1 around their mean; an upright image adds 0.25."""
    x = torch.zeros(2, 1, 2, 2)
    x[1] = 1.0

    def net(images: torch.Tensor) -> torch.Tensor:
        return 7 + 2 * images.mean((2, 3)) + 0.25 * (images[:, :, 0, 0] < images[:, :, 1, 1])

    x[:, :, 0, 0] -= 1e-3
    (quarter,) = (entry for entry in equivariance_error(net, x, grid=sg.se2(4)) if entry.element == "rotation 180°")
    assert quarter.variation_error == pytest.approx(0.25, rel=1e-2)
    assert quarter.error == pytest.approx(0.25 / 9.25, rel=1e-2)


def test_where_nothing_varies_there_is_no_second_number() -> None:
    grid = sg.se2(4)
    net = sg.LiftingConv(1, 2, 3, grid=grid)
    one = torch.randn(1, 1, 8, 8)
    for x in (one, one.repeat(3, 1, 1, 1)):
        report = assert_equivariant(net, x, grid=grid)
        assert [entry.variation_error for entry in report] == [None] * 3
        assert "–" in str(report)
        assert "two images" in str(report)
    report = equivariance_error(net, torch.randn(2, 1, 8, 8), grid=grid)
    assert "–" not in str(report)
    assert "of the variation" in str(report)


def test_interpolated_elements_are_judged_by_both_numbers() -> None:
    grid = sg.se2(8)
    elements = [torch.tensor([math.radians(45)], dtype=torch.float64)]
    x = torch.cat([smooth_image(), smooth_image().flip(2)]).float()
    lift = sg.LiftingConv(1, 3, 9, grid=grid).eval()
    assert_equivariant(lift, x, grid=grid, elements=elements, interpolated_tolerance=0.3)
    wrong = Asymmetric(1.0, 1e3, grid).eval()
    with pytest.raises(AssertionError, match="of the variation"):
        assert_equivariant(wrong, x, grid=grid, elements=elements, interpolated_tolerance=0.3)


@pytest.mark.parametrize(
    ("grid", "elements"),
    [
        (sg.se2(8), []),
        (sg.translation2(), None),
        (sg.se2(1), None),
        (sg.se2(8), [torch.zeros(1, dtype=torch.float64)]),
        (sg.scale2(3), [torch.ones(1, dtype=torch.float64)]),
        (sg.se2(8), [torch.tensor([2 * math.pi], dtype=torch.float64)]),
    ],
    ids=["no elements", "no axes", "one rotation", "only the identity", "only the scale 1", "a full turn"],
)
def test_nothing_tested_is_an_error(grid: sg.Grid, elements: list | None) -> None:
    x = torch.randn(2, 1, 8, 8)
    lift = sg.LiftingConv(1, 1, 3, grid=grid)
    with pytest.raises(AssertionError, match="nothing was tested"):
        assert_equivariant(lift, x, grid=grid, elements=elements, interpolated_tolerance=1.0)


def test_nothing_to_test_on_is_an_error() -> None:
    grid = sg.scale2(3)
    lift = sg.LiftingConv(1, 1, 3, grid=grid)
    with pytest.raises(ValueError, match=r"x must hold an image at least, got .*\(0, 1, 8, 8\)"):
        equivariance_error(lift, torch.randn(0, 1, 8, 8), grid=grid)
    far = grid.group.exp(torch.tensor([4 * grid.axes[0].cell], dtype=torch.float64))
    with pytest.raises(ValueError, match="moves all of the features out of"):
        equivariance_error(lift, torch.randn(1, 1, 8, 8), grid=grid, elements=[far])


def test_modes_are_restored_module_by_module() -> None:
    """Frozen layers of a network in training stay frozen, training ones of a frozen network go on, errors or not."""
    grid = sg.se2(4)

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            raise ArithmeticError("on purpose")

    norm = sg.BatchNorm(3)
    net = nn.Sequential(sg.LiftingConv(1, 3, 3, grid=grid), norm, nn.Sequential(nn.Dropout(0.5), norm))
    x = torch.randn(2, 1, 8, 8)
    for frozen, awake in ((net[1], net), (net, net[2][0])):
        net.train(awake is net)
        frozen.eval()
        awake.training = True
        before = [module.training for module in net.modules()]
        assert set(before) == {True, False}
        assert_equivariant(net, x, grid=grid)
        assert [module.training for module in net.modules()] == before
        failing = nn.Sequential(net, Fails())
        failing.training = net.training
        before = [module.training for module in failing.modules()]
        with pytest.raises(ArithmeticError):
            equivariance_error(failing, x, grid=grid)
        assert [module.training for module in failing.modules()] == before


def test_elements_may_come_one_by_one_and_labels_are_numbers() -> None:
    grid, x = sg.se2(4), torch.rand(3, 1, 8, 8)
    quarter = torch.tensor([math.pi / 2])
    report = assert_equivariant(lambda images: images.amax((2, 3)) > 0.5, x, grid=grid, elements=iter([quarter]))
    assert len(report) == 1
    assert equivariance_error(lambda images: images[:, :, 0, 0] > 0.5, x, grid=grid)[0].error in (0.0, 1.0)


def test_outputs_that_cannot_be_compared() -> None:
    grid, x = sg.se2(4), torch.rand(3, 1, 8, 8)
    for module, found in (
        (lambda images: (images,), "got tuple"),
        (lambda images: images.mean((1, 2, 3)), r"got \(3,\)"),
        (lambda images: images[:2], r"got \(2, 1, 8, 8\)"),
    ):
        with pytest.raises(ValueError, match=rf"module must return a tensor \(b, c, …\) with b = 3, {found}"):
            equivariance_error(module, x, grid=grid)


def test_any_angle_scale_and_shift_can_be_asked_for() -> None:
    torch.manual_seed(0)
    grid = sg.sim2(8, 4, max_scale=2.0)
    layer = sg.LiftingConv(1, 3, 9, grid=grid, kernel=sg.KernelConfig(omega0=2.0, cutoff=0.3)).double().eval()
    images = smooth_image(33)
    report = equivariance_error(
        layer, images, grid=grid, angles=(10, 45, 90), scales=(1.1,), shifts=((0, 1), (0.5, 0.5))
    )
    assert [entry.element for entry in report] == [
        "rotation 10°, scale ×1",
        "rotation 45°, scale ×1",
        "rotation 90°, scale ×1",
        "rotation 0°, scale ×1.1",
        "shift 0, 1 px",
        "shift 0.5, 0.5 px",
    ]
    assert [entry.exact for entry in report] == [False, False, True, False, False, False]
    between, on, quarter, _, whole, half = report
    assert quarter.error < 1e-12
    assert whole.error < 1e-9  # zeros come in at a border that fades
    assert whole.interpolation < 1e-9
    assert 0 < half.error < 2e-2
    assert 0 < half.output_interpolation < 2e-2
    assert on.error < 1e-2
    assert between.error < 1e-2  # interpolated along h as well
    assert "of the output" in str(report)


def test_a_stride_of_two_is_shifted_by_half() -> None:
    pool = nn.Sequential(sg.LiftingConv(1, 2, 3, grid=sg.se2(4)), sg.SpatialPool("mean", 2, antialias=True)).double()
    entry = equivariance_error(pool, smooth_image(32), grid=sg.se2(4), shifts=((1, 0),))[0]
    assert entry.error < 1e-2
    with pytest.raises(ValueError, match=r"shifts must have 2 finite numbers each, got \(1,\)"):
        equivariance_error(pool, smooth_image(32), grid=sg.se2(4), shifts=((1,),))


def test_angles_and_scales_that_a_grid_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"rotations can be tried on a grid that has them, got \[10\]"):
        equivariance_error(nn.Identity(), torch.ones(1, 1, 4, 4), grid=sg.scale2(2), angles=(10,))
    with pytest.raises(ValueError, match="scales must be positive, got 0"):
        equivariance_error(nn.Identity(), torch.ones(1, 1, 4, 4), grid=sg.scale2(2), scales=(0,))
