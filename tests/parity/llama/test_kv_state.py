"""The saved state of a sequence, as the library really writes it, and what is refused of it."""

import struct

import numpy as np
import pytest

from parity.llama.scoring import Scorer, Setup
from parity.llama.tensor_capture import KvState, TensorCapture, parse_kv_state
from tests.llama.conftest import Loaded
from worker.llama.model import Model

TOKENS = [504, 1761, 3156, 282, 260, 2667]

MAGIC = 0xAF143CD8


def state_of(*, n_streams: int = 1, seq_ids: int = 1, ggml_type: int = 0, tail: bytes = b"") -> bytes:
    """Two cells, one layer, K of two numbers and V of one, V transposed."""
    cells = b"".join(struct.pack(f"<iI{seq_ids}i", pos, seq_ids, *[0] * seq_ids) for pos in (0, 1))
    k = struct.pack("<iQ4f", ggml_type, 8, 1.0, 2.0, 3.0, 4.0)
    v = struct.pack("<iII2f", ggml_type, 4, 1, 5.0, 6.0)
    return struct.pack("<IiII", MAGIC, 0, n_streams, 2) + cells + struct.pack("<II", 1, 1) + k + v + tail


def test_rows_are_cells_also_where_v_is_transposed() -> None:
    state = parse_kv_state(state_of())
    assert state.positions == (0, 1)
    assert state.k[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert state.v[0].tolist() == [[5.0], [6.0]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" * 16, "magic"),
        (state_of(n_streams=2), "2 streams"),
        (state_of(seq_ids=2), "not of sequence 0 alone"),
        (state_of(ggml_type=8), "ggml type 8"),
        (state_of(tail=b"more"), "4 bytes follow"),
        (state_of()[:-1], "ends at byte"),
        (b"", "ends at byte 0; 4 are needed"),
    ],
)
def test_another_state_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_kv_state(data)


def stored(model: Model, setup: Setup) -> tuple[KvState, dict[str, list[np.ndarray]]]:
    tap = TensorCapture(["Kcur", "Vcur"])
    with Scorer(model, setup, n_ctx=16, n_threads=1, tap=tap) as scorer:
        scorer.logits(TOKENS)
        return scorer.kv(), {name: list(arrays) for name, arrays in tap.taken().items()}


@pytest.mark.model
@pytest.mark.parametrize("flash_attn", ["off", "on"])
@pytest.mark.usefixtures("default_model")
def test_f32_memory_holds_what_was_computed_bit_for_bit(loaded: Loaded, flash_attn: str) -> None:
    """V lies transposed without flash attention, in rows with it."""
    state, computed = stored(loaded.model, Setup(flash_attn=flash_attn))
    assert state.positions == tuple(range(len(TOKENS)))
    assert len(state.k) == len(state.v) == 30
    for layer in range(30):
        assert state.k[layer].tobytes() == computed[f"Kcur-{layer}"][-1].tobytes()
        assert state.v[layer].tobytes() == computed[f"Vcur-{layer}"][-1].tobytes()
