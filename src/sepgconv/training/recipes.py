"""Recipes that come with the package: `sepgconv recipes list | copy`, and `--config NAME` wherever one is."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from sepgconv.data.places import atomic_write

FOLDER = Path(__file__).parents[1] / "recipes"
SUFFIX = ".yaml"
OF_FOLDERS = "folder/se2_separable_cpu"


def names() -> list[str]:
    """As `--config` takes them: `mnist_rot/cnn_cpu`."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob(f"*/*{SUFFIX}"))


def find(name: str) -> Path:
    """A file, or the recipe of the package that has this name.

    Raises:
        FileNotFoundError: there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    plain = name.removeprefix("recipes/").removesuffix(SUFFIX)
    if plain in names():
        return FOLDER / f"{plain}{SUFFIX}"
    near = difflib.get_close_matches(plain, names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; `sepgconv recipes list` shows those there are"
    raise FileNotFoundError(f"config must be a file or the name of a recipe, got {name!r}{hint}")


def resolve(arguments: Sequence[str]) -> list[str]:
    """A command line with the names of recipes replaced by their files."""
    resolved = list(arguments)
    for index, argument in enumerate(resolved):
        if argument.startswith("--config="):
            resolved[index] = f"--config={find(argument.removeprefix('--config='))}"
        elif argument == "--config" and index + 1 < len(resolved):
            resolved[index + 1] = str(find(resolved[index + 1]))
    return resolved


def for_folder(arguments: Sequence[str]) -> list[str]:
    """A command line with a recipe, also where `fit` was given nothing but a folder."""
    given = {argument.split("=", 1)[0] for argument in arguments}
    if arguments[:1] != ["fit"] or "--config" in given or "--data.folder" not in given:
        return list(arguments)
    print(f"no recipe was given; {OF_FOLDERS} is taken (--config)", file=sys.stderr)
    return ["fit", "--config", OF_FOLDERS, *arguments[1:]]


def about(name: str) -> str:
    """A recipe's first sentence, out of the comment that it begins with."""
    lines = (FOLDER / f"{name}{SUFFIX}").read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return " ".join(comment).split(". ")[0].rstrip(".")


def copy(name: str, target: Path) -> Path:
    """Writes a copy of a recipe, to change; never over another file."""
    source = find(name)
    path = target / source.name if target.is_dir() else target
    if path.exists():
        raise FileExistsError(f"there is a file {path} already; name another, or remove it")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"the copy must be put in a folder that exists, got {str(path)!r}")
    with atomic_write(path) as file:
        file.write(source.read_bytes())
    return path


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser("sepgconv recipes", description="Recipes that come with the package.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | copy")
    commands.add_parser("list", help="print their names, as --config takes them")
    hand = commands.add_parser("copy", help="copy one, to change it")
    hand.add_argument("name", metavar="NAME")
    hand.add_argument("target", metavar="FILE", nargs="?", type=Path, default=Path(), help="file or folder (.)")
    options = parser.parse_args(arguments)
    if options.command == "copy":
        print(f"wrote {copy(options.name, options.target)}")
        return 0
    width = max(map(len, names()), default=0)
    for name in names():
        print(f"{name:<{width}}  {about(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
