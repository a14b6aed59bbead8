"""Builds the compiled kernels on the way, if a C compiler is at hand; all else is in pyproject.toml.

They are a plain shared library that knows nothing of Python, so that one wheel serves every version of it.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/sepgconv/execution/native")
RECIPE = runpy.run_path(str(NATIVE / "_build.py"))


class BuildKernels(build_ext):
    """Never fails: without the library the package works, more slowly, and says why."""

    def build_extension(self, ext: Extension) -> None:
        """Compiles into the folder that setuptools has in mind."""
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            RECIPE["build"](target.parent, NATIVE.resolve() / "csrc")
        except OSError as error:
            self.warn(f"sepgconv goes without compiled kernels: {error}")

    def get_ext_filename(self, fullname: str) -> str:
        """A name without Python's version in it."""
        return str(Path(*fullname.split(".")[:-1], RECIPE["LIBRARY"]))


class AnyPython(bdist_wheel):
    """A wheel for this platform and every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """As the kernels are compiled, but not against Python."""
        return "py3", "none", super().get_tag()[2]


sources = sorted(str(file) for file in (NATIVE / "csrc").glob("*.c"))
setup(
    ext_modules=[Extension("sepgconv.execution.native.libsepgconv", sources, optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
