"""A model llama.cpp really loads, in milliseconds: one block, a SentencePiece vocabulary, weights all alike."""

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gguf_files import F16, F32, GgufFile, TensorRow, Typed, Value

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
    more: Mapping[str, tuple[int, ...]] | None = None,
    halves: tuple[str, ...] = (),
    alignment: int = 32,
    characters: str = "",
    chat_template: str | None = None,
    own_vocabulary: Mapping[str, Value] | None = None,
    **changes: Value,
) -> Path:
    """`weight`: what every weight is. With 0 all logits are 0, with NaN none is a number. `token_of_nan`: its logit
    alone is none. `more`: further tensors. `halves`: which are F16; all others are F32. `alignment`: of the
    tensors in the file, 8 at least. `characters`: each becomes a token, after all others. `own_vocabulary`: the
    tokenizer's keys, instead of these. `changes`: llama.* keys.

    Without an end the vocabulary is RWKV's, to which llama.cpp adds no end token of its own, and has no "</s>".
    """
    tokenizer = own_vocabulary or vocabulary(has_bos=has_bos, has_end=has_end, characters=characters)
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Sequence)
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": N_EMBD,
        "llama.feed_forward_length": N_FF,
        "llama.attention.head_count": N_HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer,
        **{f"llama.{key}": value for key, value in changes.items()},
        **({"general.alignment": alignment} if alignment != 32 else {}),
        **({"tokenizer.chat_template": chat_template} if chat_template is not None else {}),
    }
    square = ("attn_q", "attn_k", "attn_v", "attn_output")
    names = {
        "token_embd": (N_EMBD, len(tokens)),
        "output_norm": (N_EMBD,),
        "blk.0.attn_norm": (N_EMBD,),
        **{f"blk.0.{name}": (N_EMBD, N_EMBD) for name in square},
        "blk.0.ffn_norm": (N_EMBD,),
        **{f"blk.0.ffn_{name}": (N_EMBD, N_FF) for name in ("gate", "up", "down")},
    }
    shapes = {**{f"{name}.weight": dims for name, dims in names.items()}, **(more or {})}
    types = {name: F16 if name in halves else F32 for name in shapes}
    rows = [TensorRow(name, dims, _n_bytes(dims, types[name]), types[name]) for name, dims in shapes.items()]
    data = [_weights(row, weight) for row in rows]
    if token_of_nan is not None:
        # The embedding is the output's matrix too.
        floats = [weight] * math.prod(rows[0].dims)
        floats[token_of_nan * N_EMBD : (token_of_nan + 1) * N_EMBD] = [math.nan] * N_EMBD
        data[0] = struct.pack(f"<{len(floats)}f", *floats)
    header = GgufFile(metadata, rows, alignment=alignment).header()
    path.write_bytes(b"".join(part.ljust(-(-len(part) // alignment) * alignment, b"\0") for part in (header, *data)))
    return path


def vocabulary(*, has_bos: bool = True, has_end: bool = True, characters: str = "") -> dict[str, Value]:
    """The tokenizer's keys."""
    tokens = [*(token if has_end or token != "</s>" else "<2>" for token in TOKENS), *characters]
    return {
        "tokenizer.ggml.model": "llama" if has_end else "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(tokens)),
        "tokenizer.ggml.token_type": [*TYPES, *[NORMAL] * len(characters)],
        "tokenizer.ggml.bos_token_id": BOS,
        **({"tokenizer.ggml.eos_token_id": END} if has_end else {}),
        "tokenizer.ggml.add_bos_token": has_bos,
    }


def _n_bytes(dims: tuple[int, ...], type_id: int) -> int:
    return math.prod(dims) * (2 if type_id == F16 else 4)


def _weights(row: TensorRow, weight: float) -> bytes:
    return struct.pack("<e" if row.type_id == F16 else "<f", weight) * math.prod(row.dims)
