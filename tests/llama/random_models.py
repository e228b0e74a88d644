"""Small models with random weights, one for each kind of memory: what they say depends on every token before.

The vocabulary is the tiny model's. Those of ordinary memory are Q4_1, whose products are computed row by row: their
logits are the same bits next to any others, as the default model's are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from parity.llama.quantise import FILE_TYPES
from tests.gguf_files import F16, F32, Q4_1, GgufFile, TensorRow, Value
from tests.llama.tiny import TOKENS, vocabulary
from worker.llama.library import open_library

N_EMBD, N_HEAD, N_KV_HEAD, N_FF, N_LAYERS = 64, 2, 1, 64, 2
N_KV = N_EMBD // N_HEAD * N_KV_HEAD
N_INNER, N_STATE, N_CONV, N_RANK = 2 * N_EMBD, 16, 4, 4
WINDOW = 8

Shapes = dict[str, tuple[int, ...]]

_ATTENTION: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "attn_q.weight": (N_EMBD, N_EMBD),
    "attn_k.weight": (N_EMBD, N_KV),
    "attn_v.weight": (N_EMBD, N_KV),
    "attn_output.weight": (N_EMBD, N_EMBD),
    "ffn_gate.weight": (N_EMBD, N_FF),
    "ffn_up.weight": (N_EMBD, N_FF),
    "ffn_down.weight": (N_FF, N_EMBD),
}
_STATE_SPACE: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "ssm_in.weight": (N_EMBD, 2 * N_INNER),
    "ssm_conv1d.weight": (N_CONV, N_INNER),
    "ssm_conv1d.bias": (N_INNER,),
    "ssm_x.weight": (N_INNER, N_RANK + 2 * N_STATE),
    "ssm_dt.weight": (N_RANK, N_INNER),
    "ssm_dt.bias": (N_INNER,),
    "ssm_a": (N_STATE, N_INNER),
    "ssm_d": (N_INNER,),
    "ssm_out.weight": (N_INNER, N_EMBD),
}


@dataclass(frozen=True, eq=False)
class Kind:
    """A family of models: its memory is what matters here."""

    architecture: str
    block: Shapes
    keys: dict[str, Value] = field(default_factory=dict)
    is_row_by_row: bool = True
    first_block: Shapes | None = None
    """The first layer, if it is unlike the others."""
    output_norm: str = "output_norm"

    def __str__(self) -> str:
        return f"{self.architecture} {self.keys.get('attention.sliding_window_pattern', '')}".strip()


PLAIN = Kind("llama", _ATTENTION | {"ffn_norm.weight": (N_EMBD,)})
MROPE = Kind("qwen2vl", PLAIN.block, {"rope.dimension_sections": [4, 6, 6, 0]})
"""A position is three numbers: the saved state says more of each cell."""
SLIDING = Kind(
    "cohere2",
    _ATTENTION,
    {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 2,
        "logit_scale": 1.0,
        "attention.layer_norm_epsilon": 1e-5,
    },
)
"""One layer has a window, the next one none."""
SLIDING_ONLY = Kind("cohere2", _ATTENTION, SLIDING.keys | {"attention.sliding_window_pattern": 4})
"""Both have one: of the two caches, one is without layers."""
GEMMA = Kind(
    "gemma2",
    PLAIN.block | {"post_attention_norm.weight": (N_EMBD,), "post_ffw_norm.weight": (N_EMBD,)},
    {
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention.key_length": N_EMBD // N_HEAD,
        "attention.value_length": N_EMBD // N_HEAD,
    },
)
"""Every second layer has a window, by the architecture and not by a key."""
NAMED_ONLY = Kind(
    "exaone4",
    {
        **{name: dims for name, dims in _ATTENTION.items() if name != "attn_norm.weight"},
        **{f"{name}.weight": (N_EMBD,) for name in ("post_attention_norm", "post_ffw_norm")},
        **{f"{name}.weight": (N_EMBD // N_HEAD,) for name in ("attn_q_norm", "attn_k_norm")},
    },
    {"attention.sliding_window": WINDOW},
)
RECURRENT = Kind(
    "mamba",
    _STATE_SPACE,
    {
        "ssm.conv_kernel": N_CONV,
        "ssm.inner_size": N_INNER,
        "ssm.state_size": N_STATE,
        "ssm.time_step_rank": N_RANK,
    },
    is_row_by_row=False,
)

HYBRID = Kind(
    "lfm2",
    PLAIN.block | {f"attn_{name}_norm.weight": (N_EMBD // N_HEAD,) for name in "qk"},
    {"shortconv.l_cache": N_CONV - 1, "attention.head_count_kv": [0, N_KV_HEAD]},
    first_block={
        **{name: dims for name, dims in PLAIN.block.items() if name.startswith("ffn_") or name == "attn_norm.weight"},
        "shortconv.conv.weight": (N_CONV - 1, N_EMBD),
        "shortconv.in_proj.weight": (N_EMBD, 3 * N_EMBD),
        "shortconv.out_proj.weight": (N_EMBD, N_EMBD),
    },
    output_norm="token_embd_norm",
)
"""A layer with recurrent state, and a layer of attention."""


def write_random(
    path: Path,
    kind: Kind = PLAIN,
    *,
    seed: int = 1,
    tokenizer: Mapping[str, Value] | None = None,
    n_ctx: int = 4096,
    matrix_type: int = Q4_1,
) -> Path:
    """`tokenizer`: the keys of a vocabulary and a template, not the tiny model's. `n_ctx`: the trained length.
    `matrix_type`: Q4_1 or F16, which has other kernels for several rows than for one.
    """
    own = tokenizer or vocabulary()
    tokens = own["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Sequence)
    metadata = _metadata(kind.architecture, _SIZES | kind.keys | {"context_length": n_ctx}, own)
    shapes: Shapes = {"token_embd.weight": (N_EMBD, len(tokens)), f"{kind.output_norm}.weight": (N_EMBD,)}
    for layer in range(N_LAYERS):
        block = kind.first_block if kind.first_block and not layer else kind.block
        shapes |= {f"blk.{layer}.{name}": dims for name, dims in block.items()}
    chance = np.random.default_rng(seed)
    tensors = {name: _stored(_weights(name, dims, chance), kind, matrix_type) for name, dims in shapes.items()}
    return write_tensors(path, metadata, shapes, tensors)


def _metadata(architecture: str, sizes: dict[str, Value], tokenizer: Mapping[str, Value]) -> dict[str, Value]:
    named: dict[str, Value] = {"general.architecture": architecture, "general.name": "Random"}
    return {**named, **{f"{architecture}.{key}": value for key, value in sizes.items()}, **tokenizer}


def write_tensors(
    path: Path, metadata: dict[str, Value], shapes: Shapes, tensors: dict[str, tuple[bytes, int]]
) -> Path:
    """A file of tensors, each with its data and its type."""
    rows = [TensorRow(name, shapes[name], len(data), type_id) for name, (data, type_id) in tensors.items()]
    blobs = [data.ljust(-(-len(data) // 32) * 32, b"\0") for data, _ in tensors.values()]
    header = GgufFile(metadata, rows).header()
    path.write_bytes(header.ljust(-(-len(header) // 32) * 32, b"\0") + b"".join(blobs))
    return path


_SIZES: dict[str, Value] = {
    "block_count": N_LAYERS,
    "embedding_length": N_EMBD,
    "feed_forward_length": N_FF,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_KV_HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def _weights(name: str, dims: tuple[int, ...], chance: np.random.Generator, scale: float = 2.0) -> NDArray[np.float32]:
    """Norms about 1, the decay of a state below 0, all else so that sizes stay as they are; [rows, columns]."""
    values = chance.standard_normal(dims[::-1], np.float32)
    if "norm" in name:
        return 1 + values * np.float32(0.1)
    return -np.exp(values) if name.endswith("ssm_a") else values * np.float32(scale / dims[0] ** 0.5)


def _stored(weights: NDArray[np.float32], kind: Kind, matrix_type: int) -> tuple[bytes, int]:
    """The tensor's data and its type in the file."""
    if weights.ndim == 1 or weights.shape[-1] % 32 or not kind.is_row_by_row:
        return weights.tobytes(), F32
    return (weights.astype("<f2").tobytes(), F16) if matrix_type == F16 else (_q4_1(weights), Q4_1)


def _q4_1(weights: NDArray[np.float32]) -> bytes:
    """Blocks of 32: scale and minimum as f16, then sixteen pairs of 4 bits, a number and the one 16 behind it."""
    blocks = weights.reshape(-1, 32)
    minimum = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - minimum) / 15
    levels = np.rint((blocks - minimum) / scale).astype(np.uint8)
    pairs = levels[:, :16] | levels[:, 16:] << 4
    head = np.concatenate([scale, minimum], axis=1).astype("<f2").view(np.uint8)
    return np.concatenate([head, pairs], axis=1).tobytes()


# ── wide models: their rows are multiples of 256, as K-quants need them; others fall back to other types ─────────────

QUANTISED = {name: ftype for name, ftype in FILE_TYPES.items() if name != "F32"} | {"Q3_K_M": 12, "Q2_K": 10}
"""llama_ftype."""

_WIDE_EMBD, _WIDE_FF, _WIDE_HEADS, _WIDE_KV_HEADS, _HEAD = 256, 512, 4, 2, 64
_WIDE_LAYERS = 4

_BLOCK: Shapes = {
    "attn_norm.weight": (_WIDE_EMBD,),
    "attn_q.weight": (_WIDE_EMBD, _WIDE_HEADS * _HEAD),
    "attn_k.weight": (_WIDE_EMBD, _WIDE_KV_HEADS * _HEAD),
    "attn_v.weight": (_WIDE_EMBD, _WIDE_KV_HEADS * _HEAD),
    "attn_output.weight": (_WIDE_HEADS * _HEAD, _WIDE_EMBD),
    "ffn_norm.weight": (_WIDE_EMBD,),
    "ffn_gate.weight": (_WIDE_EMBD, _WIDE_FF),
    "ffn_up.weight": (_WIDE_EMBD, _WIDE_FF),
    "ffn_down.weight": (_WIDE_FF, _WIDE_EMBD),
}
_GEMMA: Shapes = {
    "attn_q_norm.weight": (_HEAD,),
    "attn_k_norm.weight": (_HEAD,),
    "post_attention_norm.weight": (_WIDE_EMBD,),
    "post_ffw_norm.weight": (_WIDE_EMBD,),
}
_WIDE_SIZES: dict[str, Value] = {
    "block_count": _WIDE_LAYERS,
    "context_length": 4096,
    "embedding_length": _WIDE_EMBD,
    "feed_forward_length": _WIDE_FF,
    "attention.head_count": _WIDE_HEADS,
    "attention.head_count_kv": _WIDE_KV_HEADS,
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
    block, keys = WIDE[family]
    shapes: Shapes = {"token_embd.weight": (_WIDE_EMBD, len(TOKENS)), "output_norm.weight": (_WIDE_EMBD,)}
    for layer in range(_WIDE_LAYERS):
        shapes |= {f"blk.{layer}.{tensor}": dims for tensor, dims in block.items()}
    chance = np.random.default_rng(1)
    tensors = {tensor: (_weights(tensor, dims, chance, 1.0).tobytes(), F32) for tensor, dims in shapes.items()}
    write_tensors(source, _metadata(family, _WIDE_SIZES | keys, vocabulary()), shapes, tensors)
    open_library()
    params = capi.llama_model_quantize_default_params()
    params.ftype, params.nthread = QUANTISED[name], 1
    assert capi.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0
    source.unlink()
    return path
