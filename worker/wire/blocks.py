"""The changes of the blocks of prompts that the engine has cached: BlocksChanged, from the engine to the front."""

from typing import Literal, NewType

import msgspec

from worker.wire.jobs import Frame, TokenId

BlockHash = NewType("BlockHash", int)
"""A u64 for 16 tokens and everything before them; engine/kv_blocks.py computes it."""
Medium = Literal["GPU", "CPU"]
"""The place of a block's cells, in vLLM's words, whatever the device is: in the KV memory that steps compute in
("GPU"), or in the prefix cache's copies in main memory ("CPU")."""


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Whole blocks that follow each other are cached now, and were not before."""

    medium: Medium
    parent: BlockHash | None
    """The block before the first; None at the start of a prompt."""
    hashes: tuple[BlockHash, ...]
    tokens: tuple[TokenId, ...]
    """The tokens of all the blocks, the same number for each."""


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks are gone, children before their parents."""

    medium: Medium
    hashes: tuple[BlockHash, ...]


class BlocksChanged(Frame, frozen=True, kw_only=True):
    """The changes of the cached blocks since the last such frame, in order. A new engine has no blocks."""

    changes: tuple[BlocksStored | BlocksRemoved, ...]
