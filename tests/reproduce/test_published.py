"""The published values and quotations are the paper's."""

import re

import pytest

from sepgconv.reproduce import experiments
from sepgconv.reproduce.summary import Published, published

every = pytest.mark.parametrize("experiment", experiments(), ids=lambda e: e.id)


def environment(paper: str, label: str) -> str:
    """The table that a label stands in."""
    for body in re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", paper, re.S):
        if f"\\label{{{label}}}" in body:
            return body
    raise AssertionError(f"the paper has no table {label}")


def in_units(value: Published) -> tuple[float, float | None]:
    """Value and deviation out of how the paper has them."""
    numbers = [float(n) for n in re.findall(r"\d*\.?\d+", value.tex)]
    mean = numbers[0] * value.scale
    std = numbers[1] * value.scale if "\\pm" in value.tex else None
    return (100 - mean if value.complement else mean), std


@pytest.mark.shared
@every
def test_published_values_stand_in_the_paper(experiment, paper: str) -> None:
    for value in published(experiment.id):
        assert value.tex in environment(paper, value.label), value
        mean, std = in_units(value)
        assert value.value == pytest.approx(mean, rel=1e-9), value
        assert value.std == (None if std is None else pytest.approx(std, rel=1e-9)), value


@pytest.mark.shared
@every
def test_claims_are_quoted(experiment, paper: str) -> None:
    text = " ".join(paper.split())
    for claim in [*experiment.recipe["claims"], *experiment.claims("long")]:
        if "quote" not in claim:
            assert "not said by the paper" in claim["says"]
            continue
        assert " ".join(claim["quote"].split()) in text, claim["quote"]


@pytest.mark.shared
@every
def test_labels_are_the_papers(experiment, paper: str) -> None:
    labels = re.findall(r"(?:fig|tab):[\w-]+", experiment.where)
    assert labels
    for label in labels:
        assert f"\\label{{{label}}}" in paper


@pytest.mark.shared
def test_the_whole_vision_table_is_there(paper: str) -> None:
    rows = len(re.findall(r"\\pm", environment(paper, "tab:results")))
    assert rows == sum(value.where is not None for value in published("vision")) == 35


@pytest.mark.shared
def test_no_value_of_the_other_tables_is_left_out(paper: str) -> None:
    assert len(re.findall(r"\\pm", environment(paper, "tab:activations"))) == len(published("activations"))
    assert len(re.findall(r"\d\.\d\d", environment(paper, "tab:rotmnistsota").split("midrule")[-1])) == len(
        published("rotmnist-sota")
    )


def test_no_two_published_values_are_of_one_setting() -> None:
    for experiment in experiments():
        keys = [(v.metric, str(v.where), v.other) for v in published(experiment.id)]
        assert len(keys) == len(set(keys))
