"""Tensors out of the real library's graph and its saved state, and the way from ggml's strides to numpy."""

import struct

import numpy as np
import pytest

from parity.llama.scoring import Scorer, Setup
from parity.llama.tensor_capture import BF16, F16, F32, Copy, KvState, TensorCapture, parse_kv_state, widened
from tests.llama.conftest import Loaded
from worker.llama.model import Model

TOKENS = [504, 1761, 3156, 282, 260, 2667]


# ── strides and types ────────────────────────────────────────────────────────────────────────────


def test_a_transposed_tensor_is_read_by_its_strides() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    transposed = Copy(F32, (2, 3, 1, 1), (12, 4, 24, 24), values.reshape(-1).view(np.uint8))
    assert (transposed.array()[0, 0] == values.T).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 2.0**-24, 65504.0, np.inf])
def test_half_precision_is_widened_exactly(value: float) -> None:
    bits = np.array([value], np.float16).view(np.uint16)
    assert widened(bits, F16).tobytes() == np.array([value], np.float32).tobytes()


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 2.0**-126, 3.3895314e38, -np.inf])
def test_bfloat16_is_widened_exactly(value: float) -> None:
    upper = np.array([value], np.float32).view(np.uint32) >> 16
    assert widened(upper.astype(np.uint16), BF16).tobytes() == np.array([value], np.float32).tobytes()


def test_a_type_without_floats_is_refused() -> None:
    with pytest.raises(ValueError, match="ggml type 8 cannot be read"):
        Copy(8, (32, 1, 1, 1), (34, 34, 34, 34), np.zeros(34, np.uint8)).array()


def test_an_extent_that_does_not_fit_the_bytes_is_noticed() -> None:
    """A changed layout of the library's struct would look like this."""
    with pytest.raises(RuntimeError, match="has 16 bytes"):
        Copy(F32, (5, 1, 1, 1), (4, 20, 20, 20), np.zeros(16, np.uint8)).array()


# ── the library's graph ──────────────────────────────────────────────────────────────────────────


def taken(loaded: Loaded, stems: list[str], setup: Setup) -> dict[str, list[np.ndarray]]:
    tap = TensorCapture(stems)
    with Scorer(loaded.model, setup, n_ctx=16, n_threads=1, tap=tap) as scorer:
        scorer.logits(TOKENS)
    return {name: list(arrays) for name, arrays in tap.taken().items()}


@pytest.mark.model
@pytest.mark.parametrize(("cache_type", "rounded"), [("f32", 0.0), ("f16", 2.0**-11), ("bf16", 2.0**-8)])
@pytest.mark.usefixtures("default_model")
def test_every_float_type_of_the_library_is_read(loaded: Loaded, cache_type: str, rounded: float) -> None:
    """A softmax row adds up to 1, and a view of the cache has the numbers that were stored there."""
    found = taken(loaded, ["Kcur", "cache_k_l5 (view)", "kq_soft_max"], Setup(type_k=cache_type))
    stored = found["cache_k_l5 (view)"][-1].reshape(-1)[: 6 * 192]
    computed = found["Kcur-5"][-1].reshape(-1)
    assert np.abs(stored - computed).max() <= rounded * np.abs(computed).max()
    assert np.allclose(found["kq_soft_max-5"][0].sum(-1), 1.0, atol=1e-6)


@pytest.mark.model
def test_looking_changes_no_bit(loaded: Loaded) -> None:
    everything = TensorCapture(["Qcur", "kq", "kq_soft_max", "attn_out", "ffn_swiglu", "l_out", "result_output"])
    with Scorer(loaded.model, Setup(), n_ctx=16, n_threads=1) as plain:
        unseen = plain.logits(TOKENS)
    with Scorer(loaded.model, Setup(), n_ctx=16, n_threads=1, tap=everything) as tapped:
        assert (tapped.logits(TOKENS) == unseen).all()
    [in_graph] = everything.taken()["result_output"]
    assert (in_graph.reshape(unseen.shape) == unseen).all()


@pytest.mark.model
def test_a_tap_holds_the_last_computation_alone(loaded: Loaded) -> None:
    tap = TensorCapture(["result_norm"])
    with Scorer(loaded.model, Setup(n_rows=4), n_ctx=16, n_threads=1, tap=tap) as scorer:
        scorer.logits(TOKENS)
        assert [len(array[0, 0]) for array in tap.taken()["result_norm"]] == [4, 2]
        scorer.logits(TOKENS[:3])
        assert [len(array[0, 0]) for array in tap.taken()["result_norm"]] == [3]


# ── the saved state of a sequence ──────────────────────────────────────────────────────────────────


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
