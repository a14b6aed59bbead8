"""The laws that a group must obey for layers to be equivariant."""

import math

import torch
from torch import Tensor

from sepgconv.groups._base import Group

TOLERANCE = 1e-9
TRIES = 12


def assert_group(group: Group, *, count: int = 4, extent: float = 1.0, seed: int = 0) -> None:
    """Raises an AssertionError that names the law and the elements unless a group's facts agree with each other.

    Elements are drawn all over the group with `spread`, in float64, and compared by their matrices.

    Args:
        group: what to check.
        count: how many elements its grids are sampled at; groups with `counts` take these.
        extent: length of the grids of a group that is not compact.
        seed: of the elements.
    """
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(3 * TRIES, group.numbers, generator=generator, dtype=torch.float64)
    a, b, c = group.spread(uniform, extent).split(TRIES)
    if a.shape[-1] != group.dim:
        raise AssertionError(f"{group.name}: spread must give elements of dim={group.dim} numbers, got {a.shape[-1]}")
    e = group.identity(a).expand_as(a)
    vector = group.matrix(a) @ torch.linspace(1, 2, group.space, dtype=torch.float64)
    back = (group.matrix(group.inverse(a)) @ vector[..., None])[..., 0]
    laws = {
        "a·e = a": (group.product(a, e), a),
        "e·a = a": (group.product(e, a), a),
        "a·a⁻¹ = e": (group.product(a, group.inverse(a)), e),
        "a⁻¹·a = e": (group.product(group.inverse(a), a), e),
        "(a·b)·c = a·(b·c)": (group.product(group.product(a, b), c), group.product(a, group.product(b, c))),
    }
    for law, (left, right) in laws.items():
        _same(group, law, group.matrix(left), group.matrix(right), a, b, c)
    _same(
        group,
        "matrix(a·b) = matrix(a)·matrix(b)",
        group.matrix(group.product(a, b)),
        group.matrix(a) @ group.matrix(b),
        a,
        b,
    )
    _same(
        group,
        "matrix(a⁻¹)·matrix(a) = 1",
        back,
        torch.linspace(1, 2, group.space, dtype=torch.float64).expand_as(back),
        a,
    )
    _same(group, "det is that of the matrix", group.det(a), torch.linalg.det(group.matrix(a)), a)
    if group.commutes:
        _same(group, "a·b = b·a", group.matrix(group.product(a, b)), group.matrix(group.product(b, a)), a, b)
    for part in group.parts:  # grids sample part by part
        _check_grids(part, count, extent, torch.rand(TRIES, part.numbers, generator=generator, dtype=torch.float64))


def _check_grids(group: Group, count: int, extent: float, uniform: Tensor) -> None:
    """Laws of what kernels and grids see: coordinates, samples and shifts."""
    seen, columns = group.coordinates(group.spread(uniform, extent)), sum(c.columns for c in group.seen)
    if seen.shape[-1] != columns:
        raise AssertionError(f"{group.name}: seen has {columns} columns, coordinates gives {seen.shape[-1]}")
    ranges = torch.tensor([c.range or math.inf for c in group.seen for _ in range(c.columns)], dtype=torch.float64)
    if (seen.abs() > ranges * (1 + TOLERANCE)).any():
        raise AssertionError(f"{group.name}: coordinates leave their ranges {ranges.tolist()}")
    for number in group.counts or (count,):
        elements = group.sample(number, extent)
        matrices = group.matrix(elements).flatten(1)
        distances = torch.cdist(matrices, matrices) + torch.eye(len(elements), dtype=torch.float64)
        if distances.min() < 1e-6:
            raise AssertionError(f"{group.name}: sample({number}) holds an element twice")
        if group.compact:  # h·H = H: only then does a grid's own element map the grid to itself
            pairs = group.matrix(group.product(elements[:, None], elements[None])).flatten(2).flatten(0, 1)
            off, place = torch.cdist(pairs, matrices).amin(1).max(0)
            if off > 1e-6:
                h, g = (elements[n].tolist() for n in divmod(int(place), len(elements)))
                raise AssertionError(f"{group.name}: sample({number}) is no subgroup: {h}·{g} is not in it")
        numbers = torch.rand(TRIES, group.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        shifts = group.draw(numbers, group.cell(number, extent))
        if shifts.shape != numbers.shape or not shifts.isfinite().all():
            raise AssertionError(f"{group.name}: draw must give {group.dimension} finite numbers for exp")
        group.matrix(group.exp(shifts))


def _same(group: Group, law: str, left: Tensor, right: Tensor, *elements: Tensor) -> None:
    """Raises the error for the first elements that break a law."""
    for n, (one, other) in enumerate(zip(left, right, strict=True)):
        if not torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE):
            names = ", ".join(f"{name} = {element[n].tolist()}" for name, element in zip("abc", elements, strict=False))
            off = (one - other).abs().max().item()
            raise AssertionError(f"{group.name} breaks the law {law} by {off:.1e} at {names}")
