"""The numbers are the library's: of the installed binding where it has them, else of its source."""

import re
from typing import get_args

import llama_cpp
import pytest

from tests.llama_source import build_files, source
from worker.models.plan.devices import Kind
from worker.models.upstream import numbers
from worker.models.upstream.ggml_types import TENSOR_TYPES

pytestmark = pytest.mark.model


def defined(name: str, file: str) -> int:
    """A number that the source defines."""
    found = re.findall(rf"^ *(?:#define {name} +|static constexpr \w+ {name} = )(\w+)", source(file), re.MULTILINE)
    assert len(found) == 1, f"{file} defines {name} {len(found)} times"
    return int(found[0], 0)


@pytest.mark.parametrize(
    ("ours", "name", "file"),
    [
        (numbers.MAX_SEQ_IDS, "LLAMA_MAX_SEQ", "llama-cparams.h"),
        (numbers.MAX_THREADS, "GGML_MAX_N_THREADS", "ggml.h"),
        (numbers.STATE_MAGIC, "io_magic", "llama-context.cpp"),
    ],
)
def test_a_limit_is_that_of_the_source(ours: int, name: str, file: str) -> None:
    assert ours == defined(name, file)


def test_as_many_sequences_as_the_library_says() -> None:
    assert llama_cpp.llama_max_parallel_sequences() == numbers.MAX_SEQ_IDS


def test_a_context_is_padded_to_the_step() -> None:
    padded = re.findall(r"cparams\.n_ctx\w* = GGML_PAD\(cparams\.n_ctx\w*, (\d+)\)", source("llama-context.cpp"))
    assert set(map(int, padded)) == {numbers.CELL_STEP}


def test_the_enumerations_are_those_of_the_binding() -> None:
    words = {"auto": "AUTO", "off": "DISABLED", "on": "ENABLED"}
    flash = {name: getattr(llama_cpp, f"LLAMA_FLASH_ATTN_TYPE_{word}") for name, word in words.items()}
    assert flash == numbers.FLASH_ATTENTION
    split = {name: getattr(llama_cpp, f"LLAMA_SPLIT_MODE_{name.upper()}") for name in numbers.SPLIT_MODES}
    assert split == numbers.SPLIT_MODES
    assert (llama_cpp.LLAMA_LOAD_MODE_AUTO, llama_cpp.LLAMA_LOAD_MODE_NONE) == (numbers.LOAD_AUTO, numbers.LOAD_NONE)
    assert (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE) == numbers.MROPE_TYPES


def test_the_types_of_caches_are_those_of_tensors() -> None:
    assert {name: TENSOR_TYPES[number].name.lower() for name, number in numbers.CACHE_TYPE_IDS.items()} == {
        name: name for name in numbers.CACHE_TYPE_IDS
    }


def test_the_types_that_cuda_attends_over_are_those_of_its_source() -> None:
    body = source("fattn.cu").split("ggml_cuda_fattn_kv_type_supported(const ggml_type type) {", 1)[1].split("}", 1)[0]
    assert {name.lower() for name in re.findall(r"case GGML_TYPE_(\w+):", body)} == numbers.CUDA_ATTENTION_TYPES
    options = "".join(path.read_text() for path in build_files())
    pairs = re.search(r'GGML_CUDA_FA_QUANTS "([^"]+)" CACHE', options)
    assert pairs is not None
    assert set(pairs[1].split(";")) == {f"{name}-{name}" for name in numbers.CUDA_ATTENTION_PAIRS}


def enumerated(name: str, file: str) -> list[str]:
    """The words of an enumeration, in its order."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", source(file), re.DOTALL)
    assert body is not None
    return re.findall(r"^\s*([A-Z_0-9]+)\b", body[1], re.MULTILINE)


def test_the_levels_of_the_log_are_in_its_order() -> None:
    words = [word.removeprefix("GGML_LOG_LEVEL_").lower() for word in enumerated("ggml_log_level", "ggml.h")]
    ours = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}
    assert tuple(ours.get(word, "info") for word in words[: len(numbers.LOG_LEVELS)]) == numbers.LOG_LEVELS
    assert words.index("cont") == numbers.LOG_CONTINUED


def test_the_kinds_of_devices_are_in_its_order() -> None:
    words = enumerated("ggml_backend_dev_type", "ggml-backend.h")
    assert [word.removeprefix("GGML_BACKEND_DEVICE_TYPE_").lower() for word in words] == list(get_args(Kind))
