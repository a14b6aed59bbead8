"""Between pixels and grid elements the error is small, and falls with ω₀ and with the resolution of the group."""

import math

import torch
from torch import nn

import sepgconv as sg
from sepgconv.analysis.equivariance import (
    OMEGAS,
    SCALES,
    band_limit_table,
    centre_errors,
    dilation_table,
    logit_changes,
    rotation_table,
)


def test_rotations_between_the_grid() -> None:
    table = rotation_table()
    rows = {(omega0, n): errors for omega0, n, errors, _ in table}
    print(f"\ninterpolating the image alone: {max(alone for *_, alone in table):.1e}")
    print("  ω₀   n  " + "  ".join(next(iter(rows.values()))))
    for (omega0, n), errors in rows.items():
        print(f"{omega0:4g} {n:3d}  " + "  ".join(f"{e:9.1e}" for e in errors.values()))
    for omega0 in OMEGAS:
        for case in rows[omega0, 4]:
            assert rows[omega0, 4][case] > rows[omega0, 8][case] > rows[omega0, 16][case], (omega0, case)
    for n in (4, 8, 16):
        for case in rows[1.0, n]:
            errors = [rows[omega0, n][case] for omega0 in OMEGAS]
            assert errors == sorted(errors), (n, case)
    assert all(error < 0.05 for error in rows[10.0, 8].values())
    # Random grids, averaged, turn with the image where a fixed grid of four does not.
    assert rows[10.0, 4]["30° random"] < rows[10.0, 4]["45° fixed"] / 3


def test_one_step_of_scale() -> None:
    rows = {(name, omega0, n): (one, everywhere) for name, omega0, n, one, everywhere, _ in dilation_table()}
    print("\n  group   ω₀   n  one scale  everywhere")
    for (name, omega0, n), (one, everywhere) in rows.items():
        print(f"{name:>7s} {omega0:4g} {n:3d}  {one:9.1e}  {everywhere:9.1e}")
    for name in ("scale2", "sim2"):
        for n in SCALES:
            errors = [rows[name, omega0, n][0] for omega0 in OMEGAS]
            assert errors == sorted(errors), (name, n)
        for omega0 in OMEGAS:
            ends = [rows[name, omega0, n][1] for n in SCALES]
            assert ends == sorted(ends, reverse=True), (name, omega0)
            assert rows[name, omega0, SCALES[-1]][0] < rows[name, omega0, SCALES[0]][0], (name, omega0)
            assert max(rows[name, omega0, n][0] for n in SCALES) < 0.1


def test_band_limited_kernels_turn_well_between_the_pixels() -> None:
    rows = dict(band_limit_table((None, 0.4)))
    for cutoff, errors in rows.items():
        print(f"\n{cutoff}  " + "  ".join(f"{name} {e:.1e}" for name, e in errors.items()), end="")
    for case, error in rows[None].items():
        assert rows[0.4][case] < error / 2, case
    assert rows[None]["ReLU between and after"] > 3e-2
    assert rows[0.4]["ReLU between"] < 8e-3
    assert rows[0.4]["SiLU between and after"] < 8e-3
    assert rows[0.4]["the same, then pooled"] < 8e-3
    assert rows[0.4]["none"] < 2e-3
    assert rows[None]["ReLUs, at the centre"] > 3e-2
    assert rows[0.4]["ReLUs, at the centre"] < 8e-3


def test_at_the_centre_quarter_turns_are_exact() -> None:
    assert centre_errors(90.0, 8, 10.0, places=5, seeds=1) < 1e-13


def test_logits_change_less_between_the_pixels() -> None:
    """Networks as they are drawn, on noise that fades to the border."""
    images = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    line = torch.linspace(-1, 1, 28)
    images = images * (1 - line[:, None].square() - line.square()).clamp_min(0)
    changes = []
    for settings in ({}, {"antialias": True, "kernel": sg.KernelConfig(cutoff=0.4)}):
        torch.manual_seed(0)
        net = sg.models.resnet(sg.se2(8), width=0.25, **settings)
        changes.append(logit_changes(net, images, (10.0, 22.5, 45.0, 90.0)))
    assert all(after < 0.7 * before for before, after in zip(changes[0][:3], changes[1][:3], strict=True)), changes
    assert changes[1][3] < 1e-4
    assert logit_changes(nn.Flatten(), images, (90.0,))[0] > 0.5


def test_logits_change_less_by_shifts_of_one_and_of_half_a_pixel() -> None:
    """Behind two strides of two a shift by one pixel is a quarter of one."""
    images = torch.randn(16, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    line = torch.linspace(-1, 1, 28)
    images = images * (1 - line[:, None].square() - line.square()).clamp_min(0)
    changes = []
    for settings in ({}, {"antialias": True, "kernel": sg.KernelConfig(cutoff=0.4)}):
        torch.manual_seed(0)
        net = sg.models.resnet(sg.se2(8), width=0.25, **settings)
        report = sg.testing.equivariance_error(net, images, grid=sg.se2(8), shifts=((0, 1), (0.5, 0.5)))
        changes.append([entry.variation_error or math.inf for entry in report])
    assert all(after < 0.7 * before for before, after in zip(*changes, strict=True)), changes
