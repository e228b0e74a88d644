"""A good file gives the facts of its model; every kind of bad one one clear line, and no bytes at all anything else."""

import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gguf_files import (
    Q4_1,
    TINY_TENSORS,
    GgufFile,
    Raw,
    TensorRow,
    Typed,
    Value,
    tiny_model,
    tiny_split,
)
from worker.errors import BadModelFile, ModelNotFound
from worker.models.facts.info import TOKENIZER_KINDS, ModelInfo, bytes_by_type, read_info


def refusal(path: Path) -> str:
    """The line a bad file is refused with, less the path it begins with."""
    with pytest.raises(BadModelFile) as caught:
        read_info(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def info_or_line(path: Path) -> ModelInfo | str:
    try:
        return read_info(path)
    except BadModelFile as error:
        return str(error)


def test_a_card_has_what_the_file_says(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "m.gguf")
    info = read_info(path)
    assert (info.path, info.part_paths, info.file_bytes, info.version) == (path, (path,), path.stat().st_size, 3)
    assert (info.architecture, info.name, info.quant_kind, info.license) == ("llama", "Tiny", "F32", "apache-2.0")
    assert (info.context_length, info.block_count, info.embedding_length) == (512, 2, 32)
    assert (info.head_counts_kv, info.key_length, info.value_length) == ((2, 2), 8, 8)
    assert (info.vocab_size, info.tokenizer_model, info.tokenizer_kind) == (8, "gpt2", "gguf-bpe")
    assert info.chat_template
    assert [tensor.dims for tensor in info.tensors] == [(32, 8), (32,), (32,)]
    assert info.weights_bytes == 32 * 8 * 4 + 2 * 32 * 4
    assert bytes_by_type(info.tensors) == [("F32", info.weights_bytes)]


def test_a_model_may_have_a_second_chat_template_for_tools(tmp_path: Path) -> None:
    templates: dict[str, Value | None] = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    info = read_info(tiny_model(templates).write(tmp_path / "m.gguf"))
    assert (info.chat_template, info.chat_template_for_tools) == ("a", "b")
    of_another_type: dict[str, Value | None] = {**templates, "tokenizer.chat_template.tool_use": 1}
    assert read_info(tiny_model(of_another_type).write(tmp_path / "m.gguf")).chat_template_for_tools is None


def test_version_2_is_accepted(tmp_path: Path) -> None:
    assert read_info(replace(tiny_model(), version=2).write(tmp_path / "m.gguf")).version == 2


def test_what_a_file_may_leave_out_has_defaults(tmp_path: Path) -> None:
    optional = ("general.name", "general.file_type", "general.license", "tokenizer.chat_template")
    changes: dict[str, Value | None] = {**dict.fromkeys(optional), "llama.attention.head_count_kv": None}
    info = read_info(tiny_model(changes).write(tmp_path / "stem.gguf"))
    assert (info.name, info.quant_kind, info.license) == ("stem", "F32", None)
    assert info.head_counts_kv == (4, 4), "as many as attention heads"
    assert info.chat_template is None


@pytest.mark.parametrize(("file_type", "name"), [(3, "Q4_1"), (15, "Q4_K_M"), (1024 + 1, "F16"), (38, "MXFP4")])
def test_the_file_type_names_the_quantisation(tmp_path: Path, file_type: int, name: str) -> None:
    assert read_info(tiny_model({"general.file_type": file_type}).write(tmp_path / "m.gguf")).quant_kind == name


def test_an_unknown_file_type_is_replaced_by_the_type_of_the_greatest_part(tmp_path: Path) -> None:
    large = TensorRow("blk.0.ffn_up.weight", (3200, 2), 4000, Q4_1)
    info = read_info(tiny_model({"general.file_type": 999}, [*TINY_TENSORS, large]).write(tmp_path / "m.gguf"))
    assert info.quant_kind == "Q4_1"
    assert bytes_by_type(info.tensors)[0] == ("Q4_1", 4000)


def test_heads_per_layer_may_be_an_array_with_layers_without_attention(tmp_path: Path) -> None:
    changes: dict[str, Value | None] = {"llama.attention.head_count_kv": [0, 2], "llama.attention.key_length": 16}
    info = read_info(tiny_model(changes).write(tmp_path / "m.gguf"))
    assert (info.head_counts_kv, info.key_length, info.value_length) == ((0, 2), 16, 8)


def test_an_architecture_without_attention_needs_no_heads(tmp_path: Path) -> None:
    keys = ("block_count", "context_length", "embedding_length", "attention.head_count", "attention.head_count_kv")
    changes: dict[str, Value | None] = {f"llama.{key}": None for key in keys}
    changes |= {"general.architecture": "mamba", "mamba.block_count": 2, "mamba.embedding_length": 32}
    info = read_info(tiny_model({**changes, "mamba.context_length": 99}).write(tmp_path / "m.gguf"))
    assert (info.architecture, info.context_length, info.head_counts_kv) == ("mamba", 99, (0, 0))


@pytest.mark.parametrize(("model", "kind"), [*TOKENIZER_KINDS.items(), ("rwkv", "gguf-rwkv")])
def test_the_tokenizer_kind_follows_the_tokenizer_model(tmp_path: Path, model: str, kind: str) -> None:
    assert read_info(tiny_model({"tokenizer.ggml.model": model}).write(tmp_path / "m.gguf")).tokenizer_kind == kind


REQUIRED = (
    "general.architecture",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.attention.head_count",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
)
FEW: list[dict[str, Any]] = [
    {"key": "tokenizer.ggml.tokens", "value": Raw(9, struct.pack("<IQ", 8, 0)), "says": "has 0 tokens"},
    {"key": "llama.attention.head_count", "value": Typed("u32", [4] * 2000), "says": "has 2000 u32, must have 2"},
]
BAD_VALUES = [json.loads(line) for line in Path(__file__).with_name("bad_values.jsonl").read_text().splitlines()]
"""Metadata that a model cannot have, or that llama.cpp cannot compute with; `{"i32": -1}` is a number of that type."""


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = tiny_model({key: None}).write(tmp_path / "m.gguf")
    assert refusal(path) == f"metadata key {key!r} is missing"


@pytest.mark.parametrize("bad", [*BAD_VALUES, *FEW], ids=lambda bad: f"{bad['key']} {bad['says']}")
def test_a_value_that_cannot_be_is_named(tmp_path: Path, bad: dict[str, Any]) -> None:
    value = Typed(*next(iter(bad["value"].items()))) if isinstance(bad["value"], dict) else bad["value"]
    assert bad["says"] in refusal(tiny_model({bad["key"]: value}).write(tmp_path / "m.gguf"))


def test_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    assert "no tensors: a vocabulary alone" in refusal(tiny_model(tensors=()).write(tmp_path / "m.gguf"))


def test_a_model_without_an_embedding_is_refused(tmp_path: Path) -> None:
    path = tiny_model(tensors=TINY_TENSORS[1:]).write(tmp_path / "m.gguf")
    assert refusal(path) == "tensor 'token_embd.weight' is missing"


@pytest.mark.parametrize("name", ["absent.gguf", "m.gguf/inside.gguf", "dangling.gguf"])
def test_a_missing_file_is_not_found(tmp_path: Path, name: str) -> None:
    tiny_model().write(tmp_path / "m.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="no such file"):
        read_info(tmp_path / name)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "a directory" in refusal(tmp_path)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert refusal(tmp_path / "pipe.gguf") == "not a regular file"


@pytest.fixture
def locked_file(tmp_path: Path) -> Iterator[Path]:
    """A model that only root may read, and this process not root for the time of the test."""
    path = tiny_model().write(tmp_path / "locked.gguf")
    path.chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    yield path
    os.seteuid(me)


def test_an_unreadable_file_is_refused(locked_file: Path) -> None:
    assert refusal(locked_file) == "cannot be read: Permission denied"


@pytest.mark.long
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = tiny_model().to_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


@settings(max_examples=300)
@given(data=st.data())
def test_flipped_bytes_give_a_card_or_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    model = tiny_model()
    raw = bytearray(model.to_bytes())
    places = st.integers(min_value=0, max_value=len(model.header()) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        raw[place] = value
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(raw)
    outcome = info_or_line(path)
    assert isinstance(outcome, ModelInfo) or "\n" not in outcome


@pytest.mark.model
def test_the_default_model_s_card(default_model: Path) -> None:
    info = read_info(default_model)
    assert (info.architecture, info.quant_kind, info.tokenizer_kind, info.vocab_size) == (
        "llama",
        "Q4_1",
        "gguf-bpe",
        49152,
    )
    assert (info.block_count, info.context_length, info.embedding_length) == (30, 8192, 576)
    assert (info.head_counts_kv, info.key_length, info.value_length) == ((3,) * 30, 64, 64)
    assert info.chat_template
    assert info.license == "apache-2.0"
    assert (info.file_bytes, len(info.tensors)) == (98362432, 272)


@pytest.mark.model
def test_the_default_model_cut_anywhere_is_refused(default_model: Path, tmp_path: Path) -> None:
    header_bytes = 2 << 20
    size = default_model.stat().st_size
    copy = tmp_path / "cut.gguf"
    with default_model.open("rb") as file:
        copy.write_bytes(file.read(header_bytes))
    os.truncate(copy, size)
    assert len(read_info(copy).tensors) == 272, "the weights are not looked at"
    draw = random.Random(0)
    lengths = [size - 1, *draw.sample(range(header_bytes, size), 24), *draw.sample(range(header_bytes), 24), 0]
    for length in sorted(lengths, reverse=True):
        os.truncate(copy, length)
        refusal(copy)


# ── a model in several files ──────────────────────────────────────────────────────────────────────


def test_a_split_model_is_one_card(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    info = read_info(paths[0])
    assert info.part_paths == tuple(paths)
    assert info.file_bytes == sum(path.stat().st_size for path in paths)
    assert [tensor.name for tensor in info.tensors][1:] == ["blk.1.attn_norm.weight", "blk.2.attn_norm.weight"]


def test_the_least_alignment_of_all_parts_is_the_model_s(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    assert read_info(paths[0]).alignment == 32
    split: dict[str, Value] = {"split.no": Typed("u16", 1), "split.count": Typed("u16", 3), "general.alignment": 8}
    GgufFile(split, [TensorRow("blk.1.attn_norm.weight", (32,), 32 * 4)], alignment=8).write(paths[1])
    assert read_info(paths[0]).alignment == 8


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    paths[1].unlink()
    assert refusal(paths[0]) == "part 1 of 3; tiny-00002-of-00003.gguf is missing from the same folder"


def test_a_later_part_says_which_to_name(tmp_path: Path) -> None:
    assert refusal(tiny_split(tmp_path)[2]) == "part 3 of 3: name the first one, tiny-00001-of-00003.gguf"


def test_a_renamed_part_says_how_it_must_be_named(tmp_path: Path) -> None:
    renamed = tiny_split(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert refusal(renamed) == "part 1 of 3, so its name must end in -00001-of-00003.gguf"


@pytest.mark.parametrize("cut", [0, 10, 60, -1])
def test_a_part_cut_short_is_refused_by_its_own_name(tmp_path: Path, cut: int) -> None:
    paths = tiny_split(tmp_path)
    os.truncate(paths[1], cut if cut >= 0 else paths[1].stat().st_size + cut)
    with pytest.raises(BadModelFile, match=r"^\S+/tiny-00002-of-00003\.gguf: "):
        read_info(paths[0])


def test_parts_in_each_other_s_place_are_refused(tmp_path: Path) -> None:
    _, second, third = tiny_split(tmp_path)
    second.write_bytes(third.read_bytes())
    with pytest.raises(BadModelFile, match=r"tiny-00002-of-00003\.gguf: metadata key 'split\.no' is 2, must be 1"):
        read_info(tmp_path / "tiny-00001-of-00003.gguf")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first, second, _ = tiny_split(tmp_path)
    GgufFile({"split.no": Typed("u16", 1)}, [TensorRow("blk.2.attn_norm.weight", (32,), 128)]).write(second)
    assert refusal(first) == "tensor 'blk.2.attn_norm.weight' appears in 2 of its parts"
