"""The key-value pairs of one GGUF file, fetched by key with type and range checked.

Owns the rule that a value has exactly the type llama.cpp demands (its reader throws, or aborts, on another). Does not
know which keys there should be (info.py does) nor how they lie in the file (gguf.py does). Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.errors import BadModelFile


@dataclass(frozen=True, slots=True)
class Scalar:
    kind: str
    """u8 … u64, i8 … i64, f32, f64, bool or string."""
    value: float | str


@dataclass(frozen=True, slots=True)
class Array:
    """`numbers` is empty for strings, and where there are more than fit a per-layer array."""

    kind: str
    length: int
    numbers: tuple[float, ...] = ()


Entry = Scalar | Array


class Metadata:
    """The pairs of the file at `path`. Every fetch raises BadModelFile for a wrong type or a value out of range."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._entries = entries

    def error(self, why: str) -> BadModelFile:
        return BadModelFile(f"{self.path}: {why}")

    def text(self, key: str) -> str | None:
        entry = self._entry(key, "string")
        return None if entry is None else str(entry.value)

    def remark(self, key: str) -> str | None:
        """A text nothing depends on: None where it is missing or of another type."""
        entry = self._entries.get(key)
        return entry.value if isinstance(entry, Scalar) and isinstance(entry.value, str) else None

    def required_text(self, key: str) -> str:
        text = self.text(key)
        if not text:
            raise self.error(f"metadata key {key!r} is {'missing' if text is None else 'empty'}")
        return text

    def number(self, key: str, high: int, *, low: int = 1, default: int | None = None, kind: str = "u32") -> int:
        """An integer in low..high. A `default` of None: the key is required."""
        entry = self._entry(key, kind)
        if entry is None:
            if default is None:
                raise self.error(f"metadata key {key!r} is missing")
            return default
        value = int(entry.value)
        if not low <= value <= high:
            raise self.error(f"metadata key {key!r} is {value}, must be in {low}..{high}")
        return value

    def real(self, key: str) -> float | None:
        """A floating-point number; None where it is missing or of another type, which llama.cpp refuses if it asks."""
        entry = self._entries.get(key)
        return float(entry.value) if isinstance(entry, Scalar) and entry.kind == "f32" else None

    def per_layer(self, key: str, n_layers: int, high: int, default: Sequence[int] | None) -> tuple[int, ...]:
        """An integer in 0..high for each layer; the file has one for all, or an array. No `default`: required."""
        entry = self._entries.get(key)
        if entry is None and default is not None:
            return tuple(default)
        if not isinstance(entry, Array):
            return (self.number(key, high, low=0),) * n_layers
        if entry.kind not in ("u32", "i32") or entry.length != n_layers:
            raise self.error(f"metadata key {key!r} has {entry.length} {entry.kind}, must have {n_layers} u32 or i32")
        counts = tuple(int(number) for number in entry.numbers)
        if not 0 <= min(counts) <= max(counts) <= high:
            raise self.error(f"metadata key {key!r} has {min(counts)}..{max(counts)} in it, must be in 0..{high}")
        return counts

    def flags(self, key: str, n_layers: int) -> tuple[bool, ...] | None:
        """For each layer whether it is so; not so behind a short array. None where the file has no array."""
        entry = self._entries.get(key)
        if not isinstance(entry, Array):
            return None
        if entry.kind not in ("bool", "u32", "i32") or not entry.numbers:
            raise self.error(f"metadata key {key!r} has {entry.length} {entry.kind}, must have {n_layers} bool or u32")
        return (*map(bool, entry.numbers[:n_layers]), *[False] * (n_layers - entry.length))

    def n_strings(self, key: str) -> int:
        """Length of a required array of strings."""
        entry = self._entries.get(key)
        if entry is None:
            raise self.error(f"metadata key {key!r} is missing")
        if not isinstance(entry, Array) or entry.kind != "string":
            raise self.error(f"metadata key {key!r} must be an array of strings")
        return entry.length

    def _entry(self, key: str, kind: str) -> Scalar | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if not isinstance(entry, Scalar) or entry.kind != kind:
            found = entry.kind if isinstance(entry, Scalar) else f"an array of {entry.kind}"
            raise self.error(f"metadata key {key!r} has type {found}, must be {kind}")
        return entry
