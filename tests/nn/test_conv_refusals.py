"""What convolutions refuse, and what they warn of."""

import pytest
import torch

import sepgconv as sg

# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd.*got 4"),
        ({"kernel_size": 0}, "kernel_size must be a whole number of at least 1, got 0"),
        ({"kernel_size": 3.0}, "kernel_size must be a whole number"),
        ({"in_channels": 0}, "in_channels must be a whole number of at least 1, got 0"),
        ({"out_channels": -2}, "out_channels must be a whole number of at least 1, got -2"),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"padding": "full"}, "padding must be 'same', 'valid' or a number of pixels, got 'full'"),
        ({"padding": -1}, "padding must be a whole number of at least 0, got -1"),
        ({"execution": "fast"}, "execution must be one of auto, dense, structured; got 'fast'"),
        ({"factorisation": "tucker"}, "factorisation must be one of nonseparable, separable"),
        ({"factorisation": "h_separable"}, "needs two coordinates of H .* a product of rotations and scales"),
        ({"grid": "se2"}, r"grid must be a grid, such as sg.se2\(8\); got 'se2'"),
        ({"out_grid": 8}, r"out_grid must be a grid, such as sg.se2\(8\); got 8"),
        ({"kernel": {"layers": 1}}, r"kernel must be a KernelConfig, such as .*; got \{'layers': 1\}"),
        ({"out_grid": sg.scale2(4)}, "must sample one group.*SO2.*Dilation"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    chosen = {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "grid": sg.se2(4), **settings}
    with pytest.raises(ValueError, match=message):
        sg.GroupConv(**chosen)


def test_grids_must_agree_on_the_largest_scale() -> None:
    with pytest.raises(ValueError, match="one max_scale, got 2 and 3"):
        sg.GroupConv(1, 1, 3, grid=sg.scale2(3, 2.0), out_grid=sg.scale2(3, 3.0))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(1, 2, 4, 7), r"takes \(b, c, h, y, x\), got 4 axes: \(1, 2, 4, 7\)"),
        (torch.randn(1, 3, 4, 7, 7), r"has in_channels=2, got 3: \(1, 3, 4, 7, 7\)"),
        (torch.randn(1, 2, 8, 7, 7), "the h axis has length 8 but the grid has 4 elements"),
        (torch.ones(1, 2, 4, 7, 7, dtype=torch.long), "floating-point input, got torch.int64"),
        (torch.ones(1, 2, 4, 7, 7, dtype=torch.complex64), "floating-point input, got torch.complex64"),
        (
            torch.ones(1, 2, 4, 7, 7, dtype=torch.float64),
            "input is torch.float64 but the layer's parameters are torch.float32",
        ),
    ],
)
def test_bad_input(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sg.GroupConv(2, 3, 3, grid=sg.se2(4))(x)


def test_bad_images() -> None:
    lift = sg.LiftingConv(3, 4, 7, grid=sg.se2(4), padding="valid")
    with pytest.raises(ValueError, match=r"takes \(b, c, y, x\), got 3 axes: \(3, 28, 28\)"):
        lift(torch.randn(3, 28, 28))
    with pytest.raises(ValueError, match="in_channels=3, got 1"):
        lift(torch.randn(1, 1, 28, 28))
    with pytest.raises(ValueError, match=r"kernel_size=7 and padding=0 does not fit an input of shape \(1, 3, 5, 5\)"):
        lift(torch.randn(1, 3, 5, 5))
    with pytest.raises(ValueError, match=r"takes \(b, c, x\)"):
        sg.LiftingConv(1, 1, 3, grid=sg.scale1(2))(torch.randn(1, 1, 5, 5))


# --- equivariance lost, and said --------------------------------------------------------------------------------------


def test_a_stride_that_samples_off_centre_is_reported_once() -> None:
    conv = sg.GroupConv(2, 3, 3, grid=sg.se2(4), stride=2).eval()
    with pytest.warns(
        sg.EquivarianceWarning, match=r"GroupConv\(2, 3, kernel_size=3.*stride=2.*size 8.*sees 7 or 9"
    ) as caught:
        conv(torch.randn(1, 2, 4, 8, 8))
        conv(torch.randn(1, 2, 4, 8, 8))
    assert len(caught) == 1


def test_the_warning_is_right() -> None:
    """Where it is silent, quarter turns commute; where it speaks, they do not; its advice works."""
    import warnings

    for stride, padding, size in (
        (2, "same", 8),
        (2, "same", 9),
        (2, "valid", 9),
        (3, "same", 9),
        (3, 1, 10),
        (2, 0, 8),
    ):
        grid = sg.se2(4)
        lift = sg.LiftingConv(1, 3, 5, grid=grid, stride=stride, padding=padding).double().eval()
        x = torch.randn(1, 1, size, size, dtype=torch.float64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = sg.testing.equivariance_error(lift, x, grid=grid)
        error = max(entry.error for entry in report.exact)
        assert (error > 1e-3) == bool(caught), (stride, padding, size, error)
        if not caught:
            assert error < 1e-12


def test_plain_cnns_may_stride_as_they_like() -> None:
    sg.GroupConv(1, 1, 3, grid=sg.translation2(), stride=2)(torch.randn(1, 1, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sg.LiftingConv(1, 2, 3, grid=sg.se2(4))(torch.randn(1, 1, 8, 8, 8)),
            r"takes \(b, c, y, x\), got 5 axes.*acts on R\^2; \(z, y, x\) is for se3, scale3, translation3",
        ),
        (
            lambda: sg.LiftingConv(1, 2, 3, grid=sg.se3())(torch.randn(1, 1, 8, 8)),
            r"takes \(b, c, z, y, x\), got 4 axes.*acts on R\^3; \(y, x\) is for se2, e2, scale2, sim2, translation2",
        ),
        (
            lambda: sg.GroupConv(32, 64, 15, grid=sg.se3(), factorisation="nonseparable"),
            r"kernel_size=15 in 3 dimensions .* would take 17.6 GB to sample, more than 4 GB; kernels of up to 9 fit",
        ),
        (lambda: sg.LiftingConv(1, 2, 3, grid=sg.groups.SO2()), r"grid must be a grid, such as .*; got SO2"),
        (lambda: sg.models.resnet("se2"), "grid must be a grid, such as .*; got 'se2'"),
        (lambda: sg.models.allcnnc(8), "grid must be a grid, such as .*; got 8"),
        (lambda: sg.models.resnet(sg.se3(), kernel_size=4), r"kernel_size must be odd.*got 4"),
        (
            lambda: sg.ResidualBlock(2, 2, 3, grid=sg.se2(4), out_grid=sg.e2(4)),
            r"must sample one group, got SO2\(space=2\) and O2\(space=2\)",
        ),
        (
            lambda: sg.GroupConv(2, 2, 3, grid=sg.se3(), factorisation="h_separable"),
            r"'h_separable' needs two coordinates of H to tell apart.*got a grid with rotation",
        ),
    ],
)
def test_groups_and_inputs_that_do_not_go_together(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
