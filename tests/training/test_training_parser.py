"""A recipe that cannot be one is named, in a line, before anything is done."""

import pytest

from sepgconv import cli
from sepgconv.training.command import TrainingCLI

LAUGHS = "\n".join(f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch):
    """A recipe that is accepted would be trained for hours: it fails here instead."""

    def fit(*_, **__):
        pytest.fail("training has begun")

    monkeypatch.setattr(TrainingCLI, "fit", fit)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: &a\n  network: *a\n", "refers to itself"),
        (b"model: &a\n  grid: {group: se2}\n  extra: [*a]\n", "refers to itself"),
        (b"&a [*a]\n", "refers to itself"),
        (b"&a {data: *a, model: {}}", "refers to itself"),
        (b"model: " + 3000 * b"{a: " + b"1" + 3000 * b"}", "nested more than"),
        (b"model: &a " + 3000 * b"[" + 3000 * b"]", "nested more than"),
        (f"model:\n  a: &a [x, x]\n{LAUGHS}\n".encode(), "more than 10,000 values"),
        (bytes(range(128, 256)), "is not text"),
        (b"\xff\xfem\x00o\x00d\x00e\x00l\x00", "is not text"),
        (b"model:\n\x00\x01", "control characters are not allowed"),
        (b"a: [1,\n", "line 2"),
        (b"", "must be keys and values, as in recipes/"),
        (b"- 1\n- 2\n", "must be keys and values, as in recipes/"),
        (b"hello\n", "must be keys and values, as in recipes/"),
        (b"data: {name: 3}\n", "data.name"),
        (b"data: {name: mnist}\nmodel: {}\ndata: {limit: 9}\n", "the key 'data' is given twice"),
        (b"data: {limit: 8, name: digits, limit: 9}\n", "the key 'limit' is given twice"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path, capsys, content, message):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as exit:
        cli.main(["fit", f"--config={path}"])
    assert exit.value.code == 2
    said, advice = capsys.readouterr().err.splitlines()
    assert said.startswith(f"sepgconv: {path}")
    assert message in said
    assert advice.startswith("see sepgconv fit --help")


def test_a_value_on_the_command_line_cannot_refer_to_itself_either(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "--model.network=&a {kernel: *a}"])
    assert "refers to itself" in capsys.readouterr().err


def test_anchors_are_allowed(tmp_path, capsys):
    """Said once and used twice is what they are for."""
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {network: {kernel: &kernel {hidden: 4}}}\ndata: {augment: &empty {}}\n")
    with pytest.raises(SystemExit) as exit:
        cli.main(["fit", f"--config={path}", "--print_config"])
    assert exit.value.code == 0
    assert "hidden: 4" in capsys.readouterr().out


def test_bare_fit_shows_the_help_and_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fit"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: sepgconv fit --config RECIPE.yaml" in printed.err
    assert "recipes/digits/se2_separable_smoke.yaml" in printed.err
    assert list(tmp_path.iterdir()) == []
