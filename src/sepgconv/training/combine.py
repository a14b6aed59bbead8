"""`sepgconv combine --ckpt FILE FILE… --output FILE`: one ensemble out of the networks of several runs."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from . import settings, storage
from .trained import Trained, load_trained


def combine(paths: Sequence[Path], output: Path) -> Trained:
    """Writes the ensemble of trained networks, which answers with the mean of their logits, and returns it.

    It is what one run with as many `model.network.members` gives; so seeds, or parts of a data set, can be trained one
    after the other or on several machines. Networks may be ensembles themselves.

    Args:
        paths: `.ckpt` or `.safetensors` files of networks alike, for images that are prepared alike.
        output: a `.safetensors` file to write.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: there are fewer than two files, one is damaged, or two of them differ in more than their weights.
    """
    if len(paths) < 2:
        raise ValueError(f"an ensemble takes two networks at least, got {len(paths)}")
    if output.suffix != ".safetensors":
        raise ValueError(f"the ensemble is written as safetensors: the name must end in .safetensors, got {output}")
    trained = [load_trained(path) for path in paths]  # which says what is wrong with a file
    weights: dict[str, Tensor] = {}
    members = 0
    for path, one in zip(paths, trained, strict=True):
        if changed := settings.differences(_alike(trained[0]), _alike(one)):
            raise ValueError(f"{path} does not go with {paths[0]}: {'; '.join(changed)}")
        for name, value in storage.read(path)["state_dict"].items():
            if name.startswith(storage.PREFIX):
                place = _place(name.removeprefix(storage.PREFIX), members, one.network.members)
                weights[place] = value.contiguous()
        members += one.network.members
    first = trained[0].checkpoint
    network = {**first["hyper_parameters"]["network"], "members": members}
    described = {**first["hyper_parameters"], "network": network}
    storage.write_weights(output, weights, {**first, "hyper_parameters": described})
    return load_trained(output)


def _alike(trained: Trained) -> dict[str, Any]:
    """What networks of an ensemble agree in."""
    network = replace(trained.network, members=1, recompute=False)
    images = {**trained.preparation.plain(), "classes": list(trained.classes)}
    return {"network": asdict(network), "grid": asdict(trained.grid), "images": images}


def _place(name: str, first: int, count: int) -> str:
    """A weight's name in the ensemble, where `first` members come before those of its own network."""
    if count == 1:
        return f"networks.{first}.{name}"
    folder, number, rest = name.split(".", 2)
    return f"{folder}.{first + int(number)}.{rest}"


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="sepgconv combine",
        description="One ensemble out of the networks of several runs: it answers with the mean of their logits.",
    )
    parser.add_argument("--ckpt", type=Path, nargs="+", required=True, metavar="FILE", help="two networks or more")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="a .safetensors file to write")
    options = parser.parse_args(arguments)
    found = combine(options.ckpt, options.output)
    print(f"{options.output}: an ensemble of {found.network.members} networks")
    return 0
