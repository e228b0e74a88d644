"""A model that llama.cpp cannot compute with is refused with one line; what it can compute with is not.

tests/llama/test_computable.py asks the library itself what becomes of such models.
"""

import re
from pathlib import Path

import pytest

from tests.gguf_files import F16, F32, Q8_0, TINY_TENSORS, TensorRow, Typed, Value, tiny_model
from worker.errors import BadModelFile
from worker.models.facts.info import ModelInfo, read_info
from worker.models.upstream.ggml_types import TENSOR_TYPES

NAN = float("nan")


def info_of(folder: Path, changes: dict[str, Value | None], *more: TensorRow) -> ModelInfo:
    return read_info(tiny_model(changes, tensors=[*TINY_TENSORS, *more]).write(folder / "m.gguf"))


FLOAT_ONLY = [
    "output_norm.weight",
    "token_embd_norm.bias",
    "blk.0.attn_norm.weight",
    "blk.0.attn_norm_2.weight",
    "blk.0.attn_q_norm.weight",
    "blk.0.post_ffw_norm_1.weight",
    "blk.0.attn_q.bias",
    "blk.0.ffn_down_exps.bias",
    "blk.0.exp_probs_b.bias",
    "blk.0.attn_sinks.weight",
    "blk.0.ssm_a",
    "blk.0.ssm_d",
    "blk.0.ssm_conv1d.weight",
    "blk.0.shortconv.conv.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
]


@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_a_tensor_that_is_added_or_multiplied_must_be_f32(tmp_path: Path, name: str) -> None:
    rest = [row for row in TINY_TENSORS if row.name != name]
    for type_id, type_name, n_bytes in ((F16, "F16", 64), (30, "BF16", 64), (Q8_0, "Q8_0", 34)):
        path = tmp_path / f"{type_name}.gguf"
        tiny_model(tensors=[*rest, TensorRow(name, (32,), n_bytes, type_id)]).write(path)
        with pytest.raises(
            BadModelFile, match=re.escape(f"{path}: tensor {name!r} is {type_name}; llama.cpp computes")
        ):
            read_info(path)
    tiny_model(tensors=[*rest, TensorRow(name, (32,), 128, F32)]).write(tmp_path / "F32.gguf")
    assert read_info(tmp_path / "F32.gguf").tensors[-1].name == name


@pytest.mark.parametrize("type_name", ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"])
def test_a_type_without_a_product_is_refused_for_matrices_and_not_for_tables(tmp_path: Path, type_name: str) -> None:
    type_id = next(number for number, kind in TENSOR_TYPES.items() if kind.name == type_name)
    n_bytes = TENSOR_TYPES[type_id].n_bytes(512)
    with pytest.raises(BadModelFile, match=f"tensor 'blk.0.attn_q.weight' is {type_name}; llama.cpp cannot multiply"):
        info_of(tmp_path, {}, TensorRow("blk.0.attn_q.weight", (256, 2), n_bytes, type_id))
    table = TensorRow("blk.0.ffn_gate_tid2eid.weight", (256, 2), n_bytes, type_id)
    assert info_of(tmp_path, {}, table).tensors[-1].type_name == type_name


@pytest.mark.parametrize(
    "name",
    [
        "output.weight",
        "blk.0.attn_q.weight",
        "blk.0.attn_qkv.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_inp_shexp.weight",
        "blk.0.ssm_in.weight",
        "blk.0.ssm_dt.weight",
        "blk.0.shortconv.in_proj.weight",
        "position_embd.weight",
    ],
)
def test_matrices_and_rows_that_are_looked_up_may_be_of_any_type(tmp_path: Path, name: str) -> None:
    """A shared expert's gate has one dimension, and goes through a matrix product all the same."""
    assert info_of(tmp_path, {}, TensorRow(name, (32,), 64, F16)).tensors[-1].type_name == "F16"


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
