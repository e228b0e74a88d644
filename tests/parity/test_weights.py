"""The weights level passes what a format promises, and names what is not the reference's, in names and rows of both."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parity.bounds import Bounds
from parity.f32_copy import open_gguf
from parity.levels import weights
from parity.llama.quantise import FILE_TYPES, quantise
from parity.naming import not_comparable, to_checkpoint_order, to_gguf_order
from parity.reference.tensors import CheckpointTensors
from parity.report import Check, Level
from tests.gguf_files import TensorRow, tiny_model
from tests.parity.small_gguf import (
    HEAD_DIM,
    N_EMBD,
    N_HEADS,
    SHAPES,
    InMemory,
    gguf_name,
    random_checkpoint,
    read_tensor,
    write_gemma,
    write_gguf,
)
from worker.models.facts.info import read_info

Q, GATE = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight"


def broken(level: Level) -> list[Check]:
    return [check for check in level.checks if not check.holds]


def judge(path: Path, checkpoint: InMemory, bounds: Bounds, *, made_from_this_file: bool = False) -> Level:
    return weights.run(path, checkpoint, bounds, made_from_this_file=made_from_this_file)


def test_the_same_weights_are_without_error(tmp_path: Path, bounds: Bounds) -> None:
    checkpoint = random_checkpoint()
    level = judge(write_gguf(tmp_path / "f32.gguf", checkpoint), checkpoint, bounds)
    assert level.verdict == "pass"
    assert {check.value for check in level.checks} == {0}


@pytest.mark.parametrize("file_type", sorted(FILE_TYPES))
def test_every_type_of_the_quantiser_keeps_its_bounds(tmp_path: Path, bounds: Bounds, file_type: str) -> None:
    """The bounds are the type's own. A type without any would be judged as `other`."""
    checkpoint = random_checkpoint()
    quantise(write_gguf(tmp_path / "f32.gguf", checkpoint), tmp_path / "q.gguf", file_type, n_threads=1)
    level = judge(tmp_path / "q.gguf", checkpoint, bounds)
    assert level.verdict == "pass", level.summary
    kinds = {tensor.tensor_type.name for tensor in open_gguf(tmp_path / "q.gguf").tensors}
    assert {check.name.split(":")[0] for check in level.checks[2:]} == kinds
    for kind in kinds:
        bounds.bound(f"weights.{kind}")
        bounds.bound(f"weights.of_block.{kind}")


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_a_type_is_not_allowed_three_times_the_error_of_its_format(tmp_path: Path, bounds: Bounds, kind: str) -> None:
    """Or its bounds would let a mistake of the size of a step through."""
    checkpoint = random_checkpoint()
    level = judge(write_gguf(tmp_path / "q.gguf", checkpoint, kind), checkpoint, bounds)
    of_kind = [check for check in level.checks if check.name.startswith(f"{kind}:")]
    assert len(of_kind) == 2
    assert all(check.bound / 3 < check.value for check in of_kind)


def test_an_output_that_is_its_embedding_may_be_in_the_checkpoint(tmp_path: Path, bounds: Bounds) -> None:
    checkpoint = random_checkpoint()
    path = write_gguf(tmp_path / "f32.gguf", checkpoint)
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"].copy()
    assert judge(path, checkpoint, bounds).verdict == "pass"
    checkpoint.tensors["lm_head.weight"][3, 4] += 1
    level = judge(path, checkpoint, bounds)
    assert level.verdict == "fail"
    assert "token_embd.weight as output.weight" in level.summary


@pytest.mark.model
def test_a_reference_made_from_the_file_is_the_file(default_model: Path, checkpoint: Path, bounds: Bounds) -> None:
    level = weights.run(default_model, CheckpointTensors.open(checkpoint), bounds, made_from_this_file=True)
    assert level.verdict == "pass", level.summary
    assert {check.value for check in level.checks} == {0}
    assert level.summary.startswith("272 tensors")


def one_far_off(values: NDArray[np.float32]) -> NDArray[np.float32]:
    values[17, 5] += 1.0
    return values


def noisy(values: NDArray[np.float32]) -> NDArray[np.float32]:
    random = np.random.default_rng(1)
    return (values * (1 + 1e-6 * random.normal(size=values.shape))).astype(np.float32)


def heads_swapped(values: NDArray[np.float32]) -> NDArray[np.float32]:
    heads = values.reshape(N_HEADS, HEAD_DIM, N_EMBD)
    return np.concatenate([heads[1:2], heads[0:1], heads[2:]]).reshape(values.shape)


def halves_left_as_they_are(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows of a file whose converter forgot to interleave."""
    return to_gguf_order(values, N_HEADS)


def transposed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(values.T)


@pytest.mark.parametrize("change", [one_far_off, noisy, heads_swapped, halves_left_as_they_are, transposed])
def test_a_changed_tensor_is_named(
    tmp_path: Path, bounds: Bounds, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> None:
    checkpoint = random_checkpoint()
    path = write_gguf(tmp_path / "f32.gguf", checkpoint)
    checkpoint.tensors[Q] = change(checkpoint.tensors[Q].copy())
    level = judge(path, checkpoint, bounds)
    assert level.verdict == "fail"
    assert "blk.1.attn_q.weight" in level.summary
    assert [check.note.partition(",")[0] for check in broken(level)] == ["blk.1.attn_q.weight"] * 2
    assert level.tables[1].rows[0][0] == "blk.1.attn_q.weight"
    assert [row[2] != "0" for row in level.tables[1].rows].count(True) == 1


def test_noise_below_a_step_is_found_where_the_reference_is_this_file(tmp_path: Path, bounds: Bounds) -> None:
    checkpoint = random_checkpoint()
    path = write_gguf(tmp_path / "q.gguf", checkpoint, "Q8_0")
    same = InMemory({name: tensor_of(path, name) for name in SHAPES}, [])
    assert judge(path, same, bounds, made_from_this_file=True).verdict == "pass"
    same.tensors[GATE] = noisy(same.tensors[GATE])
    assert judge(path, same, bounds).verdict == "pass"
    level = judge(path, same, bounds, made_from_this_file=True)
    assert level.verdict == "fail"
    assert "blk.0.ffn_gate.weight" in level.summary


def tensor_of(path: Path, name: str) -> NDArray[np.float32]:
    """The values of a checkpoint made from the file. The level itself checks the order."""
    values = read_tensor(path, gguf_name(name))
    n_heads = {"q_proj": N_HEADS, "k_proj": N_HEADS // 2}.get(name.split(".")[-2])
    return to_checkpoint_order(values, n_heads) if n_heads else values


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["gguf", "reference"])
def test_what_is_no_number_holds_no_bound(tmp_path: Path, bounds: Bounds, wrong: float, side: str) -> None:
    good, bad = random_checkpoint(), random_checkpoint()
    bad.tensors[GATE][2, 3] = wrong
    stored, reference = (bad, good) if side == "gguf" else (good, bad)
    level = judge(write_gguf(tmp_path / "f32.gguf", stored), reference, bounds)
    assert level.verdict == "fail"
    assert all("blk.0.ffn_gate.weight" in check.note for check in broken(level))
    assert level.tables[1].rows[0][0] == "blk.0.ffn_gate.weight"


@pytest.mark.parametrize(("side", "says"), [("gguf", "not in the GGUF"), ("reference", "not in the reference")])
def test_a_missing_tensor_is_named(tmp_path: Path, bounds: Bounds, side: str, says: str) -> None:
    whole, less = random_checkpoint(), random_checkpoint()
    del less.tensors["model.layers.1.mlp.up_proj.weight"]
    stored, reference = (less, whole) if side == "gguf" else (whole, less)
    level = judge(write_gguf(tmp_path / "f32.gguf", stored), reference, bounds)
    assert level.verdict == "fail"
    assert f"(blk.1.ffn_up.weight: {says})" in level.summary


@pytest.mark.model
def test_one_weight_in_a_hundred_million_is_named(default_model: Path, checkpoint: Path, bounds: Bounds) -> None:
    """The weight is changed in the reference, so no copy of the file has to be made."""

    class OneOff:
        def __init__(self) -> None:
            self._tensors = CheckpointTensors.open(checkpoint)
            self.names = self._tensors.names

        def read(self, name: str) -> NDArray[np.float32]:
            values = self._tensors.read(name)
            if name == "model.layers.12.mlp.down_proj.weight":
                values[100, 200] += 0.25
            return values

    level = weights.run(default_model, OneOff(), bounds, made_from_this_file=False)
    assert level.verdict == "fail"
    assert [check.note for check in broken(level)] == ["blk.12.ffn_down.weight, row 100, column 200"]


def test_another_architecture_is_not_run(tmp_path: Path, bounds: Bounds) -> None:
    path = write_gemma(tmp_path / "gemma.gguf")
    level = judge(path, InMemory({}, []), bounds)
    assert level.verdict == "not run"
    assert "gemma" in level.summary


@given(n_heads=st.integers(1, 5), n_pairs=st.integers(1, 9), columns=st.integers(1, 3))
def test_the_orders_are_each_others_inverse(n_heads: int, n_pairs: int, columns: int) -> None:
    values = np.arange(n_heads * 2 * n_pairs * columns, dtype=np.float32).reshape(-1, columns)
    there = to_gguf_order(values, n_heads)
    assert sorted(map(tuple, there)) == sorted(map(tuple, values))
    assert np.array_equal(to_checkpoint_order(there, n_heads), values)
    assert np.array_equal(to_gguf_order(to_checkpoint_order(values, n_heads), n_heads), values)


@given(n_heads=st.integers(1, 5), n_pairs=st.integers(1, 9))
def test_rows_that_are_rotated_together_are_neighbours_in_a_gguf(n_heads: int, n_pairs: int) -> None:
    order = to_gguf_order(np.arange(n_heads * 2 * n_pairs, dtype=np.float64), n_heads)
    for head in range(n_heads):
        for pair in range(n_pairs):
            first = head * 2 * n_pairs
            assert order[first + 2 * pair : first + 2 * pair + 2].tolist() == [first + pair, first + pair + n_pairs]


def test_only_llama_without_experts_can_be_compared(tmp_path: Path) -> None:
    small = read_info(write_gguf(tmp_path / "small.gguf", random_checkpoint()))
    assert not_comparable(small) is None
    assert "qwen2" in (not_comparable(replace(small, architecture="qwen2")) or "")
    experts = tiny_model(
        tensors=[TensorRow("token_embd.weight", (32, 8), 1024), TensorRow("blk.0.ffn_up_exps.weight", (2,), 8)]
    )
    assert "mixture of experts" in (not_comparable(read_info(experts.write(tmp_path / "experts.gguf"))) or "")
