"""GGUF and checkpoint name the same tensors and order the same rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parity.naming import not_comparable, to_checkpoint_order, to_gguf_order
from tests.gguf_files import TensorRow, tiny_model
from tests.parity.small_gguf import (
    random_checkpoint,
    write_gguf,
)
from worker.models.facts.info import read_info


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
