"""The layers with attention and what each caches: as the file says, else as llama.cpp has it for the architecture."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import Typed, Value, tiny_model
from worker.errors import BadModelFile
from worker.models.facts.info import ModelInfo, read_info

NO_SIZES: dict[str, Value] = {}


def info_of(tmp_path: Path, architecture: str, own_sizes: dict[str, Value] = NO_SIZES, /, **keys: Value) -> ModelInfo:
    """The tiny model under another name, with eight layers."""
    changes: dict[str, Value | None] = {"general.architecture": architecture}
    sizes: dict[str, Value] = {"block_count": 8, "context_length": 512, "embedding_length": 32, **own_sizes}
    heads: dict[str, Value] = {"attention.head_count": 4, "attention.head_count_kv": 2}
    named = {f"attention.{key}": value for key, value in keys.items()}
    changes |= {f"{architecture}.{key}": value for key, value in {**sizes, **heads, **named}.items()}
    return read_info(tiny_model(changes).write(tmp_path / "m.gguf"))


WINDOWS = [json.loads(line) for line in Path(__file__).with_name("windows.jsonl").read_text().splitlines()]
"""The keys of a file of eight layers, the length of their windows and, where it matters, a letter for each layer."""


@pytest.mark.parametrize("case", WINDOWS, ids=lambda case: f"{case['architecture']} {case['keys']}")
def test_windows_are_as_the_file_says_and_else_as_llama_cpp_takes_them(tmp_path: Path, case: dict[str, Any]) -> None:
    keys = {
        key: Typed(*next(iter(each.items()))) if isinstance(each, dict) else each for key, each in case["keys"].items()
    }
    windows = info_of(tmp_path, case["architecture"], **keys).windows
    assert (windows.length if windows else 0) == case["length"]
    pattern = "".join("w" if has_one else "." for has_one in windows.in_layer) if windows else ""
    assert pattern == case.get("pattern", pattern)
    assert windows is None or windows.n_layers == pattern.count("w")


def test_layers_with_a_window_may_have_heads_of_another_size(tmp_path: Path) -> None:
    flags = Typed("bool", [True] * 6 + [False] * 2)
    keys: dict[str, Value] = {"sliding_window": 64, "sliding_window_pattern": flags}
    info = info_of(tmp_path, "gemma4", **keys, key_length=16, value_length=16, key_length_swa=8, value_length_swa=4)
    assert info.windows is not None
    assert (info.windows.key_length, info.windows.value_length) == (8, 4)


@pytest.mark.parametrize("in_file", [Typed("f32", [1.0] * 8), Typed("bool", [])])
def test_flags_of_another_kind_are_refused(tmp_path: Path, in_file: Value) -> None:
    with pytest.raises(BadModelFile, match="must have 8 bool or u32"):
        info_of(tmp_path, "gemma3", sliding_window=128, sliding_window_pattern=in_file)


@pytest.mark.parametrize("architecture", ["deepseek2", "glm-dsa"])
def test_latent_attention_has_no_v_of_its_own(tmp_path: Path, architecture: str) -> None:
    assert info_of(tmp_path, architecture, value_length=16).value_length == 16
    assert info_of(tmp_path, architecture, value_length=16, key_length_mla=24).value_length == 0
