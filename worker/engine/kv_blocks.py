"""A journal of the cached blocks of 16 tokens, for routers: changes in the KV memory and among the copies.

A block stands for its tokens, all before them and the prompt's salt (step.py), so that sequences with the same prefix
have the same blocks. Tokens after the last whole block are not reported.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from hashlib import blake2b
from itertools import chain
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


class BlockJournal:
    """Collects changes. Replaying everything that `take` has returned gives the current blocks: in each medium no block
    twice, and none without its parent.
    """

    def __init__(self) -> None:
        self._changes: list[BlockStored | BlockRemoved] = []
        self._chains: dict[SlotId, tuple[list[TokenId], list[BlockHash]]] = {}
        """A slot's sequence's tokens, and the blocks that it holds of these."""
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
            known, blocks = before.get(slot, (None, []))
            if known is tokens:
                del before[slot]
            else:
                blocks = []
            n_blocks = n_tokens // BLOCK_TOKENS
            released += blocks[n_blocks:]
            del blocks[n_blocks:]
            if len(blocks) < n_blocks:
                self._grow(blocks, tokens[len(blocks) * BLOCK_TOKENS : n_blocks * BLOCK_TOKENS])
            self._chains[slot] = tokens, blocks
        # Blocks are released only now, because a block that went from one slot to another was never gone.
        released += chain.from_iterable(blocks for _, blocks in before.values())
        self._n_holders.subtract(released)
        gone = [block for block in dict.fromkeys(released) if not self._n_holders[block]]
        for block in gone:
            del self._n_holders[block]
        self._remove("GPU", gone)
        changes, self._changes = tuple(self._changes), []
        return changes

    def _grow(self, blocks: list[BlockHash], tokens: Seq[TokenId]) -> None:
        """Add the blocks of the next tokens. A slot that holds a block holds those before it, so the blocks that no
        slot has held are the last.
        """
        parent = blocks[-1] if blocks else None
        more = block_hashes(parent, tokens)
        blocks += more
        n_known = sum(block in self._n_holders for block in more)
        self._n_holders.update(more)
        self._store("GPU", more[n_known - 1] if n_known else parent, more[n_known:], tokens[n_known * BLOCK_TOKENS :])

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
