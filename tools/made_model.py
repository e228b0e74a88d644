"""Models of the sizes that people run, with random weights: their speed is a real model's, their words are nonsense.

Written tensor by tensor, so that little memory is needed, and from nothing but this package: no download. All matrices
are of one type, norms are F32.
"""

import os
import string as characters
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tests.gguf_files import F32, GgufFile, TensorRow, Typed, Value
from tools.bench.prompts import common_words

Q4_0, Q4_1, Q8_0, Q4_K = 2, 3, 8, 12
"""ggml_type in ggml.h."""
BLOCK_WEIGHTS, BLOCK_BYTES = 256, 144
"""block_q4_K in ggml-common.h: two f16, 12 bytes of scales and minima in 6 bits, 128 bytes of weights in 4 bits."""
BLOCKS = {F32: (1, 4), Q4_K: (BLOCK_WEIGHTS, BLOCK_BYTES), Q4_0: (32, 18), Q4_1: (32, 20), Q8_0: (32, 34)}
"""The weights of a block of each type, and its bytes: block_q4_0 has one f16 and 16 bytes of weights in 4 bits,
block_q4_1 two f16 and as many, block_q8_0 one f16 and a byte for each weight."""
NAMES = {F32: "F32", Q4_K: "Q4_K", Q4_0: "Q4_0", Q4_1: "Q4_1", Q8_0: "Q8_0"}
_SCALE = 16
_SCALES = bytes([_SCALE | 1 << 6] * 8 + [0] * 4)
"""Eight scales and eight minima, all of them _SCALE. Source: get_scale_min_k4 in ggml-quants.c."""
_MIDDLE, _LEVEL_SPREAD = 7.5, 4.61
"""Statistics of 4 random bits: their mean, and the root of their variance."""
_MIN_LEVEL, _ZERO_LEVEL, _ODD_LEVEL_SPREAD = 0, 8, 4.18
"""The level of Q4_0 with the largest distance from 0, that of 0, and the root of the variance if the one is made the
other."""
_MIN_BYTE = 0x80
"""The signed byte with the largest distance from 0."""
_BYTE_SPREAD = 73.5
"""The root of the variance of a signed byte by chance."""
_BLOCKS_AT_ONCE = 2**17

_UNKNOWN, _NORMAL, _CONTROL, _BYTE = 2, 1, 3, 6
"""llama_token_type in llama.h."""
_SPACE = "▁"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama's sizes."""

    name: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int = 32_000
    is_tied: bool = False
    """True if the matrix of the token embeddings is also the output's."""
    n_ctx_train: int = 4096
    type_id: int = Q4_K

    @property
    def file_name(self) -> str:
        return f"random-{self.name}.{NAMES[self.type_id]}.gguf"

    def tensors(self) -> list[TensorRow]:
        """The tensors in the order of the file."""
        n_kv = self.n_embd // self.n_head * self.n_head_kv
        matrix = partial(_matrix, self.type_id)
        rows = [matrix("token_embd", self.n_embd, self.n_vocab)]
        for layer in range(self.n_layers):
            at = f"blk.{layer}."
            rows += [
                _norm(f"{at}attn_norm", self.n_embd),
                matrix(f"{at}attn_q", self.n_embd, self.n_embd),
                matrix(f"{at}attn_k", self.n_embd, n_kv),
                matrix(f"{at}attn_v", self.n_embd, n_kv),
                matrix(f"{at}attn_output", self.n_embd, self.n_embd),
                _norm(f"{at}ffn_norm", self.n_embd),
                matrix(f"{at}ffn_gate", self.n_embd, self.n_ff),
                matrix(f"{at}ffn_up", self.n_embd, self.n_ff),
                matrix(f"{at}ffn_down", self.n_ff, self.n_embd),
            ]
        rows.append(_norm("output_norm", self.n_embd))
        return rows if self.is_tied else [*rows, matrix("output", self.n_embd, self.n_vocab)]


SHAPES = {
    name: Shape(name=name, **sizes)
    for name, sizes in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}

Floats = Callable[[TensorRow, np.random.Generator], NDArray[np.floating]]


def ones(tensor: TensorRow, _: np.random.Generator) -> NDArray[np.floating]:
    return np.ones(tensor.dims, np.float32)


def made_model(folder: Path, shape: Shape, *, seed: int = 1) -> Path:
    """The shape's file in `folder`, written unless it is there whole: 3.8 GB for Llama-2-7B, 4.1 GB for Mistral-7B.

    Raises: OSError.
    """
    return write_model(folder / shape.file_name, _metadata(shape), shape.tensors(), seed=seed)


def write_model(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[TensorRow],
    *,
    seed: int,
    floats: Floats = ones,
) -> Path:
    """A file of random weights, written unless it is there whole. `floats`: the numbers of a tensor that is F32.

    Raises: OSError.
    """
    header = GgufFile(metadata, tensors).header()
    header += bytes(-len(header) % 32)
    if path.is_file() and path.stat().st_size == len(header) + sum(map(_padded_bytes, tensors)):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".new")
    try:
        with staged.open("wb") as file:
            file.write(header)
            _write_tensors(file, tensors, np.random.default_rng(seed), floats)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return path


def _write_tensors(file: BinaryIO, tensors: Sequence[TensorRow], chance: np.random.Generator, floats: Floats) -> None:
    for tensor in tensors:
        for piece in _data(tensor, chance, floats):
            file.write(piece)
        file.write(bytes(-tensor.n_bytes % 32))
    file.flush()
    os.fsync(file.fileno())


def _data(tensor: TensorRow, chance: np.random.Generator, floats: Floats) -> Iterator[bytes]:
    """Matrices lie about 0, such that their products stay as large as what they are applied to."""
    if tensor.type_id == F32:
        yield floats(tensor, chance).astype(np.float32).tobytes()
        return
    _, block_bytes = BLOCKS[tensor.type_id]
    n_blocks = tensor.n_bytes // block_bytes
    for start in range(0, n_blocks, _BLOCKS_AT_ONCE):
        head = _head(tensor.type_id, 1 / sqrt(tensor.dims[0]))
        blocks = _blocks(min(_BLOCKS_AT_ONCE, n_blocks - start), block_bytes, head, chance)
        _centre(tensor.type_id, blocks[:, len(head) :])
        yield blocks.tobytes()


def _centre(type_id: int, weights: NDArray[np.uint8]) -> None:
    """Make the one level that has no counterpart above 0 a 0, where a type has such a level."""
    if type_id == Q8_0:
        weights[weights == _MIN_BYTE] = 0
    elif type_id == Q4_0:
        weights[weights & 0xF == _MIN_LEVEL] |= _ZERO_LEVEL
        weights[weights >> 4 == _MIN_LEVEL] |= _ZERO_LEVEL << 4


def _head(type_id: int, spread: float) -> bytes:
    """The beginning of each block, such that weights lie about 0, `spread` the root of their variance."""
    if type_id == Q8_0:
        return np.array([spread / _BYTE_SPREAD], "<f2").tobytes()
    if type_id == Q4_0:
        return np.array([spread / _ODD_LEVEL_SPREAD], "<f2").tobytes()
    step = spread / _LEVEL_SPREAD
    if type_id == Q4_1:
        return np.array([step, -_MIDDLE * step], "<f2").tobytes()
    return np.array([step / _SCALE, _MIDDLE * step / _SCALE], "<f2").tobytes() + _SCALES


def _blocks(n_blocks: int, block_bytes: int, head: bytes, chance: np.random.Generator) -> NDArray[np.uint8]:
    """uint8[n_blocks, block_bytes]: each begins with `head`, the rest is chance."""
    blocks = np.empty((n_blocks, block_bytes), np.uint8)
    blocks[:, : len(head)] = np.frombuffer(head, np.uint8)
    blocks[:, len(head) :] = chance.integers(0, 256, (n_blocks, block_bytes - len(head)), np.uint8)
    return blocks


def _padded_bytes(tensor: TensorRow) -> int:
    return tensor.n_bytes + -tensor.n_bytes % 32


def _norm(name: str, n: int) -> TensorRow:
    return TensorRow(f"{name}.weight", (n,), 4 * n)


def _matrix(type_id: int, name: str, n_in: int, n_out: int) -> TensorRow:
    return row_of(f"{name}.weight", (n_in, n_out), type_id)


def row_of(name: str, dims: tuple[int, ...], type_id: int) -> TensorRow:
    n_weights, n_bytes = BLOCKS[type_id]
    assert dims[0] % n_weights == 0, (name, dims)
    return TensorRow(name, dims, prod(dims) // n_weights * n_bytes, type_id)


def _metadata(shape: Shape) -> dict[str, Value]:
    return {
        "general.architecture": "llama",
        "general.name": f"Random weights in the shape of {shape.name}",
        "llama.block_count": shape.n_layers,
        "llama.context_length": shape.n_ctx_train,
        "llama.embedding_length": shape.n_embd,
        "llama.feed_forward_length": shape.n_ff,
        "llama.attention.head_count": shape.n_head,
        "llama.attention.head_count_kv": shape.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        **vocabulary(shape.n_vocab),
    }


def vocabulary(n_vocab: int) -> dict[str, Value]:
    """SentencePiece's kind: bytes, and every beginning of every word that the bench's prompts are made of.

    Because all beginnings are there, a word is merged from left to right into one token, as a real vocabulary has it.
    """
    words = {f"{_SPACE}{word}" for word in common_words()}
    beginnings = sorted({word[:n] for word in words for n in range(1, len(word) + 1)})
    pieces = [*characters.punctuation, *beginnings]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(pieces)]
    fill = [f"{_SPACE}{_SPACE}{number}" for number in range(n_vocab - len(tokens))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *fill],
        "tokenizer.ggml.scores": Typed("f32", [float(len(token)) for token in [*tokens, *fill]]),
        "tokenizer.ggml.token_type": [*types, *[_NORMAL] * len(fill)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
