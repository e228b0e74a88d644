"""The library is checked before it is used, and its words are heard."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

from worker.errors import ModelLoadFailed
from worker.llama.buffers import LogLine
from worker.llama.library import PINNED_VERSION, STRUCT_SIZES, Library, check_binding, open_library


def test_the_pin_is_the_project_files() -> None:
    project = tomli.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"llama-cpp-python=={PINNED_VERSION}" in project["project"]["dependencies"]


def test_the_installed_binding_is_the_pinned_one() -> None:
    assert open_library() is open_library()


def test_another_version_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(ModelLoadFailed, match=rf"0\.3\.35.*pip install llama-cpp-python=={PINNED_VERSION}"):
        check_binding("0.3.35", STRUCT_SIZES)


@pytest.mark.parametrize("name", STRUCT_SIZES)
def test_another_struct_size_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadFailed, match=name):
        check_binding(PINNED_VERSION, {**STRUCT_SIZES, name: 8})


@pytest.fixture
def lines() -> list[LogLine]:
    return []


@pytest.fixture
def library(lines: list[LogLine]) -> Iterator[Library]:
    library = open_library(lines.append)
    yield library
    library.on_log = None


def test_pieces_of_a_line_are_joined(library: Library, lines: list[LogLine]) -> None:
    library.take(3, b"half", None)
    library.take(5, b" and half\n", None)
    assert lines == [LogLine("warning", "half and half")]


def test_a_new_line_ends_an_unfinished_one(library: Library, lines: list[LogLine]) -> None:
    library.take(1, b"dots...", None)
    library.take(4, b"bad \xff\nthing\n", None)
    assert lines == [LogLine("debug", "dots..."), LogLine("error", "bad � thing")]


def test_a_failing_assertion_leaves_its_text_on_stderr() -> None:
    script = (
        "import ctypes\n"
        "from worker.llama.library import ggml_function, open_library\n"
        "open_library()\n"
        "abort = ggml_function('ggml_abort', None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)\n"
        "abort(b'some.cpp', 7, b'GGML_ASSERT(x) failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == -6
    assert b"llama.cpp aborts: some.cpp:7: GGML_ASSERT(x) failed" in done.stderr
