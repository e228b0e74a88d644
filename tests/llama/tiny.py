"""A model llama.cpp really loads, in milliseconds: one block, a SentencePiece vocabulary, weights all alike."""

import math
import struct
from pathlib import Path

from tests.gguf_files import GgufFile, TensorRow, Typed, Value

UNKNOWN, NORMAL, CONTROL, BYTE = 2, 1, 3, 6
"""llama_token_type (llama.h)."""

LONG_PIECE = "x" * 300
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", LONG_PIECE]
TYPES = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 3]
BOS, END = 1, 2

N_EMBD, N_HEAD, N_FF = 32, 4, 32


def write_tiny(
    path: Path,
    *,
    has_bos: bool = True,
    has_end: bool = True,
    weight: float = 0.0,
    token_of_nan: int | None = None,
    **changes: Value,
) -> Path:
    """`weight`: what every weight is. With 0 all logits are 0, with NaN none is a number. `token_of_nan`: its logit
    alone is none. `changes`: llama.* keys.

    Without an end the vocabulary is RWKV's, to which llama.cpp adds no end token of its own, and has no "</s>".
    """
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": N_EMBD,
        "llama.feed_forward_length": N_FF,
        "llama.attention.head_count": N_HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary(has_bos=has_bos, has_end=has_end),
        **{f"llama.{key}": value for key, value in changes.items()},
    }
    shapes = {
        "token_embd": (N_EMBD, len(TOKENS)),
        "output_norm": (N_EMBD,),
        "blk.0.attn_norm": (N_EMBD,),
        "blk.0.attn_q": (N_EMBD, N_EMBD),
        "blk.0.attn_k": (N_EMBD, N_EMBD),
        "blk.0.attn_v": (N_EMBD, N_EMBD),
        "blk.0.attn_output": (N_EMBD, N_EMBD),
        "blk.0.ffn_norm": (N_EMBD,),
        "blk.0.ffn_gate": (N_EMBD, N_FF),
        "blk.0.ffn_up": (N_EMBD, N_FF),
        "blk.0.ffn_down": (N_FF, N_EMBD),
    }
    rows = [TensorRow(f"{name}.weight", dims, 4 * _product(dims)) for name, dims in shapes.items()]
    file = GgufFile(metadata, rows)
    n_weights = sum(row.n_bytes for row in rows) // 4
    weights = [weight] * n_weights
    if token_of_nan is not None:
        # The embedding comes first, and is the output's matrix too.
        weights[token_of_nan * N_EMBD : (token_of_nan + 1) * N_EMBD] = [math.nan] * N_EMBD
    path.write_bytes(file.to_bytes()[: -4 * n_weights] + struct.pack(f"<{n_weights}f", *weights))
    return path


def vocabulary(*, has_bos: bool = True, has_end: bool = True) -> dict[str, Value]:
    """The tokenizer's keys."""
    return {
        "tokenizer.ggml.model": "llama" if has_end else "rwkv",
        "tokenizer.ggml.tokens": [token if has_end or token != "</s>" else "<2>" for token in TOKENS],
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(TOKENS)),
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.bos_token_id": BOS,
        **({"tokenizer.ggml.eos_token_id": END} if has_end else {}),
        "tokenizer.ggml.add_bos_token": has_bos,
    }


def _product(dims: tuple[int, ...]) -> int:
    return dims[0] if len(dims) == 1 else dims[0] * dims[1]
