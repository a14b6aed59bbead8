"""What the pages show runs, as it stands there; and where two pages state one figure, it is the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M))
]
# What takes minutes, made small; everything else is run to the letter.
SMALL = {
    "Trainer(max_epochs=3,": "Trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=1, limit_test_batches=1,",
    "NetworkConfig(width=0.5)": "NetworkConfig(width=0.1)",
    "torch.randn(64, 1, 28, 28)": "torch.randn(1, 1, 28, 28)",
    "digits.train.images.float()": "digits.train.images[:64].float()",
    "digits.train.labels)": "digits.train.labels[:64])",
    "for epoch in range(3):": "for epoch in range(1):",
    "digits.test.images.float()": "digits.test.images[:64].float()",
    "!= digits.test.labels": "!= digits.test.labels[:64]",
}


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run_alone(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, small in SMALL.items():
        snippet = snippet.replace(text, small)
    exec(snippet, {"__name__": "snippet"})


def test_there_are_snippets_and_all_shortcuts_are_used() -> None:
    texts = [str(snippet.values[0]) for snippet in SNIPPETS]
    assert len(texts) >= 4
    assert [text for text in SMALL if not any(text in snippet for snippet in texts)] == []


def test_readme_and_docs_state_one_worst_error() -> None:
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/equivariance.md"))
    row = re.search(r"\| one layer \(840 of them\) \| (\S+) \| (\S+) \|", page)
    assert row is not None
    stated = re.search(r"840\s+single layers [^:]*?is (\S+) in float32 and (\S+) in\s+float64", readme)
    assert stated is not None
    assert stated.groups() == row.groups()
    nets = re.search(r"\| four layers with a residual block \(528 nets\) \| (\S+) \| (\S+) \|", page)
    assert nets is not None
    assert all(float(figure) < limit for figure, limit in zip(nets.groups(), (1e-5, 1e-11), strict=True))


def test_recipes_that_pages_name_are_there() -> None:
    for page in PAGES:
        for name in re.findall(r"recipes/[\w/]+\.yaml", page.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file() or (ROOT / "src/sepgconv/reproduce" / name).is_file(), f"{page.name}: {name}"


def test_readme_says_what_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ". .venv/bin/activate" in text
    assert "predict --ckpt" in text
    assert "--invert" in text
