"""A model with which llama.cpp answers nothing, or dies without a word, is refused with one line; others are not.

tests/llama/test_computable.py asks the library itself what becomes of such models.
"""

from pathlib import Path

import pytest

from tests.gguf_files import TINY_TENSORS, TensorRow, Typed, Value, tiny_model
from worker.errors import BadModelFile
from worker.models.facts.info import ModelInfo, read_info
from worker.models.upstream.ggml_types import TENSOR_TYPES

NAN = float("nan")


def info_of(folder: Path, changes: dict[str, Value | None], *more: TensorRow) -> ModelInfo:
    return read_info(tiny_model(changes, tensors=[*TINY_TENSORS, *more]).write(folder / "m.gguf"))


@pytest.mark.parametrize("type_name", ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"])
def test_a_type_without_a_product_is_refused_for_matrices_and_not_for_tables(tmp_path: Path, type_name: str) -> None:
    type_id = next(number for number, kind in TENSOR_TYPES.items() if kind.name == type_name)
    n_bytes = TENSOR_TYPES[type_id].n_bytes(512)
    with pytest.raises(BadModelFile, match=f"tensor 'blk.0.attn_q.weight' is {type_name}; llama.cpp cannot multiply"):
        info_of(tmp_path, {}, TensorRow("blk.0.attn_q.weight", (256, 2), n_bytes, type_id))
    table = TensorRow("blk.0.ffn_gate_tid2eid.weight", (256, 2), n_bytes, type_id)
    assert info_of(tmp_path, {}, table).tensors[-1].type_name == type_name


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.layer_norm_rms_epsilon": 0.0},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": -0.1},
        {"rope.scaling.factor": 0.0},
        {"logit_scale": -1.0},
        {"final_logit_softcapping": 0.0},
    ],
    ids=str,
)
def test_what_real_models_say_is_accepted(tmp_path: Path, changes: dict[str, Value]) -> None:
    assert info_of(tmp_path, {f"llama.{key}": value for key, value in changes.items()}).block_count == 2


def test_a_number_of_another_type_is_left_to_llama_cpp(tmp_path: Path) -> None:
    assert info_of(tmp_path, {"llama.logit_scale": Typed("f64", NAN)}).block_count == 2
