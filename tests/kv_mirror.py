"""A listener's knowledge of a worker's blocks, from the events alone; it checks that each of them can be believed.

It knows nothing of how hashes are made: a block's tokens and its parent say what it is. And MessagePack as its
specification has it, read without a library.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.engine.kv_blocks import BLOCK_TOKENS
from worker.wire.jobs import TokenId
from worker.wire.messages import BlockHash, BlockRemoved, BlockStored, Medium

Path = tuple[int, ...]
"""A block's tokens and all before them."""


def blocks_of(tokens: Sequence[int]) -> set[Path]:
    """All whole blocks of a sequence."""
    return {tuple(tokens[:end]) for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)}


def kept(
    medium: Medium, parent: BlockHash | None, hashes: tuple[BlockHash, ...], tokens: tuple[TokenId, ...]
) -> BlockStored:
    return BlockStored(
        block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=BLOCK_TOKENS, medium=medium
    )


def gone(medium: Medium, hashes: tuple[BlockHash, ...]) -> BlockRemoved:
    return BlockRemoved(block_hashes=hashes, medium=medium)


@dataclass
class Mirror:
    held: dict[str, dict[int, Path]] = field(default_factory=lambda: {"GPU": {}, "CPU": {}})

    def hear(self, changes: Iterable[BlockStored | BlockRemoved]) -> None:
        """Take what the engine sends to its front."""
        for change in changes:
            match change:
                case BlockStored():
                    self._store(change.medium, change.parent_block_hash, change.block_hashes, change.token_ids)
                case BlockRemoved():
                    self._remove(change.medium, change.block_hashes)

    def hear_batch(self, payload: bytes) -> None:
        """Take what the front publishes."""
        _, events, _ = unpacked(payload)
        for event in events:
            if event["type"] == "BlockStored":
                assert event["block_size"] == BLOCK_TOKENS
                self._store(event["medium"], event["parent_block_hash"], event["block_hashes"], event["token_ids"])
            elif event["type"] == "BlockRemoved":
                self._remove(event["medium"], event["block_hashes"])
            else:
                assert event == {"type": "AllBlocksCleared"}
                self.held = {medium: {} for medium in self.held}

    def blocks(self, medium: str) -> set[Path]:
        held = self.held[medium]
        found = set(held.values())
        assert len(found) == len(held), "a block has one hash"
        return found

    def _store(self, medium: str, parent: int | None, hashes: Sequence[int], tokens: Sequence[int]) -> None:
        held = self.held[medium]
        assert hashes, "an event is about something"
        assert len(tokens) == BLOCK_TOKENS * len(hashes), "only whole blocks are told of"
        assert parent is None or parent in held, "a block's parent is there"
        path = () if parent is None else held[parent]
        for i, block in enumerate(hashes):
            assert block not in held, "what is there is not stored again"
            assert 0 <= block < 2**64
            path += tuple(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])
            held[block] = path

    def _remove(self, medium: str, hashes: Sequence[int]) -> None:
        held = self.held[medium]
        assert hashes, "an event is about something"
        for block in hashes:
            assert block in held, "only what is there is removed"
            path = held.pop(block)
            is_parent = any(other[: len(path)] == path for other in held.values() if len(other) > len(path))
            assert not is_parent, "children go before their parents"


# ── MessagePack ──────────────────────────────────────────────────────────────────────────────────


def unpacked(data: bytes) -> Any:
    value, end = _read(data, 0)
    assert end == len(data), "nothing comes behind the value"
    return value


_FIXED = dict(zip(range(0xCA, 0xD4), (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED = {0xD9: ("str", ">B"), 0xDA: ("str", ">H"), 0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H")}


def _read(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends."""
    first, at = data[at], at + 1
    if first < 0x80:
        return first, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _FIXED:
        end = at + struct.calcsize(_FIXED[first])
        return struct.unpack(_FIXED[first], data[at:end])[0], end
    if first in _SIZED:
        kind, size_form = _SIZED[first]
        end = at + struct.calcsize(size_form)
        (size,) = struct.unpack(size_form, data[at:end])
        return _read_items(kind, size, data, end)
    for kind, low, high in (("map", 0x80, 0x8F), ("array", 0x90, 0x9F), ("str", 0xA0, 0xBF)):
        if low <= first <= high:
            return _read_items(kind, first - low, data, at)
    raise AssertionError(f"an event has no value that begins with {first:#x}")


def _read_items(kind: str, size: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind == "str":
        return data[at : at + size].decode(), at + size
    items = []
    for _ in range(2 * size if kind == "map" else size):
        item, at = _read(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), at
