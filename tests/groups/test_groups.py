"""One law suite, run over all groups in both precisions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from sepgconv.groups import SO2, Dilation, Group, Product, Trivial, direct_product

GROUPS = {
    "trivial1": Trivial(1),
    "trivial3": Trivial(3),
    "rotation": SO2(2),
    "rotation in space": SO2(3),
    "dilation of lines": Dilation(1),
    "dilation of space": Dilation(3),
    "rotation × dilation": direct_product(SO2(2), Dilation(2)),
    "rotation × dilation in space": direct_product(SO2(3), Dilation(3)),
}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
# Angles up to just below the cut, and exactly on it; log-scales of a few octaves.
ANGLES = st.floats(-math.pi + 1e-3, math.pi - 1e-3) | st.sampled_from([math.pi, -math.pi + 1e-3, 0.0, 1e-9, -1e-9])
LOGS = st.floats(-1.5, 1.5)

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def algebra(data: st.DataObject, group: Group, dtype: torch.dtype) -> torch.Tensor:
    values = [data.draw(ANGLES if part.period else LOGS) for part in group.parts]
    return torch.tensor(values, dtype=dtype)


def same(group: Group, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal as group elements: near the cut two angles may differ by 2π."""
    tolerance = TOLERANCE[dtype]
    assert a.dtype == b.dtype == dtype
    assert_close(group.matrix(a), group.matrix(b), atol=tolerance, rtol=tolerance)


@every_group
@both_precisions
@given(data=st.data())
def test_product_is_associative(group: Group, dtype: torch.dtype, data: st.DataObject) -> None:
    a, b, c = (group.exp(algebra(data, group, dtype)) for _ in range(3))
    same(group, group.product(group.product(a, b), c), group.product(a, group.product(b, c)), dtype)


@every_group
@both_precisions
@given(data=st.data())
def test_identity_and_inverse(group: Group, dtype: torch.dtype, data: st.DataObject) -> None:
    a = group.exp(algebra(data, group, dtype))
    e = group.identity(a)
    same(group, group.product(a, e), a, dtype)
    same(group, group.product(e, a), a, dtype)
    same(group, group.product(a, group.inverse(a)), e, dtype)
    same(group, group.product(group.inverse(a), a), e, dtype)
    assert_close(group.log(e), torch.zeros_like(e))


@every_group
@both_precisions
@given(data=st.data())
def test_exp_and_log_are_inverse(group: Group, dtype: torch.dtype, data: st.DataObject) -> None:
    v = algebra(data, group, dtype)
    same(group, group.exp(group.log(group.exp(v))), group.exp(v), dtype)
    on_cut = torch.tensor([bool(p.period) for p in group.parts], dtype=torch.bool) & (v.abs() > math.pi - 1e-4)
    assert_close(group.log(group.exp(v))[~on_cut], v[~on_cut], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@every_group
@both_precisions
@given(data=st.data())
def test_matrix_is_a_homomorphism(group: Group, dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = (group.exp(algebra(data, group, dtype)) for _ in range(2))
    tolerance = TOLERANCE[dtype]
    product = group.matrix(a) @ group.matrix(b)
    assert_close(group.matrix(group.product(a, b)), product, atol=tolerance, rtol=tolerance)
    x = torch.arange(1, group.space + 1, dtype=dtype)
    assert_close(group.matrix(group.inverse(a)) @ (group.matrix(a) @ x), x, atol=tolerance, rtol=tolerance)


@every_group
@both_precisions
@given(data=st.data())
def test_determinant(group: Group, dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = (group.exp(algebra(data, group, dtype)) for _ in range(2))
    assert_close(group.det(a), torch.linalg.det(group.matrix(a)), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    product = group.det(a) * group.det(b)
    assert_close(group.det(group.product(a, b)), product, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@every_group
@given(data=st.data())
def test_batches_are_element_by_element(group: Group, data: st.DataObject) -> None:
    vectors = torch.stack([algebra(data, group, torch.float64) for _ in range(3)])
    a = group.exp(vectors)
    b = group.inverse(a)
    for function in (group.log, group.matrix, group.det, group.inverse):
        assert_close(function(a), torch.stack([function(row) for row in a]))
    assert_close(group.product(a, b), torch.stack([group.product(x, y) for x, y in zip(a, b, strict=True)]))


def test_log_is_principal_and_continuous_at_the_identity() -> None:
    exact = torch.float64
    angles = torch.tensor(
        [[-1e-7], [0.0], [1e-7], [3.0], [-3.0], [2 * math.pi + 0.1], [-2 * math.pi - 0.1]], dtype=exact
    )
    expected = torch.tensor([[-1e-7], [0.0], [1e-7], [3.0], [-3.0], [0.1], [-0.1]], dtype=exact)
    assert_close(SO2().log(SO2().exp(angles)), expected, atol=1e-12, rtol=0)
    assert SO2().exp(torch.tensor([-math.pi], dtype=torch.float64)).item() == pytest.approx(math.pi)


def test_rotation_turns_counter_clockwise() -> None:
    quarter = SO2().matrix(torch.tensor([math.pi / 2], dtype=torch.float64))
    assert_close(quarter @ torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double(), atol=1e-15, rtol=0)


def test_direct_product_flattens_and_checks() -> None:
    assert direct_product(SO2(2)) == SO2(2)
    assert direct_product(Trivial(2), SO2(2)) == SO2(2)
    sim = direct_product(SO2(2), Dilation(2))
    assert isinstance(sim, Product)
    assert [part.name for part in sim.parts] == ["rotation", "scale"]
    with pytest.raises(ValueError, match=r"act on R\^2.*\[2, 3\]"):
        direct_product(SO2(2), Dilation(3))
    with pytest.raises(ValueError, match="must differ"):
        direct_product(SO2(2), SO2(2))
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        SO2(1)
    with pytest.raises(ValueError, match="at least one group"):
        direct_product()
