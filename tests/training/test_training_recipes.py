"""Recipes by name, wherever one is."""

from pathlib import Path

import pytest

from sepgconv import cli
from sepgconv.training import recipes

ROOT = Path(__file__).parents[2]


def test_all_recipes_of_the_clone_ship_with_the_package(capsys):
    there = {
        path.relative_to(ROOT / "recipes").with_suffix("").as_posix() for path in (ROOT / "recipes").rglob("*.yaml")
    }
    assert set(recipes.names()) == there
    assert cli.main(["recipes", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == there
    assert all(len(line.split()) > 3 for line in lines)  # each says what it is


@pytest.mark.parametrize("name", ["digits/se2_separable_smoke", "recipes/digits/se2_separable_smoke.yaml"])
@pytest.mark.parametrize("form", ["--config={}", "--config {}"])
def test_names_are_found_outside_of_a_clone(name, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = recipes.resolve(["fit", *form.format(name).split(), "--output=x"])
    assert (
        Path(found[-2].removeprefix("--config=")).read_text()
        == (ROOT / "recipes/digits/se2_separable_smoke.yaml").read_text()
    )
    assert (found[0], found[-1]) == ("fit", "--output=x")


def test_a_file_of_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("output: x")
    assert recipes.resolve(["fit", "--config=mine.yaml"]) == ["fit", "--config=mine.yaml"]


def test_names_that_there_are_not_get_the_nearest(capsys):
    assert cli.main(["fit", "--config", "folder/se2_seperable_cpu"]) == 1
    assert "got 'folder/se2_seperable_cpu'; did you mean 'folder/se2_separable_cpu'?" in capsys.readouterr().err


def test_a_copy_is_never_written_over_another_file(tmp_path, capsys):
    assert cli.main(["recipes", "copy", "folder/cnn_cpu", str(tmp_path)]) == 0
    assert (tmp_path / "cnn_cpu.yaml").read_bytes() == (ROOT / "recipes/folder/cnn_cpu.yaml").read_bytes()
    assert cli.main(["recipes", "copy", "folder/cnn_cpu", str(tmp_path / "cnn_cpu.yaml")]) == 1
    assert "there is a file" in capsys.readouterr().err
    assert cli.main(["recipes", "copy", "folder/cnn_cpu", str(tmp_path / "none" / "a.yaml")]) == 1


def test_a_folder_alone_gets_a_recipe(capsys):
    assert recipes.for_folder(["fit", "--data.folder=x"]) == ["fit", "--config", recipes.OF_FOLDERS, "--data.folder=x"]
    assert "folder/se2_separable_cpu is taken" in capsys.readouterr().err
    for arguments in (["test", "--data.folder=x"], ["fit", "--config=y", "--data.folder", "x"], ["fit", "--output=x"]):
        assert recipes.for_folder(arguments) == arguments
