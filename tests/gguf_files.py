"""A small builder of GGUF files for tests, good ones and bad ones; it checks nothing.

    tiny_model().write(path)                                    a complete model of 2 blocks and 8 tokens
    tiny_model({"llama.block_count": 0}).write(path)            a key changed or added; None leaves it out
    replace(tiny_model(), version=999).write(path)              a wrong number in the header

Plain integers are written as u32, lists of integers as arrays of i32; `Typed` says otherwise.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}
FORMATS = dict(zip(KINDS, "BbHhIif?Qqd", strict=True))
STRING, ARRAY = 8, 9
F32, F16, Q4_1, Q8_0, I8 = 0, 1, 3, 8, 24


@dataclass(frozen=True)
class Typed:
    """A number, or a list of them, with its type in the file."""

    kind: str
    value: float | Sequence[float]


@dataclass(frozen=True)
class Raw:
    """Any type id, followed by any bytes."""

    type_id: int
    payload: bytes


Value = int | float | str | Sequence[int] | Sequence[str] | Typed | Raw


@dataclass(frozen=True)
class TensorRow:
    """A row of the tensor table. `n_bytes` is the space its data takes; `offset` follows from the rows before."""

    name: str
    dims: tuple[int, ...]
    n_bytes: int
    type_id: int = F32
    offset: int | None = None


@dataclass(frozen=True)
class GgufFile:
    metadata: Mapping[str, Value] = field(default_factory=dict)
    tensors: Sequence[TensorRow] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    n_tensors: int | None = None
    """The header's claim; None: the truth."""
    n_keys: int | None = None

    def header(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.metadata) if self.n_keys is None else self.n_keys
        keys = b"".join(string(key) + entry(value) for key, value in self.metadata.items())
        rows, end = b"", 0
        for row in self.tensors:
            offset = end if row.offset is None else row.offset
            rows += string(row.name) + struct.pack(
                f"<I{len(row.dims)}QIQ", len(row.dims), *row.dims, row.type_id, offset
            )
            end += self._padded(row.n_bytes)
        return self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys) + keys + rows

    def to_bytes(self) -> bytes:
        """Data is zeros; after the last tensor there is no padding."""
        header = self.header()
        if not self.tensors:
            return header
        *before, last = (row.n_bytes for row in self.tensors)
        n_data = sum(map(self._padded, before)) + last
        return header.ljust(self._padded(len(header)), b"\0") + bytes(n_data)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path

    def _padded(self, n_bytes: int) -> int:
        return -(-n_bytes // self.alignment) * self.alignment


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(value: Value) -> bytes:
    """Type and value of a metadata key."""
    match value:
        case Raw(type_id, payload):
            return struct.pack("<I", type_id) + payload
        case Typed(kind, numbers) if isinstance(numbers, Sequence):
            items = struct.pack(f"<{len(numbers)}{FORMATS[kind]}", *numbers)
            return struct.pack("<IIQ", ARRAY, KINDS[kind], len(numbers)) + items
        case Typed(kind, number):
            return struct.pack(f"<I{FORMATS[kind]}", KINDS[kind], number)
        case bool():
            return entry(Typed("bool", value))
        case int():
            return entry(Typed("u32", value))
        case float():
            return entry(Typed("f32", value))
        case str():
            return struct.pack("<I", STRING) + string(value)
    texts = [item for item in value if isinstance(item, str)]
    if texts:
        return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(string, texts))
    return entry(Typed("i32", [item for item in value if not isinstance(item, str)]))


TINY_METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 0,
    "general.license": "apache-2.0",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e", "f", "g", "é"],
    "tokenizer.ggml.token_type": [1] * 8,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}
TINY_TENSORS = (
    TensorRow("token_embd.weight", (32, 8), 32 * 8 * 4),
    TensorRow("blk.0.attn_norm.weight", (32,), 32 * 4),
    TensorRow("blk.1.attn_norm.weight", (32,), 32 * 4),
)


def tiny_model(
    changes: Mapping[str, Value | None] | None = None, tensors: Sequence[TensorRow] = TINY_TENSORS
) -> GgufFile:
    """A file that passes every check of ours; llama.cpp would miss most of its tensors."""
    changed = {**TINY_METADATA, **(changes or {})}
    return GgufFile({key: value for key, value in changed.items() if value is not None}, tensors)


def tiny_split(folder: Path, n_parts: int = 3, stem: str = "tiny") -> list[Path]:
    """A model in `n_parts` files: the first has the metadata and the embedding, each later one a tensor."""
    paths = [folder / f"{stem}-{number:05d}-of-{n_parts:05d}.gguf" for number in range(1, n_parts + 1)]
    for number, path in enumerate(paths):
        split: dict[str, Value] = {
            "split.no": Typed("u16", number),
            "split.count": Typed("u16", n_parts),
            "split.tensors.count": Typed("i32", n_parts),
        }
        if number == 0:
            tiny_model(split, tensors=TINY_TENSORS[:1]).write(path)
        else:
            GgufFile(split, [TensorRow(f"blk.{number}.attn_norm.weight", (32,), 32 * 4)]).write(path)
    return paths
