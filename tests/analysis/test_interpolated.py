"""Between pixels and grid elements the error is small, and falls with ω₀ and with the resolution of the group."""

from sepgconv.analysis.equivariance import OMEGAS, dilation_table, rotation_table


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
        fixed = [rows[omega0, n]["45° fixed"] for omega0 in OMEGAS]
        assert fixed == sorted(fixed), n
        for case in ("10° random", "30° random"):
            assert rows[1.0, n][case] < rows[10.0, n][case], (n, case)
    assert all(error < 0.02 for error in rows[10.0, 8].values())
    # Random grids, averaged, turn with the image where a fixed grid of four does not.
    assert rows[10.0, 4]["30° random"] < rows[10.0, 4]["45° fixed"] / 3


def test_one_step_of_scale() -> None:
    rows = {(name, omega0, n): (inside, everywhere) for name, omega0, n, inside, everywhere, _ in dilation_table()}
    print("\n  group   ω₀   n     inside  everywhere")
    for (name, omega0, n), (inside, everywhere) in rows.items():
        print(f"{name:>7s} {omega0:4g} {n:3d}  {inside:9.1e}  {everywhere:9.1e}")
    for name in ("scale2", "sim2"):
        for n in (4, 8):
            assert rows[name, 1.0, n][0] < rows[name, 10.0, n][0], (name, n)
        for omega0 in OMEGAS:
            assert rows[name, omega0, 4][1] > rows[name, omega0, 8][1], (name, omega0)
            assert max(rows[name, omega0, n][0] for n in (4, 8)) < 0.05
