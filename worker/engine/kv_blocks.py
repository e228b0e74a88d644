"""A journal of the cached blocks of 16 tokens: changes in the KV memory and among the copies, for routers.

This module owns the blocks' hashes, and the count of the slots that hold a block. It knows nothing of cells, bytes and
evictions: the prefix index reports what it keeps, and the engine reports after each step what its slots hold. It runs
on the step thread, and only if blocks are reported at all.

A block stands for its tokens, all before them and the prompt's salt (step.py), so that sequences with the same prefix
have the same blocks. Tokens after the last whole block are not reported.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct

from worker.engine.step import salt_of
from worker.wire.jobs import SlotId, TokenId
from worker.wire.messages import BlockHash, BlockRemoved, BlockStored, Medium

BLOCK_TOKENS = 16
"""vLLM's default, which routers assume unless they are configured otherwise."""

_PACKED = Struct(f"<{BLOCK_TOKENS}i")

Held = tuple[SlotId, list[TokenId], int]
"""A slot, its sequence's tokens, and how many of them other jobs may share. A list of tokens only grows; another list
is another sequence."""


def block_hashes(parent: BlockHash | None, tokens: Seq[TokenId]) -> list[BlockHash]:
    """Return the hashes of the whole blocks at the start of `tokens`, which follow the block `parent`.

    A hash is BLAKE2b, cut to 8 bytes, of the parent's hash (big-endian; 0 for none), of the 16 tokens (i32,
    little-endian), and in the first block of the salt, so that every process of every release has the same.
    """
    hashes: list[BlockHash] = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = (parent or 0).to_bytes(8, "big") + _PACKED.pack(*tokens[start : start + BLOCK_TOKENS])
        block += b"" if start else salt_of(tokens)
        parent = BlockHash(int.from_bytes(blake2b(block, digest_size=8).digest(), "big"))
        hashes.append(parent)
    return hashes


@dataclass(slots=True)
class _Chain:
    """The blocks that a slot holds of its sequence's tokens."""

    tokens: list[TokenId]
    blocks: list[BlockHash] = field(default_factory=list)


class BlockJournal:
    """Collects changes. Replaying everything that `take` has returned gives the current blocks: in each medium no block
    twice, and none without its parent.
    """

    def __init__(self) -> None:
        self._changes: list[BlockStored | BlockRemoved] = []
        self._chains: dict[SlotId, _Chain] = {}
        self._n_holders: Counter[BlockHash] = Counter()
        """The number of slots that hold a block, for all blocks that a slot holds."""

    def store_copies(self, parent: BlockHash | None, tokens: Seq[TokenId]) -> list[BlockHash]:
        """Note that copies of these tokens' cells, which follow `parent`, are kept from now on. Return their blocks."""
        blocks = block_hashes(parent, tokens)
        self._store("CPU", parent, blocks, tokens)
        return blocks

    def remove_copies(self, blocks: Seq[BlockHash]) -> None:
        self._remove("CPU", blocks)

    def take(self, held: Iterable[Held]) -> tuple[BlockStored | BlockRemoved, ...]:
        """Return the changes since the last call, given the tokens that the slots hold now."""
        before, self._chains = self._chains, {}
        released: list[BlockHash] = []
        for slot, tokens, n_tokens in held:
            chain = before.get(slot)
            if chain is None or chain.tokens is not tokens:
                chain = _Chain(tokens)
            else:
                del before[slot]
            n_blocks = n_tokens // BLOCK_TOKENS
            released += chain.blocks[n_blocks:]
            del chain.blocks[n_blocks:]
            self._grow(chain, n_blocks)
            self._chains[slot] = chain
        for chain in before.values():
            released += chain.blocks
        # Blocks are released only now, because a block that went from one slot to another was never gone.
        self._release(released)
        changes, self._changes = tuple(self._changes), []
        return changes

    def _grow(self, chain: _Chain, n_blocks: int) -> None:
        """Add the chain's blocks up to n_blocks. A slot that holds a block holds those before it, so the blocks that no
        slot has held are the last.
        """
        start = len(chain.blocks)
        if start == n_blocks:
            return
        parent = chain.blocks[-1] if chain.blocks else None
        tokens = chain.tokens[start * BLOCK_TOKENS : n_blocks * BLOCK_TOKENS]
        more = block_hashes(parent, tokens)
        chain.blocks += more
        n_known = sum(block in self._n_holders for block in more)
        self._n_holders.update(more)
        self._store("GPU", more[n_known - 1] if n_known else parent, more[n_known:], tokens[n_known * BLOCK_TOKENS :])

    def _release(self, blocks: Seq[BlockHash]) -> None:
        self._n_holders.subtract(blocks)
        gone = [block for block in dict.fromkeys(blocks) if not self._n_holders[block]]
        for block in gone:
            del self._n_holders[block]
        self._remove("GPU", gone)

    def _store(self, medium: Medium, parent: BlockHash | None, blocks: Seq[BlockHash], tokens: Seq[TokenId]) -> None:
        if blocks:
            whole = tuple(TokenId(int(token)) for token in tokens[: len(blocks) * BLOCK_TOKENS])
            stored = BlockStored(
                block_hashes=tuple(blocks),
                parent_block_hash=parent,
                token_ids=whole,
                block_size=BLOCK_TOKENS,
                medium=medium,
            )
            self._changes.append(stored)

    def _remove(self, medium: Medium, blocks: Seq[BlockHash]) -> None:
        if blocks:
            self._changes.append(BlockRemoved(block_hashes=tuple(reversed(blocks)), medium=medium))
