"""Small models whose rows are multiples of 256, as K-quants need them: those of other widths fall back to other types.

Random weights, four layers, 262 tokens, some megabytes; quantised by the library itself.
"""

from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as capi

from parity.llama.quantise import FILE_TYPES
from tests.gguf_files import F32, Value
from tests.llama.random_models import Shapes, write_tensors
from tests.llama.tiny import TOKENS, vocabulary
from worker.llama.library import open_library

QUANTISED = {name: ftype for name, ftype in FILE_TYPES.items() if name != "F32"} | {"Q3_K_M": 12, "Q2_K": 10}
"""llama_ftype."""

_N_EMBD, _N_FF, _N_HEADS, _N_KV_HEADS, _HEAD = 256, 512, 4, 2, 64
_N_LAYERS = 4

_BLOCK: Shapes = {
    "attn_norm.weight": (_N_EMBD,),
    "attn_q.weight": (_N_EMBD, _N_HEADS * _HEAD),
    "attn_k.weight": (_N_EMBD, _N_KV_HEADS * _HEAD),
    "attn_v.weight": (_N_EMBD, _N_KV_HEADS * _HEAD),
    "attn_output.weight": (_N_HEADS * _HEAD, _N_EMBD),
    "ffn_norm.weight": (_N_EMBD,),
    "ffn_gate.weight": (_N_EMBD, _N_FF),
    "ffn_up.weight": (_N_EMBD, _N_FF),
    "ffn_down.weight": (_N_FF, _N_EMBD),
}
_GEMMA: Shapes = {
    "attn_q_norm.weight": (_HEAD,),
    "attn_k_norm.weight": (_HEAD,),
    "post_attention_norm.weight": (_N_EMBD,),
    "post_ffw_norm.weight": (_N_EMBD,),
}
_SIZES: dict[str, Value] = {
    "block_count": _N_LAYERS,
    "context_length": 4096,
    "embedding_length": _N_EMBD,
    "feed_forward_length": _N_FF,
    "attention.head_count": _N_HEADS,
    "attention.head_count_kv": _N_KV_HEADS,
    "attention.key_length": _HEAD,
    "attention.value_length": _HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
WIDE: dict[str, tuple[Shapes, dict[str, Value]]] = {
    "llama": (_BLOCK, {}),
    "gemma3": (_BLOCK | _GEMMA, {"attention.sliding_window": 32}),
}
"""Architectures; gemma3 has sliding windows."""


def write_wide(path: Path, family: str, name: str) -> Path:
    """A model of one of the types in QUANTISED."""
    source = path.with_suffix(".f32")
    _write_f32(source, family)
    open_library()
    params = capi.llama_model_quantize_default_params()
    params.ftype, params.nthread = QUANTISED[name], 1
    assert capi.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0
    source.unlink()
    return path


def _write_f32(path: Path, family: str) -> None:
    block, keys = WIDE[family]
    metadata: dict[str, Value] = {
        "general.architecture": family,
        "general.name": "Wide",
        **{f"{family}.{key}": value for key, value in (_SIZES | keys).items()},
        **vocabulary(),
    }
    shapes: Shapes = {"token_embd.weight": (_N_EMBD, len(TOKENS)), "output_norm.weight": (_N_EMBD,)}
    for layer in range(_N_LAYERS):
        shapes |= {f"blk.{layer}.{name}": dims for name, dims in block.items()}
    chance = np.random.default_rng(1)
    tensors = {}
    for name, dims in shapes.items():
        values = chance.standard_normal(dims[::-1], np.float32)
        weights = 1 + values * np.float32(0.1) if "norm" in name else values * np.float32(dims[0] ** -0.5)
        tensors[name] = (weights.tobytes(), F32)
    write_tensors(path, metadata, shapes, tensors)
