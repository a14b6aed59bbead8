"""`sepgconv info`: versions, devices, threads, and whether the compiled kernels are in use."""

import argparse
import importlib.metadata
import platform
from collections.abc import Sequence

import torch

from sepgconv.execution.native import status

PACKAGES = ("sepgconv", "torch", "numpy", "einops", "lightning", "onnxruntime")


def facts() -> dict[str, str]:
    """What a report of a problem should say, by name."""
    found = {"python": f"{platform.python_version()} on {platform.system()}, {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found["devices"] = "cpu" if accelerator is None else f"cpu, {torch.accelerator.device_count()} × {accelerator.type}"
    found["threads"] = f"{torch.get_num_threads()} (torch.set_num_threads, OMP_NUM_THREADS)"
    kernels = status()
    if kernels.active:
        found["compiled kernels"] = f"in use, vectors: {kernels.vectors}, threads: {kernels.threads}"
    else:
        found["compiled kernels"] = (
            f"not in use: {kernels.reason}; on a CPU everything works, two to three times slower"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one fact a line; returns the exit status."""
    argparse.ArgumentParser("sepgconv info", description=__doc__).parse_args(arguments)
    for name, value in facts().items():
        print(f"{name:<18}{value}")
    return 0
