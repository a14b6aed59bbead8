"""Trained weights by name: those that come with the package, and those that are fetched or made by a recipe."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from sepgconv.data.download import Remote, fetch
from sepgconv.data.places import data_root, output_folder, search_folders

FOLDER = "weights"  # in the data root
SUFFIX = ".safetensors"
DEFAULT = "mnist-rot-se2"


@dataclass(frozen=True)
class Elsewhere:
    """Weights that do not come with the package.

    Args:
        recipe: what makes them.
        remote: where they are fetched from, with a checksum; None as long as they are not published.
    """

    recipe: str
    remote: Remote | None = None


# Trained on images that may not be used commercially, so they are no part of a package under the MIT licence.
ELSEWHERE = {"first-galaxies-se2": Elsewhere("first_galaxies/se2_separable_cpu")}


def shipped() -> dict[str, Path]:
    """The weights that come with the package, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob(f"*{SUFFIX}"))}


def names() -> list[str]:
    """As `models.load` takes them."""
    return sorted({*shipped(), *ELSEWHERE})


def locate(name: str | Path) -> Path:
    """The file of weights by their name, fetched if need be; or of a checkpoint by its path.

    Raises:
        FileNotFoundError: there is no file, and no weights of this name.
        DataUnavailable: they could not be fetched.
    """
    if Path(name).is_file():
        return Path(name)
    name = str(name)
    if name in shipped():
        return shipped()[name]
    if name in ELSEWHERE:
        return _from_elsewhere(name, ELSEWHERE[name])
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise FileNotFoundError(f"weights must be a file or one of {', '.join(names())}; got {name!r}{hint}")


def _from_elsewhere(name: str, weights: Elsewhere) -> Path:
    file = f"{name}{SUFFIX}"
    root = data_root()
    at_hand = next((f / file for f in search_folders(root, (FOLDER,)) if (f / file).is_file()), None)
    if at_hand is not None:
        return at_hand
    if weights.remote is None:
        raise FileNotFoundError(
            f"the weights {name!r} are not published; `sepgconv fit --config {weights.recipe}` makes them: put its "
            f"checkpoints/best.safetensors at {root / FOLDER / file}, or use it by its path"
        )
    return fetch(weights.remote, output_folder(root, FOLDER))
