"""A listener's knowledge of a worker's blocks, from the events alone; it checks that each of them can be believed.

It knows nothing of how hashes are made: a block's tokens and its parent say what it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

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


def unpacked(batch: bytes) -> Any:
    """This is what a batch is in MessagePack."""
    return msgspec.msgpack.decode(batch)


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
