"""A GGUF file's bytes → its metadata and tensor table, every length checked before it is believed.

Owns the file format (gguf.md of github.com/ggml-org/ggml), as strict as llama.cpp's own reader. Whatever a file claims
or holds, it is accepted or refused within a second of processor time and 100 MB of memory, and 50 MB more for arrays
that are read whole: everything that takes either has a limit.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.errors import BadModelFile
from worker.models.upstream.ggml_types import TENSOR_TYPES

MAX_STRING_BYTES = 1 << 20
MAX_TENSORS = 9_999
MAX_ALIGNMENT = 1 << 16
MAX_KEYS = 8_192
"""Metadata keys of a model. Models have 30 to 100; each takes some 10 µs and some 500 bytes here."""
MAX_ARRAY_STRINGS = 3_000_000
"""Strings in all arrays of a model. Each takes 0.1 µs, because where one begins is known only when the one before has
been read. The largest vocabulary with its merges, 262,144 and 514,906, is a quarter of it."""
MAX_WHOLE_ELEMENTS = 1 << 19
MAX_WHOLE_BYTES = 16 << 20
"""The most bytes of an array that is read to its last element: twice the largest vocabulary, and five times its
bytes."""
MAX_HEADER_BYTES = 64 << 20
"""Metadata and tensor tables of a model; what was read of a mapped file counts as this process's memory. The largest
vocabularies with scores and types take 17 MB."""
MAX_KEPT_BYTES = 2 << 20
"""Names, texts and numbers of a model that are kept to be asked for, each number counted as eight bytes. In memory they
are four to five times as much at worst. A chat template has some 10 KB, numbers for each layer take less."""
MAX_NAME_BYTES = 63
"""GGML_MAX_NAME without its terminating zero."""
MAX_KEPT_NUMBERS = 1_024
"""Longer arrays of numbers (scores, token types) are stepped over; per-layer ones fit."""
DEFAULT_ALIGNMENT = 32

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MIN_KEY_BYTES = 14
"""Length and one byte of name, type, one byte of value."""
_MIN_TENSOR_BYTES = 33
"""Length and one byte of name, one dimension, type, offset."""

_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", struct.Struct("<I")),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("u64", struct.Struct("<Q")),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}
_U32, _U64 = _NUMBERS[4][1], _NUMBERS[10][1]

Bytes = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the metadata: one number or text, or an array."""

    kind: str
    """u8 … u64, i8 … i64, f32, f64, bool or string."""
    value: float | str = 0
    """0 for an array."""
    length: int | None = None
    """None for one number or text."""
    numbers: tuple[float, ...] = ()
    """Empty if an array has more than a per-layer one, unless the reader asked for the whole."""
    strings: tuple[bytes, ...] = ()
    """Empty unless the reader asked for the whole array."""

    def __str__(self) -> str:
        return self.kind if self.length is None else f"an array of {self.kind}"

    def is_one(self, kind: str) -> bool:
        return self.length is None and self.kind == kind


class Metadata:
    """The key-value pairs of the file at `path`, fetched by key.

    A value has exactly the type that llama.cpp demands, whose reader throws, or aborts, on another. Every fetch raises
    BadModelFile for a wrong type or a value out of range.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._entries = entries

    def error(self, why: str) -> BadModelFile:
        return BadModelFile(f"{self.path}: {why}")

    def text(self, key: str) -> str | None:
        entry = self._one(key, "string")
        return None if entry is None else str(entry.value)

    def remark(self, key: str) -> str | None:
        """A text that nothing depends on; None where it is missing or of another type."""
        entry = self._entries.get(key)
        return str(entry.value) if entry is not None and entry.is_one("string") else None

    def required_text(self, key: str) -> str:
        text = self.text(key)
        if not text:
            raise self.error(f"metadata key {key!r} is {'missing' if text is None else 'empty'}")
        return text

    def number(self, key: str, high: int, *, low: int = 1, default: int | None = None, kind: str = "u32") -> int:
        """An integer in low..high. Without a `default` the key is required."""
        entry = self._one(key, kind)
        if entry is None:
            if default is None:
                raise self.error(f"metadata key {key!r} is missing")
            return default
        value = int(entry.value)
        if not low <= value <= high:
            raise self.error(f"metadata key {key!r} is {value}, must be in {low}..{high}")
        return value

    def reals(self, prefix: str) -> Iterator[tuple[str, float]]:
        """All floating-point numbers whose keys begin so. llama.cpp asks for some, and refuses those of other types."""
        for key, entry in self._entries.items():
            if key.startswith(prefix) and entry.is_one("f32"):
                yield key, float(entry.value)

    def flag(self, key: str) -> bool | None:
        """None where it is missing or of another type, which llama.cpp refuses if it asks."""
        entry = self._entries.get(key)
        return bool(entry.value) if entry is not None and entry.is_one("bool") else None

    def per_layer(self, key: str, n_layers: int, high: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An integer in 0..high for each layer; the file has one for all, or an array. Required without a `default`."""
        entry = self._entries.get(key)
        if entry is None and default is not None:
            return tuple(default)
        if entry is None or entry.length is None:
            return (self.number(key, high, low=0),) * n_layers
        if entry.kind not in ("u32", "i32") or entry.length != n_layers:
            raise self.error(f"metadata key {key!r} has {entry.length} {entry.kind}, must have {n_layers} u32 or i32")
        counts = tuple(int(number) for number in entry.numbers)
        if not 0 <= min(counts) <= max(counts) <= high:
            raise self.error(f"metadata key {key!r} has values of {min(counts)}..{max(counts)}, must be in 0..{high}")
        return counts

    def flags(self, key: str, n_layers: int) -> tuple[bool, ...] | None:
        """A flag for each layer; false for those behind the end of a short array. None where the file has no array."""
        entry = self._entries.get(key)
        if entry is None or entry.length is None:
            return None
        if entry.kind not in ("bool", "u32", "i32") or not entry.numbers:
            raise self.error(f"metadata key {key!r} has {entry.length} {entry.kind}, must have {n_layers} bool or u32")
        return (*map(bool, entry.numbers[:n_layers]), *[False] * (n_layers - entry.length))

    def n_strings(self, key: str) -> int:
        """The length of a required array of strings."""
        return self._strings(key).length or 0

    def strings(self, key: str) -> tuple[bytes, ...]:
        """A required array of strings, which the reader was asked to read whole."""
        return self._strings(key).strings

    def has(self, key: str) -> bool:
        return key in self._entries

    def n_numbers(self, key: str, kinds: tuple[str, ...]) -> int | None:
        """The length of an array of numbers; None where it is missing."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.length is None or entry.kind not in kinds:
            raise self.error(f"metadata key {key!r} has type {entry}, must be an array of {' or '.join(kinds)}")
        return entry.length

    def whole_numbers(self, key: str) -> tuple[float, ...]:
        """An array of numbers, which the reader was asked to read whole; empty where it is missing."""
        entry = self._entries.get(key)
        return () if entry is None else entry.numbers

    def _strings(self, key: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise self.error(f"metadata key {key!r} is missing")
        if entry.length is None or entry.kind != "string":
            raise self.error(f"metadata key {key!r} must be an array of strings")
        return entry

    def _one(self, key: str, kind: str) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None or entry.is_one(kind):
            return entry
        raise self.error(f"metadata key {key!r} has type {entry}, must be {kind}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight. `dims` are in the order of the file: the row length comes first."""

    name: str
    dims: tuple[int, ...]
    type_name: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: Metadata
    tensors: tuple[Tensor, ...]
    alignment: int
    """Tensors begin at multiples of this in the file."""


@dataclass(slots=True)
class ReadAllowance:
    """The budget for reading the headers of one model; all its parts share it."""

    n_tensors: int = MAX_TENSORS
    n_keys: int = MAX_KEYS
    n_strings: int = MAX_ARRAY_STRINGS
    n_header_bytes: int = MAX_HEADER_BYTES
    n_kept_bytes: int = MAX_KEPT_BYTES


def read_header(
    data: Bytes, path: Path, allowance: ReadAllowance | None = None, *, whole: frozenset[str] = frozenset()
) -> Header:
    """Walk the header of the file whose bytes are `data`; `path` is for messages. A model's parts share an `allowance`,
    of which this takes what it needs. `whole`: the arrays that are read to their last element.

    Raises: BadModelFile: the bytes are no GGUF that llama.cpp could load.
    """
    allowance = allowance or ReadAllowance()
    cursor = _Cursor(data, path, allowance)
    version, n_tensors, n_keys = _read_counts(cursor)
    allowance.n_tensors -= n_tensors
    allowance.n_keys -= n_keys
    entries: dict[str, Entry] = {}
    for index in range(n_keys):
        cursor.inside = f"metadata key {index + 1} of {n_keys}"
        _read_entry(cursor, entries, whole)
    alignment = _alignment(cursor, entries.get("general.alignment"))
    tensors = _read_tensors(cursor, n_tensors, alignment)
    allowance.n_header_bytes -= cursor.at
    return Header(version, Metadata(path, entries), tensors, alignment)


class _Cursor:
    """A position in the bytes. `inside` names what is being read, for the message when the file ends there."""

    def __init__(self, data: Bytes, path: Path, allowance: ReadAllowance) -> None:
        self._data = data
        self._path = path
        self.allowance = allowance
        self.size = len(data)
        self._end = min(self.size, allowance.n_header_bytes)
        """Nothing behind this position is read."""
        self.at = 0
        self.inside = "the first 24 bytes"

    @property
    def n_left(self) -> int:
        return self.size - self.at

    def error(self, why: str) -> BadModelFile:
        return BadModelFile(f"{self._path}: {self.inside}: {why}")

    def step(self, n_bytes: int) -> int:
        """Step over `n` bytes; return where they begin."""
        start = self.at
        if n_bytes > self._end - start:
            raise self._beyond(start + n_bytes)
        self.at = start + n_bytes
        return start

    def keep(self, n_bytes: int) -> None:
        self.allowance.n_kept_bytes -= n_bytes
        if self.allowance.n_kept_bytes < 0:
            raise self.error(f"the names, texts and short arrays up to it hold more than {MAX_KEPT_BYTES} bytes")

    def number(self, form: struct.Struct) -> float:
        (value,) = form.unpack_from(self._data, self.step(form.size))
        return value  # type: ignore[no-any-return]  # unpack_from knows no types

    def integer(self, form: struct.Struct) -> int:
        return int(self.number(form))

    def raw(self, n_bytes: int) -> bytes:
        start = self.step(n_bytes)
        return self._data[start : start + n_bytes]

    def string(self) -> bytes:
        length = self.integer(_U64)
        if length > MAX_STRING_BYTES:
            raise self._too_long(length, self.at - 8)
        self.keep(length)
        return self.raw(length)

    def name(self) -> str:
        """A string that names something: not empty, UTF-8."""
        start = self.at
        try:
            name = self.string().decode()
        except UnicodeDecodeError:
            raise self.error(f"its name at byte {start} is not UTF-8") from None
        if not name:
            raise self.error(f"its name at byte {start} is empty")
        return name

    def check_room(self, n_items: int, item_bytes: int) -> None:
        if n_items * item_bytes > self.n_left:
            raise self.error(f"{n_items} elements from byte {self.at} on do not fit a file of {self.size} bytes")

    def skip_strings(self, n_strings: int) -> None:
        """Step over strings without making them, because merges have 10⁵ and none of them is read here."""
        self.allowance.n_strings -= n_strings
        if self.allowance.n_strings < 0:
            raise self.error(f"the arrays up to it hold more than {MAX_ARRAY_STRINGS} strings")
        data, at, unpack, last = self._data, self.at, _U64.unpack_from, self._end - _U64.size
        for _ in range(n_strings):
            if at > last:
                raise self._beyond(at + _U64.size)
            (length,) = unpack(data, at)
            if length > MAX_STRING_BYTES:
                raise self._too_long(length, at)
            at += 8 + length
        self.at = at
        self.step(0)

    def strings(self, n_strings: int) -> tuple[bytes, ...]:
        """Read the strings, with the checks of `skip_strings`."""
        at = self.at
        self.skip_strings(n_strings)
        if self.at - at > MAX_WHOLE_BYTES:
            raise self.error(f"it takes {self.at - at} bytes; at most {MAX_WHOLE_BYTES} are accepted")
        data, unpack, found = self._data, _U64.unpack_from, []
        for _ in range(n_strings):
            (length,) = unpack(data, at)
            at += 8 + length
            found.append(data[at - length : at])
        return tuple(found)

    def _beyond(self, end: int) -> BadModelFile:
        if end > self.size:
            return self.error(f"the file is truncated, it ends at byte {self.size}")
        return self.error(f"the header goes on to byte {end}; those of a model may take {MAX_HEADER_BYTES} bytes")

    def _too_long(self, length: int, at: int) -> BadModelFile:
        return self.error(f"the string at byte {at} claims {length} bytes; at most {MAX_STRING_BYTES} are accepted")


def _read_counts(cursor: _Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata keys."""
    magic = cursor.raw(min(4, cursor.size))
    if magic != _MAGIC[: len(magic)]:
        raise cursor.error(f"not a GGUF file: it begins with {magic!r}, not with {_MAGIC!r}")
    version = cursor.integer(_U32)
    if version not in _VERSIONS:
        if version and version & 0xFFFF == 0:
            raise cursor.error("a big-endian GGUF: convert it to little-endian")
        raise cursor.error(f"GGUF version {version} at byte 4 is not supported: 2 and 3 are")
    n_tensors, n_keys = cursor.integer(_U64), cursor.integer(_U64)
    if n_tensors > cursor.allowance.n_tensors:
        raise cursor.error(f"{n_tensors} tensors at byte 8: at most {MAX_TENSORS} are accepted in a model")
    if n_keys * _MIN_KEY_BYTES + n_tensors * _MIN_TENSOR_BYTES > cursor.n_left:
        raise cursor.error(f"{n_keys} metadata keys and {n_tensors} tensors do not fit a file of {cursor.size} bytes")
    if n_keys > cursor.allowance.n_keys:
        raise cursor.error(f"{n_keys} metadata keys at byte 16: at most {MAX_KEYS} are accepted in a model")
    return version, n_tensors, n_keys


def _read_entry(cursor: _Cursor, entries: dict[str, Entry], whole: frozenset[str]) -> None:
    key = cursor.name()
    cursor.inside = f"metadata key {key[:MAX_NAME_BYTES]!r}"
    if key in entries:
        raise cursor.error("it appears twice")
    kind = cursor.integer(_U32)
    if kind == _STRING:
        entries[key] = Entry("string", cursor.string().decode(errors="replace"))
    elif kind == _ARRAY:
        entries[key] = _read_array(cursor, is_whole=key in whole)
    else:
        name, form = _number_form(cursor, kind)
        entries[key] = Entry(name, cursor.number(form))


def _read_array(cursor: _Cursor, *, is_whole: bool) -> Entry:
    kind, length = cursor.integer(_U32), cursor.integer(_U64)
    if is_whole and length > MAX_WHOLE_ELEMENTS:
        raise cursor.error(f"{length} elements; at most {MAX_WHOLE_ELEMENTS} are accepted")
    if kind == _STRING:
        cursor.check_room(length, _U64.size)
        if is_whole:
            return Entry("string", length=length, strings=cursor.strings(length))
        cursor.skip_strings(length)
        return Entry("string", length=length)
    name, form = _number_form(cursor, kind)
    cursor.check_room(length, form.size)
    if not is_whole and length > MAX_KEPT_NUMBERS:
        cursor.step(length * form.size)
        return Entry(name, length=length)
    if not is_whole:
        cursor.keep(8 * length)
    raw = cursor.raw(length * form.size)
    return Entry(name, length=length, numbers=struct.unpack(f"<{length}{form.format[-1]}", raw))


def _number_form(cursor: _Cursor, kind: int) -> tuple[str, struct.Struct]:
    """Raises: BadModelFile also for arrays in arrays, which llama.cpp does not read either."""
    if kind not in _NUMBERS:
        raise cursor.error("an array of arrays" if kind == _ARRAY else f"value type {kind} is unknown")
    return _NUMBERS[kind]


def _alignment(cursor: _Cursor, entry: Entry | None) -> int:
    if entry is None:
        return DEFAULT_ALIGNMENT
    cursor.inside = "metadata key 'general.alignment'"
    if not entry.is_one("u32"):
        raise cursor.error(f"type {entry.kind}, must be u32")
    value = int(entry.value)
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.error(f"{value} is not a power of two in 8..{MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> tuple[Tensor, ...]:
    table: dict[str, tuple[Tensor, int]] = {}
    for index in range(n_tensors):
        cursor.inside = f"tensor {index + 1} of {n_tensors}"
        name = cursor.name()
        cursor.inside = f"tensor {name[:MAX_NAME_BYTES]!r}"
        if name in table:
            raise cursor.error("it appears twice")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise cursor.error(f"its name has more than {MAX_NAME_BYTES} bytes")
        table[name] = (_read_tensor(cursor, name), cursor.integer(_U64))
    _check_places(cursor, list(table.values()), alignment)
    return tuple(tensor for tensor, _ in table.values())


def _read_tensor(cursor: _Cursor, name: str) -> Tensor:
    """Everything in a row of the table but its offset."""
    n_dims = cursor.integer(_U32)
    if not 1 <= n_dims <= 4:
        raise cursor.error(f"{n_dims} dimensions; 1 to 4 are possible")
    dims = tuple(cursor.integer(_U64) for _ in range(n_dims))
    type_id = cursor.integer(_U32)
    if type_id not in TENSOR_TYPES:
        raise cursor.error(f"its type {type_id} is unknown or withdrawn")
    kind = TENSOR_TYPES[type_id]
    n_elements = 1
    for dim in dims:
        # The running product as llama.cpp forms it: a zero further on does not undo an overflow.
        n_elements *= dim
        if n_elements >= 1 << 63 or dim >= 1 << 63:
            raise cursor.error(f"its dimensions {dims} overflow")
    if dims[0] % kind.block:
        raise cursor.error(f"rows of {dims[0]} elements; {kind.name} needs a multiple of {kind.block}")
    return Tensor(name, dims, kind.name, kind.n_bytes(n_elements))


def _check_places(cursor: _Cursor, table: list[tuple[Tensor, int]], alignment: int) -> None:
    """Every tensor inside the file, aligned, one behind the other: llama.cpp accepts no gap and no overlap."""
    data_start = _pad(cursor.at, alignment)
    expected = 0
    for tensor, offset in table:
        cursor.inside = f"tensor {tensor.name!r}"
        start, end = data_start + offset, data_start + offset + tensor.n_bytes
        if offset % alignment:
            raise cursor.error(f"its offset {offset} is not a multiple of the alignment {alignment}")
        if start >= cursor.size or end > cursor.size:
            raise cursor.error(f"its data is at bytes {start}..{end} of a file that ends at byte {cursor.size}")
        if offset != expected:
            raise cursor.error(f"its offset is {offset}; the tensor before it ends at {expected}")
        expected = _pad(offset + tensor.n_bytes, alignment)


def _pad(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
