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
from sepgconv.data.registry import entry
from sepgconv.training import Augment, load_trained, storage

LARGEST = 2_000_000  # bytes
SELECTION = "-selection"  # ends the name of data whose test images are those that choices are made on
KINDS = {
    "digits": "upright images of MNIST that come with the package",
    "mnist-rot": "turned images of MNIST",
}
LICENCES = {
    "digits": "MIT; trained on MNIST (Y. LeCun, C. Cortes, C. Burges), CC BY-SA 3.0",
    "mnist-rot": "MIT; trained on MNIST (Y. LeCun, C. Cortes, C. Burges), CC BY-SA 3.0",
}


def make(name: str, run: Path, folder: Path, test_error: float | None = None) -> Path:
    """Writes the best weights of a run, rounded, to a folder, with their card beside them; returns the card's path.

    Args:
        name: of the weights.
        run: the directory of a finished run.
        folder: where they go.
        test_error: in percent, of a run that was tested on the images that choices are made on; from `sepgconv test`.

    Raises:
        ValueError: they are too large, or of data whose licence does not allow it, or the test error is missing.
    """
    source = run / "checkpoints" / "best.safetensors"
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    tested = result["settings"]["data"].get("name", "a folder of images")
    data = tested.removesuffix(SELECTION)
    if data not in LICENCES:
        raise ValueError(f"weights that are shipped must be trained on one of {', '.join(LICENCES)}; got {data}")
    if (test_error is None) != (tested == data):
        raise ValueError(
            f"the run was tested on {tested}: "
            + ("give its error on the test images" if test_error is None else "its test error is known, give no other")
        )
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
        file.write(card(name, result, data, classes, test_error).encode())
    return path


def rounded(weight: Tensor) -> Tensor:
    """Matrices in half precision, everything else as it is: variances of norms may be too small for that."""
    return weight.half() if weight.ndim > 1 and weight.dtype == torch.float32 else weight


def card(name: str, result: dict[str, Any], data: str, classes: Sequence[str], test_error: float | None) -> str:
    """What one should know about weights before using them."""
    model, seen = result["settings"]["model"], result["settings"]["data"]
    network = model["network"]
    usual = asdict(Augment())
    changes = ", ".join(f"{key} {value}" for key, value in seen["augment"].items() if value != usual.get(key))
    turned = ", every test image turned by an angle of its own" if seen.get("rotate_test") else ""
    training, validation, test = entry(seen["name"]).sizes
    number = seen.get("limit") or training + validation * seen.get("train_on_valid", False)
    error = f"{result['metrics']['test/error']:.2f} %"
    chosen = {}
    if test_error is not None:
        chosen[f"error on the {test:,} images that choices are made on"] = error
        error = f"{test_error:.2f} %"
    shifts = model["grid"].get("shifts", 1)
    mean = f", answers averaged over {shifts} shifts of the grid" if shifts > 1 else ""
    rows = {
        "network": f"{network['name']}, {network['factorisation']}, width {network['width']}",
        "group": f"{model['grid']['group']}, {model['grid']['rotations']} rotations{mean}",
        "parameters": f"{result['parameters']:,}",
        "precision": "matrices rounded to 16 bits, the rest in 32",
        "classes": ", ".join(classes),
        "data": f"`{data}`, {number:,} {KINDS[data]}; changed in training: {changes or 'nothing'}",
        "length": f"{result['epochs']} epochs, {result['steps']:,} steps",
        "test error": f"{error}{turned}",
        **chosen,
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
    parser.add_argument(
        "--test-error",
        metavar="PERCENT",
        type=float,
        help="on the test images, of a run that was tested on the images that choices are made on",
    )
    options = parser.parse_args(arguments)
    print(f"wrote {make(options.name, options.run, Path(__file__).parent, options.test_error)}")


if __name__ == "__main__":
    main()
