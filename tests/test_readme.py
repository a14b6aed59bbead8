import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_gives_logits_that_a_turn_does_not_change(capsys) -> None:
    block = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert block is not None
    names: dict = {}
    exec(block.group(1), names)
    assert names["logits"].shape == (4, 10)
    assert names["logits"].std() > 1e-3
    change = float(re.search(r"tensor\(([\d.e-]+)", capsys.readouterr().out).group(1))
    assert change < 1e-5


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target
