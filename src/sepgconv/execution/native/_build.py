"""Compiles the kernels to one plain shared library. Imports nothing of the package: `setup.py` runs it, too."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).with_name("csrc")
LIBRARY = "libsepgconv.so"
ONCE = ("dispatch.c", "threads.c")
"""These are compiled once, all others once per width of vectors."""
WIDTHS = {
    "base": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mprefer-vector-width=512"],
}
SECONDS = 300
"""After which a compiler is given up."""


def source_hash(sources: Path = SOURCES) -> str:
    """A hash of all sources, which the library carries in it."""
    digest = hashlib.sha256()
    for file in sorted(sources.glob("*.[ch]")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> list[str]:
    """The command of a C compiler; raises OSError where there is none."""
    names = [os.environ.get("CC", ""), sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"]
    for name in names:
        command = name.split()[:1]
        if command and shutil.which(command[0]):
            return command
    raise OSError(f"no C compiler found (looked for {', '.join(dict.fromkeys(n.split()[0] for n in names if n))})")


def build(directory: Path, sources: Path = SOURCES) -> Path:
    """Compiles the library into a directory, or raises OSError with the compiler's words.

    It appears there all at once, so that processes that build at the same time do not see half of it.
    """
    if sys.platform == "win32" and "MSC" in sys.version and "CC" not in os.environ:
        raise OSError("no compiler with vector extensions: set CC to clang or gcc")
    command = [*compiler(), "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden"]
    wide = platform.machine().lower() in ("x86_64", "amd64")
    target = directory / LIBRARY
    with tempfile.TemporaryDirectory() as place:
        objects, commands = [], []
        for file in sorted(sources.glob("*.c")):
            widths = {"base": []} if file.name in ONCE or not wide else WIDTHS
            for width, flags in widths.items():
                objects.append(str(Path(place, f"{file.stem}-{width}.o")))
                macros = [f"-DSUFFIX={width}", f'-DSOURCE="{source_hash(sources)}"', *["-DX86"] * wide]
                commands.append([*command, *flags, *macros, "-c", str(file), "-o", objects[-1]])
        with ThreadPoolExecutor(os.cpu_count()) as several:
            list(several.map(_run, commands))
        linked = Path(place, LIBRARY)
        _run([*command, "-shared", *objects, "-o", str(linked), "-lpthread", "-lm"])
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=LIBRARY, delete=False) as file:
            beside = Path(file.name)
        try:
            shutil.copy(linked, beside)
            beside.replace(target)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} took more than {SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise OSError(f"{command[0]} failed: {lines[0].strip() if lines else f'exit status {done.returncode}'}")
