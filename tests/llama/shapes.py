"""Models of known shapes, as large as you like: a header and nothing behind it. The library can plan with them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.gguf_files import F32, Q8_0, GgufFile, TensorRow, Typed, Value
from tests.llama.tiny import BOS, BYTE, CONTROL, END, NORMAL, UNKNOWN
from worker.models.upstream.ggml_types import TENSOR_TYPES


@dataclass(frozen=True)
class Shape:
    name: str
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    has_output: bool = True
    architecture: str = "llama"
    head_length: int = 0
    """0: n_embd / n_head."""
    n_expert: int = 0
    n_layers: int = 3

    @property
    def n_head_dim(self) -> int:
        return self.head_length or self.n_embd // self.n_head

    def __str__(self) -> str:
        return self.name


TINY_LLAMA = Shape("tinyllama-1.1b", 2048, 5632, 32, 4, 32_000)
MIXTURE = Shape("qwen3-30b-a3b", 2048, 768, 32, 4, 151_936, architecture="qwen3moe", head_length=128, n_expert=128)


def all_q8_0(_: str) -> int:
    return Q8_0


def write_shape(path: Path, shape: Shape, type_of: Callable[[str], int] = all_q8_0) -> Path:
    """A model without its weights' bytes: the file is as long as they would be, and empty on the disk. Read, they are
    zeros. `type_of`: the type of the matrix of that name; all else is F32.
    """
    rows = [_row(name, dims, type_of) for name, dims in _tensors(shape).items()]
    file = GgufFile(_metadata(shape), rows)
    header = file.header()
    with path.open("wb") as target:
        target.write(header)
        target.truncate(len(header) + sum(row.n_bytes + file.alignment for row in rows))
    return path


def _metadata(shape: Shape) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "block_count": shape.n_layers,
        "context_length": 131_072,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if shape.head_length:
        keys |= {"attention.key_length": shape.head_length, "attention.value_length": shape.head_length}
    if shape.n_expert:
        keys |= {"expert_count": shape.n_expert, "expert_used_count": 8, "expert_feed_forward_length": shape.n_ff}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    n_words = shape.n_vocab - 259
    return {
        "general.architecture": shape.architecture,
        "general.name": shape.name,
        **{f"{shape.architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *bytes_, *(f"t{number}" for number in range(n_words))],
        "tokenizer.ggml.scores": Typed("f32", [0.0] * shape.n_vocab),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * n_words],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
    }


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    n_embd, n_q, n_kv = shape.n_embd, shape.n_head * shape.n_head_dim, shape.n_head_kv * shape.n_head_dim
    found: dict[str, tuple[int, ...]] = {"token_embd": (n_embd, shape.n_vocab), "output_norm": (n_embd,)}
    if shape.has_output:
        found["output"] = (n_embd, shape.n_vocab)
    norms = {"attn_q_norm": (shape.n_head_dim,), "attn_k_norm": (shape.n_head_dim,)} if shape.head_length else {}
    square = {"attn_q": (n_embd, n_q), "attn_k": (n_embd, n_kv), "attn_v": (n_embd, n_kv), "attn_output": (n_q, n_embd)}
    block: dict[str, tuple[int, ...]] = {"attn_norm": (n_embd,), "ffn_norm": (n_embd,), **square, **norms}
    block |= _feed_forward(shape)
    for layer in range(shape.n_layers):
        found |= {f"blk.{layer}.{name}": dims for name, dims in block.items()}
    return found


def _feed_forward(shape: Shape) -> dict[str, tuple[int, ...]]:
    n_embd, n_ff, n_expert = shape.n_embd, shape.n_ff, shape.n_expert
    if not n_expert:
        return {"ffn_gate": (n_embd, n_ff), "ffn_up": (n_embd, n_ff), "ffn_down": (n_ff, n_embd)}
    wide = (n_embd, n_ff, n_expert)
    experts = {"ffn_gate_exps": wide, "ffn_up_exps": wide, "ffn_down_exps": (n_ff, n_embd, n_expert)}
    return {"ffn_gate_inp": (n_embd, n_expert), **experts}


def _row(name: str, dims: tuple[int, ...], type_of: Callable[[str], int]) -> TensorRow:
    type_id = F32 if len(dims) == 1 else type_of(name)
    return TensorRow(f"{name}.weight", dims, TENSOR_TYPES[type_id].n_bytes(math.prod(dims)), type_id)
