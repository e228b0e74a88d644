"""The parts of the self-contained wheel that no build needs. tests/test_wheel.py tries the wheel itself."""

import re
from pathlib import Path

import pytest

from tools import CHECKOUT
from tools.wheel import MODULES, NVIDIA_LIBRARIES, bill, bring_libraries, packages_of_the_image
from worker.upstream.layouts import PINNED_VERSION

LINKS = ("libllama.so", "libllama.so.0", "libllama.so.0.5.0", "libggml-base.so", "libggml-base.so.0")
MODULES_OF_GGML = ("libggml-cpu-x64.so", "libggml-cuda.so")
UNUSED = ("libllama-common.so", "libllama-common.so.0", "libggml-cpu-cannonlake.so", "libx.so.5.LICENSE", "llama.pc")


def test_a_library_is_brought_once_by_the_name_that_others_ask_for(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (*LINKS, *MODULES_OF_GGML, *UNUSED, "libomp.so.5"):
        (source / name).write_text(name)
    brought = bring_libraries(source, tmp_path / "target")
    assert {path.name for path in brought} == {"libllama.so", "libggml-base.so.0", "libomp.so.5", *MODULES_OF_GGML}
    assert {path.name for path in (tmp_path / "target").iterdir()} == {path.name for path in brought}


def test_cuda_s_libraries_are_those_of_the_image_and_lie_where_they_are_looked_for() -> None:
    packages = packages_of_the_image()
    assert packages
    assert all(re.fullmatch(r"nvidia-[a-z-]+==13\.[\d.]+", package) for package in packages)
    assert NVIDIA_LIBRARIES.endswith("/nvidia/cu13/lib")


def test_the_bill_names_the_binding_and_every_patch() -> None:
    text = str(bill(PINNED_VERSION))
    assert f"pkg:pypi/llama-cpp-python@{PINNED_VERSION}" in text
    assert all(path.name in text for path in (CHECKOUT / "patches").glob("*.patch"))


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_it_brings_import_no_package_but_the_one_it_requires(module: str) -> None:
    import llama_cpp  # noqa: PLC0415 - only its folder is wanted, of a library that takes long to load

    text = Path(llama_cpp.__file__).with_name(module).read_text()
    imported = set(re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE))
    standard = {"__future__", "ctypes", "functools", "os", "pathlib", "sys", "typing", "warnings"}
    assert imported - standard <= {"typing_extensions", "llama_cpp._ctypes_extensions"}
