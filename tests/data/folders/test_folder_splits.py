"""Parts are in proportion by class, the same for a seed, and never divide what belongs together."""

from collections import Counter

import pytest

from sepgconv.data.folders.layout import Sample
from sepgconv.data.folders.splits import assign


def samples(counts: dict[str, int], **more: str) -> list[Sample]:
    return [Sample(f"{label}/{i}", label, **more) for label, count in counts.items() for i in range(count)]


def names(given: list[Sample]) -> list[str]:
    return [sample.file for sample in given]


@pytest.mark.parametrize("seed", range(3))
def test_every_class_is_in_proportion(seed):
    given = samples({"a": 100, "b": 20, "c": 3})
    parts = assign(given, names(given), seed=seed)
    found = Counter(zip((s.label for s in given), parts, strict=True))
    expected = {"a": (70, 15, 15), "b": (14, 3, 3), "c": (1, 1, 1)}
    for label, counts in expected.items():
        assert tuple(found[label, part] for part in ("train", "valid", "test")) == counts


def test_parts_follow_from_seed_and_names_alone():
    given = samples({"a": 30, "b": 30})
    parts = dict(zip(names(given), assign(given, names(given), seed=1), strict=True))
    backwards = given[::-1]
    assert dict(zip(names(backwards), assign(backwards, names(backwards), seed=1), strict=True)) == parts
    assert dict(zip(names(given), assign(given, names(given), seed=2), strict=True)) != parts


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_never_divided(seed):
    given = [Sample(f"{i}", "ab"[i % 2], group=f"p{i % 13}") for i in range(200)]
    parts = assign(given, [sample.group for sample in given], seed=seed)
    by_group = {sample.group: set() for sample in given}
    for sample, part in zip(given, parts, strict=True):
        by_group[sample.group].add(part)
    assert all(len(found) == 1 for found in by_group.values())
    counts = Counter(parts)
    assert counts["train"] > 2 * max(counts["valid"], counts["test"]) > 0
    assert {(s.label, p) for s, p in zip(given, parts, strict=True)} == {(a, p) for a in "ab" for p in counts}


def test_what_the_folder_says_stays_and_only_what_is_missing_is_drawn():
    given = samples({"a": 10, "b": 10}, part="train") + [Sample(f"test/{c}", c, "test") for c in "ab"]
    parts = assign(given, names(given))
    assert parts[-2:] == ["test", "test"]
    assert Counter(parts) == {"train": 16, "valid": 4, "test": 2}


def test_too_few_images_name_the_class():
    given = samples({"a": 10, "few": 2})
    with pytest.raises(ValueError, match=r"class 'few' has 2 images, too few .* at least 3"):
        assign(given, names(given))
    given = [Sample(f"{i}", "ab"[i % 2], group=f"p{i % 2}") for i in range(20)]
    with pytest.raises(ValueError, match=r"class 'a' has no image in .* groups must not be divided"):
        assign(given, [sample.group for sample in given])
    given = [*samples({"a": 5, "b": 5}, part="train"), Sample("v", "a", "valid"), Sample("t", "a", "test")]
    with pytest.raises(ValueError, match="class 'b' has no image in valid and test"):
        assign(given, names(given))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"valid": 0.0}, "valid must be a share"),
        ({"test": 1.5}, "test must be a share"),
        ({"valid": 0.5, "test": 0.5}, "must leave images to train on"),
    ],
)
def test_shares_must_leave_something(shares, message):
    given = samples({"a": 10, "b": 10})
    with pytest.raises(ValueError, match=message):
        assign(given, names(given), **shares)
