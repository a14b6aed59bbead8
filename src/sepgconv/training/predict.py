"""`sepgconv predict`: a trained network classifies image files of any size, one by one or by the folder."""

import argparse
import csv
import glob
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from sepgconv.data.folders.layout import images_below
from sepgconv.data.places import atomic_write, check_outputs
from sepgconv.deploy import Exported, load_network
from sepgconv.weights import DEFAULT, locate

from .trained import Trained

BATCH = 32  # images that go through the network at a time
AVERAGES = {  # name → quarter turns and whether mirrored, which all move pixels without changing them
    "rotations": [(turns, False) for turns in range(4)],
    "reflections": [(0, False), (0, True)],
    "rotations+reflections": [(turns, mirror) for mirror in (False, True) for turns in range(4)],
}
FORMATS = (".csv", ".json")


@dataclass(frozen=True)
class Prediction:
    """What is said of a file."""

    file: str
    label: str
    probability: float
    notes: str = ""


class Predictor:
    """Classifies image files, and goes on after those that it cannot.

    Args:
        trained: the network.
        average: over which changes of the image probabilities are averaged, a name out of `AVERAGES`; by default none.
        invert: whether to swap dark and light.
    """

    def __init__(self, trained: Trained | Exported, *, average: str | None = None, invert: bool = False) -> None:
        if average is not None and average not in AVERAGES:
            raise ValueError(f"average must be one of {', '.join(AVERAGES)}; got {average!r}")
        self.trained, self.average, self.invert = trained, average, invert
        self.bad: dict[str, str] = {}  # file → reason

    def __call__(self, files: Sequence[str]) -> Iterator[Prediction]:
        """A prediction for every file that can be read, in order; the others are in `bad`."""
        for start in range(0, len(files), BATCH):
            yield from self._batch(files[start : start + BATCH])

    def probabilities(self, images: Tensor) -> Tensor:
        """Of uint8 images.

        Shapes:
            `(b, c, y, x)` → `(b, classes)`
        """
        if self.average is None:
            return self.trained.logits(images).softmax(1)
        changed = (_moved(images, turns, mirror) for turns, mirror in AVERAGES[self.average])
        return torch.stack([self.trained.logits(image).softmax(1) for image in changed]).mean(0)

    def _batch(self, files: Sequence[str]) -> Iterator[Prediction]:
        read: dict[str, tuple[Tensor, str]] = {}
        for file in files:
            try:
                pixels, notes = self.trained.preparation.read(Path(file), invert=self.invert)
            except (ValueError, OSError) as error:
                self.bad[file] = str(error)
                continue
            remark = self._other_way_round(pixels)
            read[file] = pixels, ", ".join((*notes, remark) if remark else notes)
        for file, row in self._rows({file: pixels for file, (pixels, _) in read.items()}):
            probability, label = row.max(0)
            yield Prediction(file, self.trained.classes[int(label)], probability.item(), read[file][1])

    def _rows(self, images: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Probabilities by file; one whose output is not finite does not spoil the others."""
        if not images:
            return
        try:
            yield from zip(images, self.probabilities(torch.stack(list(images.values()))), strict=True)
        except ValueError as error:
            if len(images) == 1:
                self.bad[next(iter(images))] = f"{next(iter(images))}: {error}"
                return
            for file, image in images.items():
                yield from self._rows({file: image})

    def _other_way_round(self, pixels: Tensor) -> str | None:
        """A remark on a grey image that would be much more like the training images with dark and light swapped."""
        theirs, *colours = self.trained.preparation.mean
        if colours or not self.trained.preparation.known:
            return None
        ours = pixels.float().mean().item() / 255
        if abs(1 - ours - theirs) + 0.25 > abs(ours - theirs):
            return None
        kinds = ("lighter", "dark on light") if ours > theirs else ("darker", "light on dark")
        return f"{kinds[0]} than the training images: {kinds[1]} needs --invert"


def _moved(images: Tensor, turns: int, mirror: bool) -> Tensor:
    turned = images.rot90(turns, (-2, -1))
    return turned.flip(-1) if mirror else turned


def expand(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The files that paths, folders and patterns stand for, each once; and why something stands for none."""
    found: dict[str, None] = {}
    bad: dict[str, str] = {}
    for name in names:
        if not name:  # an empty variable of a shell; as a path it would be this folder
            inside, reason = [], "a file must have a name, got ''"
        elif Path(name).is_dir():
            inside = [str(path) for path in images_below(Path(name))]
            reason = f"there are no images in the folder {name}"
        elif glob.has_magic(name) and not Path(name).exists():
            matches = glob.iglob(name, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
            inside = sorted(path for path in matches if Path(path).is_file())
            reason = f"there is no file like {name}"
        else:
            inside, reason = [name], ""
        if not inside:
            bad[name] = reason
        found.update(dict.fromkeys(inside))
    return list(found), bad


def write(predictions: Sequence[Prediction], path: Path) -> None:
    """Writes a table with the columns file, class and probability, as CSV or JSON by its name."""
    rows = [{"file": p.file, "class": p.label, "probability": round(p.probability, 6)} for p in predictions]
    if path.suffix.lower() == ".json":
        text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    else:
        lines = io.StringIO()
        table = csv.DictWriter(lines, ["file", "class", "probability"])
        table.writeheader()
        table.writerows(rows)
        text = lines.getvalue()
    with atomic_write(path) as file:
        file.write(text.encode(errors="surrogateescape"))


def main(arguments: Sequence[str]) -> int:
    """Classifies files; returns 1 if one of them could not be."""
    options = _parser().parse_args(arguments)
    if options.out is not None:
        if options.out.suffix.lower() not in FORMATS:
            raise ValueError(f"--out must end in {' or '.join(FORMATS)}, got {str(options.out)!r}")
        check_outputs(options.out, name="--out")
    trained = load_network(locate(options.ckpt))
    predictor = Predictor(trained, average=options.average, invert=options.invert)
    files, predictor.bad = expand(options.files)
    if not trained.preparation.known:
        print(
            "sepgconv predict: the checkpoint does not say how its images were normalised; values in [0, 1] are taken",
            file=sys.stderr,
        )
    predictions = []
    with tqdm(total=len(files), unit="image", disable=None) as bar:
        for prediction in predictor(files):
            bar.update()
            if options.out is not None:
                predictions.append(prediction)
                continue
            notes = f"  [{prediction.notes}]" if prediction.notes else ""
            line = f"{prediction.file}: {prediction.label} ({prediction.probability:.1%}){notes}"
            bar.write(line, file=sys.stdout)
    if options.out is not None:
        write(predictions, options.out)
        print(f"wrote {len(predictions)} predictions to {options.out}")
    if predictor.bad:
        count = f"{len(predictor.bad)} of {len(files) + len(predictor.bad.keys() - set(files))}"
        print(f"sepgconv predict: {count} could not be classified:", file=sys.stderr)
        for reason in predictor.bad.values():
            print(f"  {reason}", file=sys.stderr)
    return int(bool(predictor.bad))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sepgconv predict", description="Classify image files with a trained network.")
    parser.add_argument(
        "--ckpt",
        default=DEFAULT,
        metavar="FILE",
        help="a run's best.ckpt, an exported .onnx or .pt2, or the name of weights (%(default)s, which reads digits)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a table, file.csv or file.json, not lines")
    parser.add_argument(
        "--average",
        choices=AVERAGES,
        metavar="GROUP",
        help=f"average probabilities over changes of the image: {', '.join(AVERAGES)} (quarter turns, mirrors)",
    )
    parser.add_argument(
        "--invert", action="store_true", help="swap dark and light: for dark ink on paper, as MNIST is light on dark"
    )
    parser.add_argument(
        "files", nargs="+", metavar="IMAGE", help="PNG, JPEG, TIFF, … of any size; folders; patterns such as 'a/*.png'"
    )
    return parser
