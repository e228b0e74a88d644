"""A small GGUF of the llama architecture with weights of any type, and its checkpoint's tensors in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from parity.f32_copy import open_gguf, rewrite, shape_of
from tests.gguf_files import Value, tiny_model

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, N_FF, N_VOCAB = 2, 4, 2, 16, 256, 40
N_EMBD = N_HEADS * HEAD_DIM
SHAPES = {
    "model.embed_tokens.weight": (N_VOCAB, N_EMBD),
    "model.norm.weight": (N_EMBD,),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(N_LAYERS)
        for name, shape in {
            "input_layernorm": (N_EMBD,),
            "self_attn.q_proj": (N_HEADS * HEAD_DIM, N_EMBD),
            "self_attn.k_proj": (N_KV_HEADS * HEAD_DIM, N_EMBD),
            "self_attn.v_proj": (N_KV_HEADS * HEAD_DIM, N_EMBD),
            "self_attn.o_proj": (N_EMBD, N_HEADS * HEAD_DIM),
            "post_attention_layernorm": (N_EMBD,),
            "mlp.gate_proj": (N_FF, N_EMBD),
            "mlp.up_proj": (N_FF, N_EMBD),
            "mlp.down_proj": (N_EMBD, N_FF),
        }.items()
    },
}
"""The shapes of a checkpoint with tied embeddings."""


@dataclass
class InMemory:
    """A checkpoint's tensors. `asked`: which were read, in that order."""

    tensors: dict[str, NDArray[np.float32]]
    asked: list[str]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def read(self, name: str) -> NDArray[np.float32]:
        self.asked.append(name)
        return self.tensors[name].copy()


def random_checkpoint() -> InMemory:
    """Normally distributed weights; the same ones every time."""
    random = np.random.default_rng(20)
    return InMemory({name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}, [])


def write_gguf(path: Path, checkpoint: InMemory, kind: str = "F32", more: Mapping[str, int] | None = None) -> Path:
    """Write `checkpoint` as a converter does: matrices of type `kind`, vectors F32, rows of Q and K interleaved.

    `more` are other tensors of ones, with their lengths.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_name("Small")
    writer.add_file_type(0)
    writer.add_context_length(64)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{token}>" for token in range(N_VOCAB)])
    writer.add_token_merges(["< 0"])
    for name, values in checkpoint.tensors.items():
        as_stored = GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        writer.add_tensor(gguf_name(name), quantize(interleaved(name, values), as_stored), raw_dtype=as_stored)
    for name, length in (more or {}).items():
        writer.add_tensor(name, np.ones(length, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_gemma(path: Path) -> Path:
    """The header of another architecture."""
    keys = {"block_count": 2, "context_length": 512, "embedding_length": 32, "attention.head_count": 4}
    changes: dict[str, Value | None] = {f"gemma.{key}": value for key, value in keys.items()}
    return tiny_model({"general.architecture": "gemma", **changes}).write(path)


def interleaved(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows are taken one by one, so that a mistake of naming.py is not made twice."""
    if "q_proj" not in name and "k_proj" not in name:
        return values
    rows = []
    for head in range(len(values) // HEAD_DIM):
        for i in range(HEAD_DIM // 2):
            rows += [values[head * HEAD_DIM + i], values[head * HEAD_DIM + HEAD_DIM // 2 + i]]
    return np.stack(rows)


def gguf_name(name: str) -> str:
    """The names are written by hand, for the same reason."""
    if not name.startswith("model.layers."):
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }[name]
    _, _, layer, part = name.split(".", 3)
    short = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }[part.removesuffix(".weight")]
    return f"blk.{layer}.{short}.weight"


def stored(path: Path) -> dict[str, ReaderTensor]:
    """The tensors of a file by their names, as they are stored."""
    return {tensor.name: tensor for tensor in open_gguf(path).tensors}


def dequantised(tensor: ReaderTensor) -> NDArray[np.float32]:
    """All of a tensor, numpy shape; a copy that can be written to."""
    values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type).reshape(shape_of(tensor))
    return values.copy()


def read_tensor(path: Path, name: str) -> NDArray[np.float32]:
    return dequantised(stored(path)[name])


def with_tensor(source: Path, target: Path, name: str, values: NDArray[np.float32]) -> Path:
    """A copy of `source` in which one tensor has other values."""
    rewrite(source, target, tensors={name: lambda: values})
    return target
