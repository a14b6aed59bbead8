from pathlib import Path

import pytest
import torch

from sepgconv.data import embedded, join, load
from sepgconv.data.mnist import read_mnist

ASSETS = Path(embedded.__file__).parent / "assets"


def test_it_is_balanced_and_disjoint() -> None:
    data = load("digits", download=False)
    assert [len(s) for s in data.splits.values()] == [4500, 500, 1000]
    for split in data.splits.values():
        assert split.labels.bincount().tolist() == [len(split) // 10] * 10
    assert len(join(*data.splits.values()).images.unique(dim=0)) == 6000


def test_labels_are_right() -> None:
    # The mean image of each class in train classifies most of test: shuffled labels would give 10 %.
    data = load("digits")
    means = torch.stack([data.train.images[data.train.labels == k].float().mean(0) for k in range(10)])
    distances = torch.cdist(data.test.images.float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == data.test.labels).float().mean() > 0.75


def test_it_is_small_and_says_its_licence() -> None:
    assert sum(f.stat().st_size for f in ASSETS.iterdir()) < 1.3e6
    note = (ASSETS / "LICENSE-digits.txt").read_text()
    assert all(words in note for words in ("LeCun", "Cortes", "Burges", "CC BY-SA 3.0"))


def test_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (ASSETS / "digits.xz").read_bytes()
    path = tmp_path / "digits.xz"
    monkeypatch.setattr(embedded, "ASSET", path)
    path.write_bytes(whole[:-1000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        embedded.read()
    path.write_bytes(whole[:5000] + b"!" + whole[5001:])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        embedded.read()
    path.write_bytes(whole)
    monkeypatch.setattr(embedded, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=f"expected content of sha256 000.*found {'[0-9a-f]' * 8}"):
        embedded.read()


@pytest.mark.shared
def test_it_is_what_its_script_makes(shared: Path, tmp_path: Path) -> None:
    made = embedded.make(str(shared), tmp_path / "digits.xz")
    assert made == embedded.SHA256
    train, test = read_mnist(shared, download=False)
    ours = {i.tobytes() for i in join(*embedded.read()).images.numpy()}
    assert ours <= {i.tobytes() for i in train.images.numpy()}
    assert not ours & {i.tobytes() for i in test.images.numpy()}
