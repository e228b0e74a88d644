"""Saved cells one can read: the tokens and positions themselves. What is alive in a `Memory` has an owner.

And prefix indexes filled with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakSet

from worker.engine.prefix_tree import PrefixIndex
from worker.wire.jobs import TokenId

Tokens = tuple[TokenId, ...]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Cells:
    """Cells of positions [start, len(path)) of the sequence `path`."""

    path: Tokens
    start: int
    memory: "Memory"

    def __post_init__(self) -> None:
        assert 0 <= self.start < len(self.path)
        self.memory.alive.add(self)

    @property
    def tokens(self) -> Tokens:
        return self.path[self.start :]

    @property
    def n_tokens(self) -> int:
        return len(self.path) - self.start

    @property
    def n_bytes(self) -> int:
        return self.memory.n_bytes(self.n_tokens)

    def split(self, n_tokens: int) -> "tuple[Cells, Cells]":
        cut = self.start + n_tokens
        assert self.start < cut < len(self.path)
        return Cells(self.path[:cut], self.start, self.memory), Cells(self.path, cut, self.memory)


@dataclass
class Memory:
    """Makes cells and knows which of them are alive. Each copy has a header, so two halves are more than a whole."""

    header_bytes: int = 0
    alive: WeakSet[Cells] = field(default_factory=WeakSet)

    def n_bytes(self, n_tokens: int) -> int:
        return self.header_bytes + 10 * n_tokens

    def save(self, path: Tokens, start: int) -> Cells:
        return Cells(path, start, self)

    @property
    def n_alive_bytes(self) -> int:
        return sum(cells.n_bytes for cells in self.alive)

    @property
    def n_alive_tokens(self) -> int:
        return sum(cells.n_tokens for cells in self.alive)


PLENTY = 10**9


def ids(tokens: Iterable[int]) -> Tokens:
    return tuple(TokenId(token) for token in tokens)


def numbered(family: int, n_tokens: int) -> Tokens:
    """A sequence that shares no prefix with another family's."""
    return ids([family, *range(1, n_tokens)])


def remember(index: PrefixIndex, memory: Memory, tokens: Tokens) -> None:
    n_known = index.match(tokens)
    index.insert(tokens, n_known, memory.save(tokens, n_known))


def index_of(memory: Memory, *sequences: Tokens, limit_bytes: int = PLENTY) -> PrefixIndex:
    index = PrefixIndex(limit_bytes)
    for tokens in sequences:
        remember(index, memory, tokens)
    return index
