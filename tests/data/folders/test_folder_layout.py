"""What a folder or a table says of its images, and what is wrong with it."""

from pathlib import Path

import pytest

from sepgconv.data.folders.layout import find, images_below


def table(folder: Path, *lines: str, name: str = "labels.csv") -> Path:
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder / name


def test_a_folder_per_class(tmp_path, image_folder):
    folder = image_folder(tmp_path / "own", {"cat": 2, "dog": 1, "dog/young": 1})
    (folder / ".hidden").mkdir()
    (folder / "dog" / "notes.txt").write_text("x")
    (folder / "loose.png").write_bytes(b"x")
    layout = find(folder)
    found = [(s.file, s.label, s.part) for s in layout.samples]
    assert found == [
        ("cat/000.png", "cat", None),
        ("cat/001.png", "cat", None),
        ("dog/000.png", "dog", None),
        ("dog/young/000.png", "dog", None),
    ]
    assert any("loose.png" in remark for remark in layout.remarks)
    assert any(remark.startswith("left out: 1 files") and ".txt" in remark for remark in layout.remarks)


@pytest.mark.parametrize("valid", ["val", "valid", "Validation"])
def test_a_folder_per_part(tmp_path, image_folder, valid):
    counts = {f"{part}/{label}": 1 for part in ("train", valid, "test", "all") for label in "ab"}
    layout = find(image_folder(tmp_path / "own", counts))
    assert {s.file: s.part for s in layout.samples} == {
        f"{folder}/{label}/000.png": part
        for folder, part in (("train", "train"), (valid, "valid"), ("test", "test"))
        for label in "ab"
    }
    assert layout.remarks == ("left out: the folder all/ beside train",)


def test_a_table_with_parts_and_groups(tmp_path, image_folder):
    image_folder(tmp_path, {"x": 4})
    rows = [f"x/00{i}.png, {'ab'[i % 2]}, {['train', 'val', 'test', 'train'][i]}, p{i}" for i in range(4)]
    layout = find(table(tmp_path, "\ufefffilename,Class,split,patient", *rows), "patient")
    assert [(s.label, s.part, s.group) for s in layout.samples] == [
        ("a", "train", "p0"),
        ("b", "valid", "p1"),
        ("a", "test", "p2"),
        ("b", "train", "p3"),
    ]


def test_a_quoted_value_is_taken_as_it_is(tmp_path, image_folder):
    """Line breaks of any kind are part of it: otherwise two classes would become one."""
    image_folder(tmp_path, {"x": 3})
    rows = ['x/000.png,"an\nother"', "x/001.png,another", "x/002.png,an\u2028other"]
    layout = find(table(tmp_path, "file,label", *rows))
    assert [sample.label for sample in layout.samples] == ["an\nother", "another", "an\u2028other"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file;label", "x/000.png;a"], "must have a column file or filename or path or image, found file;label"),
        (["file,kind", "x/000.png,a"], "must have a column label or class"),
        (["file,label", "x/000.png,a", "x/000.png,b"], "names x/000.png twice, in lines 2 and 3"),
        (["file,label", "x/000.png,a", "x/9.png,b"], "names 1 files that are not in"),
        (["file,label", "x/000.png,a", "x/001.png,"], "line 3: there is no label"),
        (["file,label,split", "x/000.png,a,train", "x/001.png,b,dev"], "line 3: split must be one of train"),
        (["file,label,split", "x/000.png,a,train", "x/001.png,b,"], "says the split of 1 files only, of 2"),
        (["file,label", "x/000.png,a"], "has one class, 'a'"),
        (
            ["file,label,class", "x/000.png,a,c", "x/001.png,b,d"],
            "has 2 columns for the label: label, class; leave one",
        ),
        (
            ["file,label,label", "x/000.png,a,c", "x/001.png,b,d"],
            "has 2 columns for the label: label, label; leave one",
        ),
        (["file,label", "x/000.png,cat, old", "x/001.png,cat"], "line 2: there are more values than columns"),
        (["file,label", f"x/000.png,{'a' * 200_000}", "x/001.png,b"], "is not a table: field larger than field limit"),
        (["file,label"], "has no images"),
        ([""], "found nothing"),
    ],
)
def test_tables_that_cannot_be_understood(tmp_path, image_folder, lines, message):
    image_folder(tmp_path, {"x": 2})
    with pytest.raises(ValueError, match=message):
        find(table(tmp_path, *lines))


def test_a_group_must_be_a_column(tmp_path, image_folder):
    image_folder(tmp_path, {"x": 2, "y": 1})
    path = table(tmp_path, "file,label", "x/000.png,a", "x/001.png,b")
    with pytest.raises(ValueError, match=r"group must be a column of .* \(file, label\), got 'patient'"):
        find(path, "patient")
    with pytest.raises(ValueError, match="is no CSV"):
        find(tmp_path, "patient")


def test_folders_that_cannot_be_used(tmp_path, image_folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no images"):
        find(tmp_path / "empty")
    with pytest.raises(ValueError, match="one class, 'only'; there must be at least two"):
        find(image_folder(tmp_path / "one", {"only": 3}))
    with pytest.raises(ValueError, match=r"b has no images: fill it or take it away"):
        find(image_folder(tmp_path / "hollow", {"a": 2, "b": 0}))
    with pytest.raises(ValueError, match=r"labels of test must be those of train \(a, b\), found c as well"):
        find(image_folder(tmp_path / "other", {"train/a": 1, "train/b": 1, "test/a": 1, "test/c": 1}))
    with pytest.raises(ValueError, match="two folders for one part: train, val, valid"):
        find(image_folder(tmp_path / "twice", {"train/a": 1, "val/a": 1, "valid/a": 1}))
    with pytest.raises(FileNotFoundError, match="which is not there"):
        find(tmp_path / "none")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ValueError, match="must be a folder, or a table"):
        find(tmp_path / "file.txt")


def test_links_are_followed_but_not_in_circles(tmp_path, image_folder):
    folder = image_folder(tmp_path / "own", {"a": 1})
    (folder / "a" / "again").symlink_to(folder)
    (folder / "b").symlink_to(image_folder(tmp_path / "there", {"b": 1}) / "b")
    assert [path.relative_to(folder).as_posix() for path in images_below(folder)] == ["a/000.png", "b/000.png"]
