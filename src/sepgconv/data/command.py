"""`sepgconv data list | prepare | show`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .places import ENVIRONMENT_VARIABLE, data_root
from .registry import ENTRIES, entry, load

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".pdf", ".svg")


def list_sets(root: str | os.PathLike[str] | None = None) -> None:
    """Print a table of the data sets, and whether each is at hand."""
    table = Table("name", "classes", "image", "train", "valid", "test", "at hand", box=box.SIMPLE_HEAD, padding=0)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:6]:
        column.justify = "right"
    for e in ENTRIES.values():
        sizes = [f"{size:,}" for size in e.sizes]
        table.add_row(e.name, str(len(e.class_names)), "×".join(map(str, e.shape)), *sizes, e.at_hand(root))
    console = Console()
    console.print(table)
    console.print(f"looked for in {data_root(root)}", soft_wrap=True, highlight=False)


def prepare(name: str, root: str | os.PathLike[str] | None = None, seed: int = 0) -> None:
    """Download or make a data set, read it once to check it, and print what it is."""
    data = load(name, root=root, seed=seed)
    mean, std = (", ".join(f"{v:.4f}" for v in values) for values in (data.mean, data.std))
    sizes = " / ".join(f"{len(split):,}" for split in data.splits.values())
    print(f"{name} is ready: {sizes} images (train / valid / test), mean {mean}, std {std}")


def show(
    name: str,
    root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "samples.png",
    seed: int = 0,
) -> Path:
    """Write a picture of labelled training samples; returns its path."""
    from .picture import save_samples  # matplotlib is slow to import

    path = Path(out)
    if path.is_dir() or path.suffix.lower() not in PICTURES:
        raise ValueError(f"out must be the name of a picture ({', '.join(PICTURES)}), got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"out must be in a folder that exists, got {str(path)!r}")
    save_samples(load(name, root=root, seed=seed), entry(name).class_names, path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "list":
            list_sets(arguments.root)
        elif arguments.command == "prepare":
            for name in arguments.names:
                entry(name)  # a misspelt name is found before a long download
            for name in arguments.names:
                prepare(name, arguments.root, arguments.seed)
        else:
            print(f"wrote {show(arguments.name, arguments.root, arguments.out, arguments.seed)}")
    except (ValueError, OSError) as error:
        print(f"sepgconv data {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--root",
        metavar="DIR",
        help=f"where data is and goes to (default: ${ENVIRONMENT_VARIABLE}, else the user's cache)",
    )
    seeded = argparse.ArgumentParser(add_help=False)
    seeded.add_argument(
        "--seed", type=int, default=0, help="of the sets that are made from MNIST (default: %(default)s)"
    )
    parser = argparse.ArgumentParser(prog="sepgconv data", description="Data sets: list, fetch, look at them.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="list | prepare | show")
    commands.add_parser("list", parents=[where], help="print the data sets and whether they are at hand")
    fetch = commands.add_parser("prepare", parents=[where, seeded], help="download or make data sets")
    fetch.add_argument("names", metavar="NAME", nargs="+", help=f"one of {', '.join(ENTRIES)}")
    look = commands.add_parser("show", parents=[where, seeded], help="write a picture of labelled samples")
    look.add_argument("name", metavar="NAME", help=f"one of {', '.join(ENTRIES)}")
    look.add_argument("--out", metavar="FILE", default="samples.png", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
