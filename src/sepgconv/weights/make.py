"""`python -m sepgconv.weights.make NAME RUN`: the weights of a finished run, with a card that says what they are."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepgconv.data.places import atomic_write
from sepgconv.training import Augment, load_trained, storage

LARGEST = 2_000_000  # bytes
KINDS = {
    "digits": "`digits`, 4,500 upright images of MNIST that come with the package",
    "mnist-rot": "`mnist-rot`, 10,000 turned images of MNIST",
}
LICENCES = {
    "digits": "MIT; trained on MNIST (Y. LeCun, C. Cortes, C. Burges), CC BY-SA 3.0",
    "mnist-rot": "MIT; trained on MNIST (Y. LeCun, C. Cortes, C. Burges), CC BY-SA 3.0",
}


def make(name: str, run: Path, folder: Path) -> Path:
    """Writes the best weights of a run, rounded, to a folder, with their card beside them; returns the card's path.

    Raises:
        ValueError: they are too large, or of data whose licence does not allow it.
    """
    source = run / "checkpoints" / "best.safetensors"
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    data = result["settings"]["data"].get("name", "a folder of images")
    if data not in LICENCES:
        raise ValueError(f"weights that are shipped must be trained on one of {', '.join(LICENCES)}; got {data}")
    checkpoint, target = storage.read(source), folder / f"{name}.safetensors"
    weights = {key.removeprefix(storage.PREFIX): rounded(value) for key, value in checkpoint["state_dict"].items()}
    size = sum(value.nbytes for value in weights.values())
    if size > LARGEST:
        raise ValueError(
            f"weights that are shipped must have at most {LARGEST:,} bytes, those of {source} have {size:,}"
        )
    storage.write_weights(target, weights, checkpoint)
    classes = load_trained(target).classes  # which also checks the file
    path = folder / f"{name}.md"
    with atomic_write(path) as file:
        file.write(card(name, result, data, classes).encode())
    return path


def rounded(weight: Tensor) -> Tensor:
    """Matrices in half precision, everything else as it is: variances of norms may be too small for that."""
    return weight.half() if weight.ndim > 1 and weight.dtype == torch.float32 else weight


def card(name: str, result: dict[str, Any], data: str, classes: Sequence[str]) -> str:
    """What one should know about weights before using them."""
    model, seen = result["settings"]["model"], result["settings"]["data"]
    network = model["network"]
    usual = asdict(Augment())
    changes = ", ".join(f"{key} {value}" for key, value in seen["augment"].items() if value != usual.get(key))
    turned = ", every test image turned by an angle of its own" if seen.get("rotate_test") else ""
    limit = f", {seen['limit']:,} training images" if seen.get("limit") else ""
    rows = {
        "network": f"{network['name']}, {network['factorisation']}, width {network['width']}",
        "group": f"{model['grid']['group']}, {model['grid']['rotations']} rotations",
        "parameters": f"{result['parameters']:,}",
        "precision": "matrices rounded to 16 bits, the rest in 32",
        "classes": ", ".join(classes),
        "data": f"{KINDS[data]}{limit}; changed in training: {changes or 'nothing'}",
        "length": f"{result['epochs']} epochs, {result['steps']:,} steps",
        "test error": f"{result['metrics']['test/error']:.2f} %{turned}",
        "seed": result["seed"],
        "commit": result["commit"] or "not known",
        "licence": LICENCES[data],
    }
    lines = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return (
        f"# {name}\n\n| | |\n|---|---|\n{lines}\n\n"
        f'`sepgconv.models.load("{name}")` gives the network. It knows centred, light digits on a dark ground and '
        "nothing else: of any other picture it names a digit, too, and its probabilities say nothing there.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m sepgconv.weights.make", description="Weights of a run, with a card.")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of a finished run")
    options = parser.parse_args(arguments)
    print(f"wrote {make(options.name, options.run, Path(__file__).parent)}")


if __name__ == "__main__":
    main()
