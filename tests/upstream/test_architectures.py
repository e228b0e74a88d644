"""Our lists of architectures say what the library says of a model that is made for each of them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from tests.llama_source import source
from worker.upstream.architectures import (
    ATTENTION_FREE,
    HYBRIDS,
    OF_SEVERAL_PARTS,
    WINDOW_PATTERNS,
    WINDOWS_FLAGGED_IN_THE_FILE,
)

pytestmark = pytest.mark.model

WITH_WINDOWS = {*WINDOW_PATTERNS, *WINDOWS_FLAGGED_IN_THE_FILE}

NO_GENERATION = {"gemma-embedding", "modern-bert"}
"""Architectures with windows that embed texts and are never served."""

WINDOWS_BESIDE_STATE = {"lfm2"}
"""Hybrids that may have windows as well: their memory cannot be cut in any case."""

NOT_MADE = {
    *("apertus", "arwkv7", "bailingmoe3", "bert", "clip", "dbrx", "deepseek2", "deepseek32", "deepseek4", "dflash"),
    *("dots3note", "eagle3", "gemma4-assistant", "glm-dsa", "glm5-next", "gptj", "graniteswitch", "hrm_text", "hy_v4"),
    *("jina-bert-v2", "jina-bert-v3", "kimi-k3", "minimax-m3", "mistral4", "nomic-bert"),
    *("nomic-bert-moe", "qwen4exp", "rwkv7", "t5", "t5encoder", "wavtokenizer-dec"),
}
"""Architectures that want keys or tokens that the made models lack. None of them has cells of a window that are shared:
those with windows have an index beside their cells, recurrent state, or do not generate by themselves."""


@cache
def architectures() -> dict[str, str]:
    """The names of all architectures by their identifiers in the source, those that the library only knows included."""
    return dict(re.findall(r'\{ *(LLM_ARCH_\w+), *"([^"(]+)" *\}', source("llama-arch.cpp")))


@cache
def memories() -> dict[str, Any]:
    return reported("memory", architectures().values())


@cache
def windows() -> dict[str, Any]:
    """The length of each architecture's window: of a dense model or, if there is none, of one with experts."""
    dense = reported("dense", architectures().values())
    return dense | reported("experts", [name for name, window in dense.items() if window is None])


def reported(asked: str, names: Iterable[str]) -> dict[str, Any]:
    """Return what the library says of each, None if it makes no model: also of those that end the process."""
    found: dict[str, Any] = {}
    left = list(names)
    while left:
        program = [sys.executable, "-m", "tests.upstream.architecture_words", asked, *left]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found |= {line["name"]: line["reported"] for line in lines}
        if len(lines) < len(left):
            assert done.returncode < 0, done.stderr
            found[left[len(lines)]] = None
        left = left[len(lines) + 1 :]
    return found


def test_the_library_knows_the_architectures_of_its_source() -> None:
    assert len(architectures()) > 100
    assert {name for name, memory in memories().items() if memory is None} == {"clip", "gptj"}


def test_the_lists_of_recurrent_and_hybrid_architectures_are_the_librarys() -> None:
    known = {name: memory for name, memory in memories().items() if memory is not None}
    assert {name for name, (is_recurrent, _) in known.items() if is_recurrent} == set(ATTENTION_FREE)
    assert {name for name, (_, is_hybrid) in known.items() if is_hybrid} == set(HYBRIDS)


def test_the_architectures_with_windows_are_those_that_the_library_gives_one() -> None:
    found = {name for name, window in windows().items() if window}
    assert found - NO_GENERATION - WINDOWS_BESIDE_STATE == WITH_WINDOWS


def test_a_model_is_made_of_every_other_architecture() -> None:
    """A new one shows here, and its lists are to be looked at in llama.cpp's source."""
    assert {name for name, window in windows().items() if window is None} == NOT_MADE


def test_the_memories_of_several_parts_are_those_that_the_library_makes_next_to_cells() -> None:
    """The library does not report them, so its source does: an index beside the cells is a memory of its own kind."""
    body = source("llama-model.cpp").split("llama_memory_i * llama_model::create_memory", 1)[1].split("\n}\n", 1)[0]
    cases = re.split(r"\} break;\n|\n        default:\n", body)
    indexed = {
        architectures()[name]
        for case in cases
        if re.search(r"new llama_(kv_cache_(msa|dsa\w*|dsv4)|memory_hybrid_idx)\(", case)
        for name in re.findall(r"case (LLM_ARCH_\w+):", case)
    }
    assert indexed - set(HYBRIDS) == set(OF_SEVERAL_PARTS)
