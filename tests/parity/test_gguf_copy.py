"""A copy of a GGUF differs from it in what was asked for and in nothing else; or there is no copy."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from tests.gguf_files import F32, TensorRow, Typed, Value, tiny_model, tiny_split
from tests.llama.tiny import N_EMBD, TOKENS, write_tiny
from tests.parity.small_gguf import random_checkpoint, write_gguf
from worker.errors import BadModelFile, ModelNotFound, UsageError
from worker.llama.devices import choose_device, devices
from worker.llama.model import Model
from worker.model.info import read_info
from worker.parity.gguf_copy import dequantised, open_gguf, read_tensor, rewrite, tensor_names
from worker.parity.llama.quantise import FILE_TYPES, quantise
from worker.wire.messages import TokenId


def contents(path: Path) -> dict[str, object]:
    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def types(path: Path) -> dict[str, list[object]]:
    return {key: list(field.types) for key, field in GGUFReader(path).fields.items()}


def data(path: Path) -> dict[str, tuple[object, bytes]]:
    return {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in GGUFReader(path).tensors}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "source.gguf", weight=0.25)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_a_copy_without_changes_is_the_same_file(default_model: Path, tmp_path: Path) -> None:
    rewrite(default_model, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == default_model.read_bytes()


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_the_alignment_of_a_file_is_kept(tmp_path: Path, alignment: int) -> None:
    rows = [TensorRow("token_embd.weight", (32, 8), 1024), TensorRow("a.weight", (7,), 28), TensorRow("b", (3,), 12)]
    file = tiny_model({"general.alignment": alignment}, rows)
    path = type(file)(file.metadata, file.tensors, alignment=alignment).write(tmp_path / "source.gguf")
    rewrite(path, tmp_path / "copy.gguf")
    assert read_info(tmp_path / "copy.gguf").tensors == read_info(path).tensors
    # The last tensor's padding is optional.
    assert (tmp_path / "copy.gguf").read_bytes().rstrip(b"\0") == path.read_bytes().rstrip(b"\0")


def test_metadata_of_every_type_is_kept(tmp_path: Path) -> None:
    numbers: dict[str, Value] = {
        kind: Typed(kind, 7) for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")
    }
    arrays: dict[str, Value] = {f"{kind}s": Typed(kind, [1, 2]) for kind in numbers}
    others: dict[str, Value] = {
        "own.bool": True,
        "own.text": "",
        "own.words": ["é", ""],
        "own.bools": Typed("bool", [True, False]),
    }
    path = tiny_model({f"own.{key}": value for key, value in {**numbers, **arrays}.items()} | others).write(
        tmp_path / "source.gguf"
    )
    rewrite(path, tmp_path / "copy.gguf")
    assert contents(tmp_path / "copy.gguf") == contents(path)
    assert types(tmp_path / "copy.gguf") == types(path)


def test_text_that_is_no_utf_8_is_kept(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "source.gguf")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xfe"))
    rewrite(path, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes().rstrip(b"\0") == path.read_bytes().rstrip(b"\0")


# ── what is changed ──────────────────────────────────────────────────────────────────────────────


def test_a_changed_value_keeps_its_type_and_all_else(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    changes: dict[str, object] = {
        "llama.attention.layer_norm_rms_epsilon": 0.5,
        "llama.context_length": 128,
        "general.name": "Other",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": [*TOKENS[:-1], "z"],
    }
    rewrite(source, copy, metadata=changes)
    assert contents(copy) == contents(source) | changes
    assert types(copy) == types(source)
    assert data(copy) == data(source)


def test_an_array_may_become_shorter(tmp_path: Path) -> None:
    source = tiny_model({"own.list": ["a b", "c d", "e f"]}).write(tmp_path / "source.gguf")
    rewrite(source, tmp_path / "copy.gguf", metadata={"own.list": ["a b", "e f"]})
    assert contents(tmp_path / "copy.gguf") == contents(source) | {"own.list": ["a b", "e f"]}


def test_a_changed_tensor_is_stored_as_f32_and_all_else_kept(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "source.gguf", random_checkpoint(), "Q8_0")
    name = "blk.1.attn_q.weight"
    values = read_tensor(source, name).astype(np.float64) * 2
    rewrite(source, tmp_path / "copy.gguf", tensors={name: values})  # type: ignore[dict-item]  # becomes float32
    before, after = data(source), data(tmp_path / "copy.gguf")
    assert after.pop(name) == (F32, values.astype(np.float32).tobytes())
    del before[name]
    assert after == before


def test_llama_cpp_loads_a_changed_copy(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    tokens = [*TOKENS[:-2], "b", TOKENS[-1]]
    weights = np.ones((N_EMBD, N_EMBD), dtype=np.float32)
    rewrite(source, copy, metadata={"tokenizer.ggml.tokens": tokens}, tensors={"blk.0.attn_v.weight": weights})
    with Model.load(copy, device=choose_device("cpu", devices()), n_gpu_layers=0, on_progress=lambda _: None) as model:
        assert model.piece(TokenId(len(TOKENS) - 2)) == b"b"


def test_new_tensors_are_asked_for_one_at_a_time_in_the_order_of_the_file(source: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    class OnDemand(Mapping[str, NDArray[np.float32]]):
        def __getitem__(self, name: str) -> NDArray[np.float32]:
            asked.append(name)
            return np.zeros(N_EMBD, dtype=np.float32)

        def __contains__(self, name: object) -> bool:
            return name in set(self)

        def __iter__(self) -> Iterator[str]:
            yield from ("blk.0.ffn_norm.weight", "output_norm.weight")

        def __len__(self) -> int:
            return 2

    rewrite(source, tmp_path / "copy.gguf", tensors=OnDemand())
    assert asked == ["output_norm.weight", "blk.0.ffn_norm.weight"]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("metadata", "tensors", "says"),
    [
        ({"llama.rope.freq_base": 1.0}, {}, r"source\.gguf: has no metadata key 'llama\.rope\.freq_base'"),
        ({"GGUF.version": 3}, {}, r"has no metadata key 'GGUF\.version'"),
        ({}, {"blk.9.attn_q.weight": (N_EMBD, N_EMBD)}, r"source\.gguf: has no tensor 'blk\.9\.attn_q\.weight'"),
        ({}, {"output_norm.weight": (N_EMBD + 1,)}, r"'output_norm\.weight' has shape \(32,\).*\(33,\)"),
        ({}, {"output_norm.weight": (1, N_EMBD)}, r"'output_norm\.weight' has shape \(32,\).*\(1, 32\)"),
        ({"llama.context_length": "64"}, {}, r"'llama\.context_length' takes one int"),
        ({"llama.context_length": True}, {}, r"'llama\.context_length' takes one int"),
        ({"llama.context_length": [64]}, {}, r"'llama\.context_length' takes one int"),
        ({"llama.attention.layer_norm_rms_epsilon": 1}, {}, r"takes one float"),
        ({"general.name": 3}, {}, r"'general\.name' takes one str"),
        ({"tokenizer.ggml.tokens": "abc"}, {}, r"'tokenizer\.ggml\.tokens' takes a list of at least one str"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, {}, r"takes a list of at least one str"),
        ({"tokenizer.ggml.tokens": []}, {}, r"takes a list of at least one str"),
        ({"llama.context_length": -1}, {}, r"does not fit its key's type"),
        ({"llama.context_length": 2**32}, {}, r"does not fit its key's type"),
    ],
)
def test_what_cannot_be_changed_is_one_clear_line_and_no_copy(
    source: Path, tmp_path: Path, metadata: dict[str, object], tensors: dict[str, tuple[int, ...]], says: str
) -> None:
    values = {name: np.zeros(shape, dtype=np.float32) for name, shape in tensors.items()}
    with pytest.raises(UsageError, match=says):
        rewrite(source, tmp_path / "copy.gguf", metadata=metadata, tensors=values)
    assert not (tmp_path / "copy.gguf").exists()


def test_a_file_is_not_copied_onto_itself(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    (tmp_path / "link.gguf").symlink_to(source)
    for target in (source, tmp_path / "link.gguf"):
        with pytest.raises(UsageError, match="cannot replace the file it is made from"):
            rewrite(source, target)
    assert source.read_bytes() == before


def test_an_empty_array_is_refused(tmp_path: Path) -> None:
    source = tiny_model({"own.none": Typed("i32", [])}).write(tmp_path / "source.gguf")
    with pytest.raises(UsageError, match=r"'own\.none' is an empty array"):
        rewrite(source, tmp_path / "copy.gguf")


def test_a_split_model_is_refused(tmp_path: Path) -> None:
    first = tiny_split(tmp_path)[0]
    with pytest.raises(BadModelFile, match=r"split into \d files; join them first"):
        rewrite(first, tmp_path / "copy.gguf")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no")
    with pytest.raises(BadModelFile, match="not a GGUF file"):
        rewrite(tmp_path / "bad.gguf", tmp_path / "copy.gguf")
    with pytest.raises(ModelNotFound, match="no such file"):
        rewrite(tmp_path / "none.gguf", tmp_path / "copy.gguf")


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


def test_tensor_names_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", random_checkpoint())
    assert tensor_names(path) == [tensor.name for tensor in GGUFReader(path).tensors]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_a_tensor_read_in_pieces_is_the_whole(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "small.gguf", random_checkpoint(), kind)
    monkeypatch.setattr("worker.parity.gguf_copy._AT_ONCE", 7 * 64)
    for tensor in open_gguf(path).tensors:
        assert np.array_equal(dequantised(tensor), dequantize(tensor.data, tensor.tensor_type))


def test_a_tensor_that_is_not_there_is_one_clear_line(source: Path) -> None:
    with pytest.raises(UsageError, match=r"has no tensor 'none'"):
        read_tensor(source, "none")


@pytest.mark.parametrize("file_type", sorted(FILE_TYPES))
def test_tensors_are_de_quantised_as_llama_cpp_does(tmp_path: Path, file_type: str) -> None:
    original = write_gguf(tmp_path / "f32.gguf", random_checkpoint())
    quantise(original, tmp_path / "quantised.gguf", file_type, n_threads=1)
    quantise(tmp_path / "quantised.gguf", tmp_path / "back.gguf", "F32", n_threads=1)
    stored = {tensor.name: tensor for tensor in open_gguf(tmp_path / "quantised.gguf").tensors}
    for tensor in open_gguf(tmp_path / "back.gguf").tensors:
        assert np.array_equal(dequantised(stored[tensor.name]), tensor.data)
