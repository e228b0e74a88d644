"""Small models with random weights, one for each kind of memory: what they say depends on every token before.

The vocabulary is the tiny model's. Those of ordinary memory are Q4_1, whose products are computed row by row: their
logits are the same bits next to any others, as the default model's are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.gguf_files import F16, F32, Q4_1, GgufFile, TensorRow, Value
from tests.llama.tiny import vocabulary

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
    metadata: dict[str, Value] = {
        "general.architecture": kind.architecture,
        "general.name": "Random",
        **{
            f"{kind.architecture}.{key}": value
            for key, value in (_SIZES | kind.keys | {"context_length": n_ctx}).items()
        },
        **own,
    }
    shapes: Shapes = {"token_embd.weight": (N_EMBD, len(tokens)), f"{kind.output_norm}.weight": (N_EMBD,)}
    for layer in range(N_LAYERS):
        block = kind.first_block if kind.first_block and not layer else kind.block
        shapes |= {f"blk.{layer}.{name}": dims for name, dims in block.items()}
    chance = np.random.default_rng(seed)
    tensors = {name: _stored(_weights(name, dims, chance), kind, matrix_type) for name, dims in shapes.items()}
    return write_tensors(path, metadata, shapes, tensors)


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


def _weights(name: str, dims: tuple[int, ...], chance: np.random.Generator) -> NDArray[np.float32]:
    """Norms about 1, the decay of a state below 0, all else so that sizes stay as they are; [rows, columns]."""
    values = chance.standard_normal(dims[::-1], np.float32)
    if "norm" in name:
        return 1 + values * np.float32(0.1)
    return -np.exp(values) if name.endswith("ssm_a") else values * np.float32(2 / dims[0] ** 0.5)


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
