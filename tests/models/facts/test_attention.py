"""The layers with attention and what each caches: as the file says, else as llama.cpp has it for the architecture."""

from pathlib import Path

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


def pattern(info: ModelInfo) -> str:
    """A letter for each layer."""
    return "" if info.windows is None else "".join("w" if has_one else "." for has_one in info.windows.in_layer)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("llama", ""),
        ("qwen3", ""),
        ("phi3", ""),
        ("gpt-oss", "w.w.w.w."),
        ("gemma2", "w.w.w.w."),
        ("gemma3", "wwwww.ww"),
        ("gemma3n", "wwww.www"),
        ("cohere2", "www.www."),
        ("cohere2moe", ".www.www"),
        ("plamo3", "wwwwwww."),
        ("gemma4", ""),
    ],
)
def test_an_architecture_has_its_pattern(tmp_path: Path, architecture: str, expected: str) -> None:
    info = info_of(tmp_path, architecture, sliding_window=128)
    assert pattern(info) == expected
    assert info.windows is None or (info.windows.length, info.windows.n_layers) == (128, expected.count("w"))


@pytest.mark.parametrize(
    ("in_file", "expected"),
    [
        (3, "ww.ww.ww"),
        (1, ""),
        (0, "wwwwwwww"),
        (Typed("bool", [True, False] * 4), "w.w.w.w."),
        (Typed("u32", [0, 0, 0, 1, 1, 1, 0, 0]), "...www.."),
        (Typed("bool", [True] * 3), "www....."),
        (Typed("bool", [False] * 8), ""),
    ],
)
def test_a_pattern_in_the_file_counts_more(tmp_path: Path, in_file: Value, expected: str) -> None:
    assert pattern(info_of(tmp_path, "gemma3", sliding_window=128, sliding_window_pattern=in_file)) == expected


@pytest.mark.parametrize(
    ("architecture", "keys", "length"),
    [
        ("gemma2", {}, 4096),
        ("gemma3", {}, 0),
        ("gemma3", {"sliding_window": 0}, 0),
        ("llama4", {}, 8192),
        ("llama4", {"sliding_window": 100}, 8192),
        ("llama4", {"sliding_window": 0}, 0),
        ("smallthinker", {"sliding_window": 100}, 4096),
        ("exaone4", {"sliding_window": 100}, 0),
        ("exaone-moe", {}, 128),
    ],
)
def test_a_window_is_as_long_as_llama_cpp_takes_it(
    tmp_path: Path, architecture: str, keys: dict[str, Value], length: int
) -> None:
    windows = info_of(tmp_path, architecture, **keys).windows
    assert (windows.length if windows else 0) == length


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


@pytest.mark.parametrize(("length", "in_layer"), [(64, (False, True) * 4), (0, None)])
def test_all_attention_of_a_hybrid_may_have_windows(
    tmp_path: Path, length: int, in_layer: tuple[bool, ...] | None
) -> None:
    windows = info_of(tmp_path, "lfm2", sliding_window=length, head_count_kv=[0, 2] * 4).windows
    assert (windows.in_layer if windows else None) == in_layer


@pytest.mark.parametrize("architecture", ["deepseek2", "glm-dsa"])
def test_latent_attention_has_no_v_of_its_own(tmp_path: Path, architecture: str) -> None:
    assert info_of(tmp_path, architecture, value_length=16).value_length == 16
    assert info_of(tmp_path, architecture, value_length=16, key_length_mla=24).value_length == 0
