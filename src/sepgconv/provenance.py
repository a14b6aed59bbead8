"""Where numbers come from: versions, commit and hardware."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import sepgconv


def environment() -> dict[str, Any]:
    """Versions, commit and hardware."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": _version("lightning"),
            "sepgconv": sepgconv.__version__,
        },
        "commit": commit(Path(sepgconv.__file__).parent),
        "hardware": {
            "machine": platform.machine(),
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


def cpu_model() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def commit(folder: Path) -> str | None:
    """The commit that a folder is checked out at, with `+changes` if files differ from it; None outside of git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    head = git("rev-parse", "HEAD")
    if head is None or git("ls-files", "--error-unmatch", "__init__.py") is None:  # installed inside another checkout
        return None
    return f"{head}+changes" if git("status", "--porcelain", "--untracked-files=no") else head


def _version(package: str) -> str | None:
    """The version of an installed package, without the time it takes to import it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
