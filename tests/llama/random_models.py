"""Small models with random weights, one for each kind of memory: what they say depends on every token before.

The vocabulary is the tiny model's. Those of ordinary memory are Q4_1, whose products are computed row by row: their
logits are the same bits next to any others, as the default model's are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from parity.llama.quantise import FILE_TYPES
from tests.gguf_files import F16, F32, Q4_1, GgufFile, TensorRow, Value
from tests.llama.tiny import TOKENS, vocabulary
from worker.llama.library import open_library

Shapes = dict[str, tuple[int, ...]]

_TOLD: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""Kinds and wide models, each with the tensors of a layer, and the sizes of both."""
N_LAYERS, N_EMBD, WINDOW = 2, 64, 8


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


def _shapes(told: dict[str, list[int]]) -> Shapes:
    return {name: tuple(dims) for name, dims in told.items()}


def _kind(name: str) -> Kind:
    """`about` is for readers."""
    told: dict[str, Any] = {key: value for key, value in _TOLD["kinds"][name].items() if key != "about"}
    shapes: dict[str, Any] = {key: _shapes(value) for key, value in told.items() if key.endswith("block")}
    return Kind(**told | shapes)


PLAIN, MROPE, SLIDING, SLIDING_ONLY = map(_kind, ("PLAIN", "MROPE", "SLIDING", "SLIDING_ONLY"))
GEMMA, NAMED_ONLY, RECURRENT, HYBRID = map(_kind, ("GEMMA", "NAMED_ONLY", "RECURRENT", "HYBRID"))


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
    metadata = _metadata(kind.architecture, _TOLD["sizes"] | kind.keys | {"context_length": n_ctx}, own)
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

WIDE: dict[str, tuple[Shapes, dict[str, Value]]] = {
    family: (_shapes(told["block"]), told["keys"]) for family, told in _TOLD["wide"].items()
}
"""Architectures; gemma3 has sliding windows."""
_WIDE_LAYERS, _WIDE_EMBD = 4, 256


def write_wide(path: Path, family: str, name: str) -> Path:
    """A model of one of the types in QUANTISED."""
    source = path.with_suffix(".f32")
    block, keys = WIDE[family]
    shapes: Shapes = {"token_embd.weight": (_WIDE_EMBD, len(TOKENS)), "output_norm.weight": (_WIDE_EMBD,)}
    for layer in range(_WIDE_LAYERS):
        shapes |= {f"blk.{layer}.{tensor}": dims for tensor, dims in block.items()}
    chance = np.random.default_rng(1)
    tensors = {tensor: (_weights(tensor, dims, chance, 1.0).tobytes(), F32) for tensor, dims in shapes.items()}
    write_tensors(source, _metadata(family, _TOLD["wide_sizes"] | keys, vocabulary()), shapes, tensors)
    open_library()
    params = capi.llama_model_quantize_default_params()
    params.ftype, params.nthread = QUANTISED[name], 1
    assert capi.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0
    source.unlink()
    return path
