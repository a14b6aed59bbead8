"""The data of a run: the sets of `sepgconv.data`, and turned or scaled embedded digits for runs without any files."""

from functools import cache

from sepgconv.data import DataSet, embedded, join
from sepgconv.data.registry import entry
from sepgconv.data.variants import VARIANTS
from sepgconv.training import Augment, Images

from .experiment import Plain, Run
from .stir import EMBEDDED, Sizes

# Embedded digits, changed as MNIST is for the paper's sets; few, as they are made anew in every process.
DIGITS = {variant.name.replace("mnist", "digits"): variant for variant in VARIANTS}
SIZES = {"train": 500, "valid": 100, "test": 200}


class Digits(Images):
    """Images out of the embedded digits, turned, scaled or both."""

    def __init__(self, name: str, **settings) -> None:
        super().__init__("digits", **settings)
        self.data_name = name

    @property
    def data(self) -> DataSet:
        """Made at first use, once in a process."""
        return digits(self.data_name)


@cache
def digits(name: str) -> DataSet:
    """`digits-rot`, `digits-scale` or `digits-rot-scale`."""
    splits = DIGITS[name].generate(join(*embedded.read()), seed=0, sizes=SIZES)
    return DataSet(name, embedded.CLASSES, splits["train"], splits["valid"], splits["test"])


def images(config: Plain, seed: int, root: str | None = None) -> Images:
    """The data module of a run's settings."""
    data = config["data"]
    settings = {
        "root": root,
        "batch_size": data["batch_size"],
        "augment": Augment(**data["augment"]),
        "limit": data["limit"],
        "seed": seed,
    }
    if data.get("sizes"):
        return Sizes(data["name"], data["sizes"], **settings)
    return Digits(data["name"], **settings) if data["name"] in DIGITS else Images(data["name"], **settings)


def shape(name: str) -> tuple[int, int, int]:
    """Channels, size and number of classes of a set's images, known without reading it."""
    found = entry("stir-mnist" if name == EMBEDDED else "digits" if name in DIGITS else name)
    return found.shape[0], found.shape[1], len(found.class_names)


def prepare(runs: list[Run], root: str | None = None) -> None:
    """Reads every set that runs need once, so that what is missing is said, or made, before any of them starts."""
    names = {run.config["data"]["name"] for run in runs if run.config["measure"] != "parameters"}
    for name in sorted(names - DIGITS.keys() - {EMBEDDED}):
        try:
            _ = Images(name, root=root).data
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}\ndata set {name!r} is missing: `sepgconv data prepare {name}` gets it, --root says where"
            ) from error
