"""Digits smaller than those of training: trained at scale 1 only, tested at 0.5 to 1.

`python -m sepgconv.analysis.shrinking --help`. Networks see 10,000 digits of MNIST as they are and are tested on its
10,000 test digits, made smaller. A result is a JSON file per network and seed; what is there is not done again.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from sepgconv.data import Split, scale
from sepgconv.demo import fit, no_advice
from sepgconv.kernels import KernelConfig
from sepgconv.provenance import environment
from sepgconv.training import Classifier, GridConfig, Images, NetworkConfig, OptimiserConfig

FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PLAIN, SCALES = GridConfig("translation2"), GridConfig("scale2", scales=5, max_scale=4.0)
_SHALLOW: dict[str, Any] = {"name": "shallow", "factorisation": "nonseparable", "kernel": KernelConfig(layers=1)}
_DEEP: dict[str, Any] = {"factorisation": "nonseparable", "kernel": KernelConfig(layers=1), "width": 0.25}
NETWORKS = {
    "plain": (NetworkConfig(**_SHALLOW), PLAIN, 1e-2),
    "resnet": (NetworkConfig(**_DEEP), PLAIN, 5e-3),
    "all-scales": (NetworkConfig(**_SHALLOW, dropout=0.0), SCALES, 1e-2),
    "pyramid": (NetworkConfig(**_SHALLOW), SCALES, 1e-2),
}
"""What is built, on which grid, and the peak of the rate."""
TITLES = {
    "plain": "plain CNN, two layers",
    "resnet": "plain CNN, the paper's ResNet, a quarter of the channels",
    "all-scales": "two layers on a pyramid, 5 scales up to 4, all read in training",
    "pyramid": "the same, half of the scales left out in training",
}


def run(name: str, seed: int, data: Images, digits: Split, *, epochs: int = 5) -> dict[str, Any]:
    """Trains a network and finds its errors in per cent by factor."""
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}; got {name!r}")
    network, grid, rate = NETWORKS[name]
    torch.manual_seed(seed)
    classifier = Classifier(network, grid, OptimiserConfig(lr=rate), seed=seed)
    start = time.process_time()
    with no_advice():
        fit(classifier, data, epochs=epochs, quiet=True)
    seconds = time.process_time() - start
    return {
        "network": name,
        "seed": seed,
        "epochs": epochs,
        "digits": len(digits),
        "errors": {f"{factor:g}": error(classifier, data, digits, factor) for factor in FACTORS},
        "training CPU seconds": seconds,
        **environment(),
    }


@torch.no_grad()
def error(classifier: Classifier, data: Images, split: Split, factor: float) -> float:
    """Percentage of a split's digits, scaled by a factor, that are classified wrongly."""
    wrong = 0
    for images, labels in zip(split.images.split(250), split.labels.split(250), strict=True):
        scaled = scale(images.float(), factor).clamp(0, 255)
        wrong += (classifier(data.normaliser(scaled)).argmax(1) != labels).sum().item()
    return 100 * wrong / len(split)


def as_markdown(results: Path) -> str:
    """A table of all results: mean error in per cent and, of several seeds, the deviation."""
    lines = [f"| network | seeds | {' | '.join(f'{f:g}' for f in FACTORS)} |", "|---" * (len(FACTORS) + 2) + "|"]
    for name, title in TITLES.items():
        rows = [json.loads(path.read_text())["errors"] for path in sorted(results.glob(f"{name}-[0-9]*.json"))]
        if rows:
            cells = (_cell([row[f"{factor:g}"] for row in rows]) for factor in FACTORS)
            lines.append(f"| {title} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Iterable[float]) -> str:
    values = list(values)
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m sepgconv.analysis.shrinking", description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=Path("results/shrinking"), help="(%(default)s)")
    parser.add_argument("--root", help="where MNIST's files are")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--limit", type=int, default=10_000, help="training digits (%(default)s)")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        for name in options.networks:
            path = options.results / f"{name}-{seed}.json"
            if path.exists():
                continue
            data = Images("mnist", root=options.root, limit=options.limit, seed=seed)
            digits = data.data.test
            assert isinstance(digits, Split)
            found = run(name, seed, data, digits, epochs=options.epochs)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(json.dumps({**found, "training digits": options.limit}, indent=1) + "\n")
            part.replace(path)
    print(as_markdown(options.results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
