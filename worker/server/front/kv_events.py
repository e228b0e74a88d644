"""The cached blocks of the current engine, in the form of vLLM's KV events: numbered batches for routers.

This module owns the batches' form and numbers, and keeps the last ones for subscribers that missed them. It knows
nothing of sockets (kv_event_sockets.py); the engine has the blocks themselves (engine/kv_blocks.py). It runs on the
front's event loop.

A batch is `[seconds, [event, …], 0]` in MessagePack; its events are maps with the class's name as `type`. Numbers go on
when an engine dies: its blocks are cleared, and those of its successor follow.
Source: vllm/distributed/kv_events.py of vLLM 0.26.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal

import msgspec

from worker.wire.blocks import BlockHash, BlocksRemoved, BlocksStored, Medium
from worker.wire.encoding import encode_messagepack
from worker.wire.jobs import TokenId

MAX_BATCHES = 10_000
"""The number of batches that are kept, and that may wait for a subscriber; vLLM keeps as many."""

MAX_BYTES = 64 * 1024 * 1024
"""The bytes of all kept batches: a batch about a long prompt has a hundred times those of a usual one."""


class _BlocksEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The base of the events. Fields that consumers require are there even if they are null."""


class BlockStored(_BlocksEvent, frozen=True, kw_only=True):
    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[TokenId, ...]
    block_size: int
    lora_id: None = None
    medium: Medium
    lora_name: None = None


class BlockRemoved(_BlocksEvent, frozen=True, kw_only=True):
    block_hashes: tuple[BlockHash, ...]
    medium: Medium


class AllBlocksCleared(_BlocksEvent, frozen=True, kw_only=True):
    """The blocks of all media are gone."""


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    seconds: float
    """The seconds since 1970."""
    events: tuple[BlockStored | BlockRemoved | AllBlocksCleared, ...]
    data_parallel_rank: Literal[0] = 0


Send = Callable[[int, bytes], None]
"""Publish a batch under its number. It neither waits nor raises."""


class KvEvents:
    """Makes and keeps batches. `send` publishes; `clock` gives the seconds since 1970."""

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._kept: deque[bytes] = deque()
        self._n_kept_bytes = 0
        self.n_batches = 0
        """The number of published batches, which is the number of the next one."""

    def changed(self, changes: tuple[BlocksStored | BlocksRemoved, ...]) -> None:
        self._publish(tuple(map(_event_of, changes)))

    def cleared(self) -> None:
        """Report that there are no blocks, because there is a new engine or none."""
        self._publish((AllBlocksCleared(),))

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Return the batches from that number on, as far as they are kept, in order and with their numbers."""
        first = self.n_batches - len(self._kept)
        start = min(max(number, first), self.n_batches)
        return list(enumerate(islice(self._kept, start - first, None), start))

    def _publish(self, events: tuple[BlockStored | BlockRemoved | AllBlocksCleared, ...]) -> None:
        batch = encode_messagepack(EventBatch(self._clock(), events))
        self._send(self.n_batches, batch)
        self._kept.append(batch)
        self._n_kept_bytes += len(batch)
        self.n_batches += 1
        while len(self._kept) > MAX_BATCHES or self._n_kept_bytes > MAX_BYTES:
            self._n_kept_bytes -= len(self._kept.popleft())


def _event_of(change: BlocksStored | BlocksRemoved) -> BlockStored | BlockRemoved:
    match change:
        case BlocksRemoved(medium, hashes):
            return BlockRemoved(block_hashes=hashes, medium=medium)
        case BlocksStored(medium, parent, hashes, tokens):
            return BlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=tokens,
                block_size=len(tokens) // len(hashes),
                medium=medium,
            )
