"""Compiling a network."""

import os
import shutil
import sys

import torch
from torch import nn

from sepgconv.models._average import Average

DEFAULT_COMPILERS = {"darwin": "clang++", "win32": "cl"}


def compile_in_place(network: nn.Module, backend: str = "inductor") -> None:
    """Has a network compiled when it is first called; names of its weights, hooks and checkpoints stay as they are.

    Args:
        network: what to compile.
        backend: one of those that `torch.compile` knows; the default one writes C++ and needs a compiler for it.
    """
    known = ["eager", "aot_eager", *torch.compiler.list_backends()]
    if backend not in known:
        raise ValueError(f"compile must be true, false or one of {', '.join(known)}; got {backend!r}")
    if backend == "inductor":
        check_compiler()
    for part in network.networks if isinstance(network, Average) else [network]:  # members are called one by one
        part.compile(backend=backend)


def check_compiler() -> None:
    """Raises a ValueError, before any work is done, if there is no C++ compiler where torch looks for one."""
    wanted = os.environ.get("CXX") or DEFAULT_COMPILERS.get(sys.platform, "g++")
    if shutil.which(wanted) is None:
        raise ValueError(
            f"compile needs a C++ compiler, and {wanted!r} is not there: install one (on Debian and Ubuntu: "
            "apt-get install g++), or name it in the environment variable CXX, or leave compile out"
        )
