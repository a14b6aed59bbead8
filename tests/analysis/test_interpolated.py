"""Between pixels and grid elements the error is small, and falls with ω₀ and with the resolution of the group."""

from sepgconv.analysis.equivariance import OMEGAS, SCALES, dilation_table, rotation_table


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
