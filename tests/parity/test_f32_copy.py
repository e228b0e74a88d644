"""A copy of a GGUF differs from it in what was asked for alone; the F32 copy has the reference's weights."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from parity.f32_copy import open_gguf, rewrite, write_f32_copy
from parity.llama.quantise import FILE_TYPES, quantise
from tests.gguf_files import TensorRow, Typed, Value, tiny_model, tiny_split
from tests.llama.tiny import N_EMBD, TOKENS, write_tiny
from tests.parity.small_gguf import (
    dequantised,
    gguf_name,
    random_checkpoint,
    stored,
    with_tensor,
    write_gguf,
)
from worker.errors import BadModelFile, UsageError, WorkerError
from worker.models.facts.info import read_info


def contents(path: Path) -> dict[str, object]:
    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def types(path: Path) -> dict[str, list[object]]:
    return {key: list(field.types) for key, field in GGUFReader(path).fields.items()}


def data(path: Path) -> dict[str, tuple[object, bytes]]:
    return {tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in GGUFReader(path).tensors}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "source.gguf", weight=0.25)


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


@pytest.mark.parametrize("shape", [(N_EMBD + 1,), (1, N_EMBD)])
def test_a_tensor_of_another_shape_is_one_clear_line_and_no_copy(
    source: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError, match=r"'output_norm\.weight' has shape \(32,\)"):
        with_tensor(source, tmp_path / "copy.gguf", "output_norm.weight", np.zeros(shape, dtype=np.float32))
    assert not (tmp_path / "copy.gguf").exists()


def test_a_split_model_is_refused(tmp_path: Path) -> None:
    first = tiny_split(tmp_path)[0]
    with pytest.raises(BadModelFile, match=r"split into \d files; join them first"):
        rewrite(first, tmp_path / "copy.gguf")


@pytest.mark.parametrize("file_type", sorted(FILE_TYPES))
def test_tensors_are_de_quantised_as_llama_cpp_does(tmp_path: Path, file_type: str) -> None:
    original = write_gguf(tmp_path / "f32.gguf", random_checkpoint())
    quantise(original, tmp_path / "quantised.gguf", file_type, n_threads=1)
    quantise(tmp_path / "quantised.gguf", tmp_path / "back.gguf", "F32", n_threads=1)
    quantised = stored(tmp_path / "quantised.gguf")
    for tensor in open_gguf(tmp_path / "back.gguf").tensors:
        assert np.array_equal(dequantised(quantised[tensor.name]), tensor.data)


def test_a_f32_copy_has_the_references_weights_and_the_files_metadata(tmp_path: Path) -> None:
    checkpoint = random_checkpoint()
    quantised = write_gguf(tmp_path / "q4.gguf", checkpoint, "Q4_0", {"rope_freqs.weight": 8})
    f32_copy = tmp_path / "f32-copy.gguf"
    write_f32_copy(quantised, checkpoint, f32_copy)
    exact = write_gguf(tmp_path / "exact.gguf", checkpoint, "F32", {"rope_freqs.weight": 8})
    assert f32_copy.read_bytes() == exact.read_bytes()


@pytest.mark.parametrize("missing", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_checkpoint_without_a_tensor_has_no_f32_copy(tmp_path: Path, missing: str) -> None:
    checkpoint = random_checkpoint()
    path = write_gguf(tmp_path / "small.gguf", checkpoint)
    del checkpoint.tensors[missing]
    with pytest.raises(WorkerError, match=rf"no tensor for '{gguf_name(missing)}'"):
        write_f32_copy(path, checkpoint, tmp_path / "f32-copy.gguf")
    assert not (tmp_path / "f32-copy.gguf").exists()


@pytest.mark.model
def test_the_f32_copy_of_the_default_model_is_the_model_de_quantised(default_model: Path, f32_copy: Path) -> None:
    """Its reference was made from it, so its own weights come back, through two names and two reorderings."""
    original, found = stored(default_model), stored(f32_copy)
    assert list(found) == list(original)
    assert {tensor.tensor_type.name for tensor in found.values()} == {"F32"}
    assert [name for name in found if not np.array_equal(found[name].data, dequantised(original[name]))] == []
