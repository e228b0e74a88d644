"""The tensors of a SafeTensors checkpoint by their names, one at a time, in one file or in shards.

Reads the files itself, through memory maps: the safetensors library gives NumPy no bfloat16, and a comparison of
weights should not need PyTorch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from worker.errors import UsageError

_INDEX = "model.safetensors.index.json"
_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_WIDEST_HEADER_BYTES = 100_000_000  # the format's own limit
_STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

_BLOCK = 1 << 16  # numbers widened at once: temporary arrays are then too small to matter


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header of its file; offsets count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class _Config(msgspec.Struct, frozen=True):
    tie_word_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    entry: _Entry
    offset_bytes: int
    """The offset from the beginning of the file."""


class CheckpointTensors:
    """Made by `open`. `names`: what the files hold, so without `lm_head.weight` where it is tied and left out."""

    def __init__(self, places: Mapping[str, _Place], *, is_tied: bool) -> None:
        self._places = dict(places)
        self._is_tied = is_tied
        self.names = frozenset(places)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads headers only. Raises: UsageError where `folder` is no checkpoint or a file of it is missing."""
        try:
            config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Config)
            places = {name: place for file in _files(folder) for name, place in _header(file).items()}
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{folder} is not a SafeTensors checkpoint: {error}") from error
        return cls(places, is_tied=config.tie_word_embeddings)

    @property
    def n_weights(self) -> int:
        """Numbers in all tensors together."""
        return sum(prod(place.entry.shape) for place in self._places.values())

    def has(self, name: str) -> bool:
        """True if `read` can return the tensor."""
        return self._stored_name(name) in self._places

    def read(self, name: str) -> NDArray[np.float32]:
        """A copy of the tensor, wider types rounded and narrower ones widened. Raises: as `read_into`."""
        found = np.empty(self._place(name).entry.shape, np.float32)
        self.read_into(name, found)
        return found

    def read_into(self, name: str, target: NDArray[np.floating]) -> None:
        """Write the tensor into `target`, contiguous and of its shape; this takes hardly any more memory.

        Raises: KeyError for a name that there is not, UsageError for a type that is not floating point, ValueError for
        another shape.
        """
        place = self._place(name)
        stored = _STORED_AS.get(place.entry.dtype)
        if stored is None:
            raise UsageError(f"{place.file}: {name} is {place.entry.dtype}; {', '.join(_STORED_AS)} can be compared")
        mapped = np.memmap(place.file, np.dtype(stored), "r", place.offset_bytes, place.entry.shape)
        if target.shape != mapped.shape:
            raise ValueError(f"{name} has shape {mapped.shape}, not {target.shape}")
        if place.entry.dtype == "BF16":
            _widen(mapped.reshape(-1), target.reshape(-1))
        else:
            target[...] = mapped

    def _place(self, name: str) -> _Place:
        return self._places[self._stored_name(name)]

    def _stored_name(self, name: str) -> str:
        return _EMBEDDING if name == _OUTPUT and self._is_tied and name not in self.names else name


def _widen(halves: NDArray[np.uint16], target: NDArray[np.floating]) -> None:
    """bfloat16 is the upper half of a float32."""
    for start in range(0, len(halves), _BLOCK):
        block = slice(start, start + _BLOCK)
        target[block] = (halves[block].astype(np.uint32) << 16).view(np.float32)


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        return [folder / "model.safetensors"]
    shards = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    return [folder / shard for shard in sorted(shards)]


def _header(file: Path) -> dict[str, _Place]:
    """Eight bytes of length, JSON of that length, then the tensors. Source: the safetensors format."""
    with file.open("rb") as opened:
        n_bytes = int.from_bytes(opened.read(8), "little")
        if n_bytes > _WIDEST_HEADER_BYTES:
            raise UsageError(f"{file} is not a SafeTensors file: its header would have {n_bytes} bytes")
        entries = msgspec.json.decode(opened.read(n_bytes), type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    decoded = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in entries.items()}
    return {name: _Place(file, entry, 8 + n_bytes + entry.data_offsets[0]) for name, entry in decoded.items()}
