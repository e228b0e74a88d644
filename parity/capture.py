"""Every point of the network as llama.cpp computes it: one text, one decode, the tensors of its graph.

The library's names of tensors are facts of its pinned version; tests/parity holds them.
"""

import worker.llama  # isort: skip  # noqa: F401 - before numpy, which brings a C++ library that some builds die of
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from parity.llama.scoring import Scorer, Setup
from parity.llama.tensor_capture import KvState, TensorCapture
from parity.naming import to_checkpoint_order
from parity.points import Activations, Name, Point
from worker.llama.model import Model

Float32s = NDArray[np.float32]
Taken = dict[str, list[Float32s]]

_IN_A_LAYER: dict[Name, str] = {
    "attn_norm": "attn_norm",
    "attn_heads": "kqv_out",
    "attn_out": "attn_out",
    "attn_residual": "ffn_inp",
    "ffn_norm": "ffn_norm",
    "swiglu": "ffn_swiglu",
    "ffn_out": "ffn_out",
    "block": "l_out",
}
"""Points that are [n_tokens, features] in the graph already, and the names of their tensors without the layer."""

_EMBEDDING, _NORM, _LOGITS = "embd", "result_norm", "result_output"
_Q, _K, _V = "Qcur", "Kcur", "Vcur"
_SCORES, _PROBS = "kq", "kq_soft_max"

STEMS = (*_IN_A_LAYER.values(), _EMBEDDING, _NORM, _LOGITS, _Q, _K, _V, _SCORES, _PROBS)
"""The tensors that a TensorCapture copies."""


def capture(model: Model, tokens: Sequence[int], *, n_threads: int, setup: Setup) -> Activations:
    """All points of a model of the llama architecture over `tokens`, computed at once, float32.

    Raises: ModelLoadFailed, InsufficientMemory; ValueError for a graph without these points (another architecture, or
    flash attention, which has no scores) and for tokens outside the vocabulary.
    """
    tap = TensorCapture(STEMS)
    whole = replace(setup, n_rows=len(tokens))
    with Scorer(model, whole, n_ctx=len(tokens), n_threads=n_threads, tap=tap) as scorer:
        scorer.logits(tokens)
        return arranged(tap.taken(), scorer.kv(), len(tokens))


def arranged(taken: Taken, kv: KvState, n_tokens: int) -> Activations:
    """The tensors under their points. Raises: ValueError for a tensor that is missing."""
    n_layers = len(kv.k)
    found = {
        Point.of("embedding", -1): _rows(_last(taken, _EMBEDDING), n_tokens),
        Point.of("final_norm", n_layers): _rows(_last(taken, _NORM), n_tokens),
        Point.of("logits", n_layers): _rows(_last(taken, _LOGITS), n_tokens),
    }
    for layer in range(n_layers):
        named = _rotated(taken, kv, layer, n_tokens) | _attention(taken, layer, n_tokens)
        named |= {name: _rows(_last(taken, f"{stem}-{layer}"), n_tokens) for name, stem in _IN_A_LAYER.items()}
        found |= {Point.of(name, layer): values for name, values in named.items()}
    return dict(sorted(found.items()))


def _rotated(taken: Taken, kv: KvState, layer: int, n_tokens: int) -> dict[Name, Float32s]:
    """Q, K and V, before and after RoPE, in the order of the checkpoint.

    The graph has three tensors of one name for Q and for K: projected, cut into heads, rotated; V has the first two.
    """
    q, k = _all(taken, f"{_Q}-{layer}", 2), _all(taken, f"{_K}-{layer}", 2)
    v = _rows(_last(taken, f"{_V}-{layer}"), n_tokens)
    n_heads, n_kv_heads = q[-1].shape[2], k[-1].shape[2]
    return {
        "q_proj": _in_order(_rows(q[-2], n_tokens), n_heads),
        "k_proj": _in_order(_rows(k[-2], n_tokens), n_kv_heads),
        "v_proj": v,
        "q_rope": _in_order(_rows(q[-1], n_tokens), n_heads),
        "k_rope": _in_order(_rows(k[-1], n_tokens), n_kv_heads),
        "k_cache": _in_order(kv.k[layer], n_kv_heads),
        "v_cache": kv.v[layer],
    }


def _attention(taken: Taken, layer: int, n_tokens: int) -> dict[Name, Float32s]:
    """Scores and probabilities over the cells that the text fills.

    The library scales and masks inside its softmax: `kq` is the bare product of Q and K.
    """
    head_dim = _last(taken, f"{_Q}-{layer}").shape[3]
    products = _last(taken, f"{_SCORES}-{layer}")[0, :, :, :n_tokens]
    probs = _last(taken, f"{_PROBS}-{layer}")[0, :, :, :n_tokens]
    return {"scores": np.tril(products / np.float32(head_dim**0.5)), "probs": probs}


def _in_order(values: Float32s, n_heads: int) -> Float32s:
    return to_checkpoint_order(values, n_heads, axis=1)


def _rows(values: Float32s, n_tokens: int) -> Float32s:
    return values.reshape(n_tokens, -1)


def _last(taken: Taken, name: str) -> Float32s:
    return _all(taken, name, 1)[-1]


def _all(taken: Taken, name: str, n_min: int) -> list[Float32s]:
    found = taken.get(name, [])
    if len(found) < n_min:
        raise ValueError(
            f"the graph has {len(found)} tensors {name}, not {n_min}:"
            " layer by layer only the llama architecture without flash attention can be compared"
        )
    return found
