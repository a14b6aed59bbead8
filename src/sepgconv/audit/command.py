"""`sepgconv audit`: how much turns, mirrors, scales and shifts of images change what a network says."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sepgconv.audit._audit import COUNT, Audit, audit
from sepgconv.audit._changes import FAMILIES
from sepgconv.audit._images import read
from sepgconv.audit._page import page, sentence
from sepgconv.audit._subject import of_file
from sepgconv.data.image_files import Framing
from sepgconv.data.places import atomic_write, check_outputs
from sepgconv.weights import locate


def main(arguments: Sequence[str]) -> int:
    """Audits, writes the page and the numbers; returns 1 if something is above the limit."""
    options = _parser().parse_args(arguments)
    numbers = _check(options)
    subject = of_file(Path(locate(options.ckpt)))
    framing = subject.framing
    if options.size is not None:
        framing = Framing(options.size, framing.channels if framing else options.channels)
    if framing is None:
        raise ValueError(f"{options.ckpt} does not say how large its images are: give --size, and --channels if not 1")
    found = read(options.images, framing, subject.classes, options.limit)
    for reason in found.bad.values():
        print(f"sepgconv audit: left out: {reason}", file=sys.stderr)
    if options.accuracy and found.labels is None:
        known = f"a folder of {options.images} per class: {', '.join(subject.classes[:5])}" if subject.classes else ""
        raise ValueError(f"accuracy needs labels: {known or 'the file does not say its classes'}")
    console = Console(stderr=True)
    with console.status("") as status:
        done = audit(
            subject,
            found.images,
            found.labels,
            symmetries=options.symmetries,
            count=options.count,
            tell=lambda text: status.update(text),
        )
    if options.fail_above is not None:
        done.above(options.fail_above)  # an error before anything is written, if there is nothing to judge
    for path, text in ((options.output, page(done)), (numbers, to_json(done))):
        with atomic_write(path) as file:
            file.write(text.encode())
    return _say(done, options, numbers)


def _say(done: Audit, options: argparse.Namespace, numbers: Path) -> int:
    print(sentence(done))
    for row in done.rows:
        if row.exact and row.error is not None:
            print(f"  {row.change:<26} {row.error:.1e}" + ("" if row.family in done.judged else "  (not promised)"))
    if done.lost is not None and "rotation" in done.judged:
        print(f"  a quarter turn is lost in {done.lost.name} ({done.lost.kind})")
    print(f"wrote {options.output} and {numbers}")
    above = [] if options.fail_above is None else done.above(options.fail_above)
    for row in above:
        found = "not measured" if row.error is None else f"{row.error:.1e}"
        print(f"sepgconv audit: {row.change}: {found} is above {options.fail_above:g}", file=sys.stderr)
    return int(bool(above))


def to_json(done: Audit) -> str:
    """The numbers of the page; those that are not finite as null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain({"sentence": sentence(done), **done.plain()}), indent=1, ensure_ascii=False) + "\n"


def _check(options: argparse.Namespace) -> Path:
    """Where the numbers go; an error before the work if something could not be written."""
    if options.output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"output must end in .html, got {str(options.output)!r}")
    numbers = options.output.with_suffix(".json")
    for path in (options.output, numbers):
        if path.exists() and not path.is_dir() and not options.overwrite:
            raise FileExistsError(f"output {path} exists; give --overwrite to replace it")
    check_outputs(options.output, numbers)
    if options.fail_above is not None and not options.fail_above >= 0:
        raise ValueError(f"fail-above must not be negative, got {options.fail_above!r}")
    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sepgconv audit", description=__doc__)
    parser.add_argument(
        "--ckpt", required=True, metavar="FILE", help="a checkpoint, the name of weights, an exported or any ONNX file"
    )
    parser.add_argument(
        "--images", required=True, type=Path, metavar="DIR", help="image files; a subfolder per class gives accuracies"
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE.html", help="the page; FILE.json goes beside"
    )
    parser.add_argument(
        "--symmetries", nargs="+", choices=FAMILIES, help="what to measure and judge (all, and what its group promises)"
    )
    parser.add_argument(
        "--fail-above", type=float, metavar="X", help="fail if a quarter turn or mirror changes the output by more"
    )
    parser.add_argument("--accuracy", action="store_true", help="fail if the images have no labels")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="take so many images (%(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="measure changes on N (%(default)s)")
    parser.add_argument("--size", type=int, metavar="N", help="of the images, where the file does not say")
    parser.add_argument("--channels", type=int, default=1, choices=(1, 3), help="likewise (%(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    return parser
