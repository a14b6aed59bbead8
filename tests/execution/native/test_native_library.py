"""Finding, building and loading the compiled kernels, and going without them."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sepgconv.execution.native import _build, _library
from sepgconv.execution.native._circular import _Circular
from sepgconv.execution.native._depthwise import _Convolution
from sepgconv.execution.native._norm import _Norm
from sepgconv.execution.native._pool import _Pool


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the loader takes for its own, installed and not a checkout."""
    monkeypatch.setattr(_library, "HERE", tmp_path)
    monkeypatch.setattr(_library, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.delenv("SEPGCONV_NATIVE", raising=False)
    return tmp_path


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile at once."""
    folder = tmp_path_factory.mktemp("csrc")
    others = [name for name in _functions() if name not in ("sepgconv_source", "sepgconv_vectors")]
    show = '__attribute__((visibility("default")))'
    lines = [f"{show} const char *sepgconv_source(void) {{ return SOURCE; }}"]
    lines += [f'{show} const char *sepgconv_vectors(void) {{ return "base"; }}']
    lines += [f"{show} int {name}(void) {{ return 0; }}" for name in others]
    (folder / "dispatch.c").write_text("\n".join(lines))
    monkeypatch.setattr(_build, "SOURCES", folder)
    monkeypatch.setattr(_build.build, "__defaults__", (folder,))
    monkeypatch.setattr(_build.source_hash, "__defaults__", (folder,))
    return folder


def _functions() -> list[str]:
    """All functions that the loader asks a library for."""

    class Asked:
        def __init__(self) -> None:
            self.names: list[str] = []

        def __getattr__(self, name: str):
            self.names.append(name)
            return type("Function", (), {})()

    asked = Asked()
    _library._typed(asked)  # pyright: ignore[reportArgumentType]
    return list(dict.fromkeys(asked.names))


def load() -> _library.Status:
    return _library._load()[1]


def with_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        _build.compiler()
    except OSError as error:
        pytest.skip(str(error))


def test_without_a_library_the_reason_is_told(place: Path) -> None:
    assert load() == _library.Status(False, "not built when the package was installed (no working C compiler then?)")


def test_it_can_be_switched_off(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPGCONV_NATIVE", "0")
    assert load() == _library.Status(False, "switched off by SEPGCONV_NATIVE=0")


def test_a_library_for_another_machine_is_not_used(place: Path) -> None:
    (place / _build.LIBRARY).write_bytes(b"\x7fELF for another machine")
    assert not load().active
    assert load().reason.startswith("does not load on this machine")


def test_a_library_without_our_functions_is_not_used(place: Path, small: Path, monkeypatch) -> None:
    with_compiler(monkeypatch)
    text = (small / "dispatch.c").read_text()
    (small / "dispatch.c").write_text(text.replace("sepgconv_depthwise_weight", "something_else"))
    _build.build(place)
    assert not load().active
    assert "sepgconv_depthwise_weight" in load().reason


def test_a_library_of_other_sources_is_told_and_a_checkout_builds_it_again(
    place: Path, small: Path, monkeypatch
) -> None:
    with_compiler(monkeypatch)
    _build.build(place)
    assert load().active
    with (small / "dispatch.c").open("a") as file:
        file.write("\n/* something new */\n")
    assert load() == _library.Status(False, f"{_build.LIBRARY} was built from other sources: install the package again")
    (place / "setup.py").touch()
    monkeypatch.setattr(_library, "CHECKOUT", place)
    assert load().active
    built = ctypes.CDLL(str(place / "." / _build.LIBRARY))
    built.sepgconv_source.restype = ctypes.c_char_p
    assert {file.name for file in place.iterdir()} == {"setup.py", _build.LIBRARY}


def test_a_compiler_that_fails_is_quoted(place: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_compiler(monkeypatch)
    (place / "setup.py").touch()
    monkeypatch.setattr(_library, "CHECKOUT", place)
    (small / "dispatch.c").write_text("#error too old\n")
    assert not load().active
    assert load().reason.startswith("not built: ")
    assert load().reason.endswith("#error too old")
    assert [file.name for file in place.iterdir()] == ["setup.py"]


def test_no_compiler_is_a_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "setup.py").touch()
    monkeypatch.setattr(_library, "CHECKOUT", place)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(place))
    assert load().reason.startswith("not built: no C compiler found (looked for ")


def test_a_folder_that_cannot_be_written_is_a_reason(place: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_compiler(monkeypatch)
    (place / "setup.py").touch()
    (place / "file").touch()
    monkeypatch.setattr(_library, "CHECKOUT", place)
    monkeypatch.setattr(_library, "HERE", place / "file")
    assert not load().active
    assert load().reason.startswith("not built: ")


@pytest.mark.parametrize("structure", [_Convolution, _Norm, _Pool, _Circular])
def test_structures_are_those_of_the_header(structure: type[ctypes.Structure]) -> None:
    text, name = (_build.SOURCES / "native.h").read_text(), structure.__name__.strip("_").lower()
    body = text[: text.index(f"}} sepgconv_{name};")].rsplit("typedef struct {", 1)[1]
    kinds = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}
    wanted = []
    for line in re.sub(r"/\*.*?\*/", "", body).split(";"):
        kind, _, names = line.strip().removeprefix("const ").partition(" ")
        for item in filter(None, (part.strip() for part in names.split(","))):
            wanted.append((item.strip("*"), ctypes.c_void_p if item.startswith("*") else kinds[kind]))
    assert [(field[0].removeprefix("channels_"), field[1]) for field in structure._fields_] == wanted


def test_layers_work_without_the_kernels() -> None:
    code = (
        "import torch; from sepgconv.execution import native; assert not native.status().active; "
        "x = torch.randn(1, 8, 6, 6); w = torch.randn(8, 1, 3, 3, requires_grad=True); "
        "native.depthwise(x, w, 1, (1, 1)).sum().backward(); print(native.status().reason)"
    )
    environment = {**os.environ, "SEPGCONV_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "switched off by SEPGCONV_NATIVE=0"
