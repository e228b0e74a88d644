"""What a lookup and an insert cost in a prefix index of a given size: a full one, so that an insert also evicts.

Owns the clock around worker/engine/prefix_tree.py and a stand-in for the cells. Needs no model, server or threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

from worker.engine.prefix_tree import PrefixIndex
from worker.wire.messages import TokenId

N_PROMPT = 400
"""Tokens of the prompt that is looked up and of the one that is inserted."""
_N_COMMON = 200
"""Tokens that a prompt shares with its family: where an edge is split, or was."""
_N_FAMILY = 10
_N_VOCAB = 49_152
_N_ROUNDS = 300
_TOKEN_BYTES = 23_040
"""A cell's size: 30 layers × 3 heads × 64 × (K + V) × 2 bytes."""


@dataclass(frozen=True, slots=True)
class IndexCosts:
    """Medians in microseconds, for prompts of N_PROMPT tokens in an index that keeps about n_tokens."""

    lookup_us: float
    """`match`, then `take` of all that matched: what a job's start costs."""
    insert_us: float
    """With the eviction that makes room, and in one of ten with the split of an edge."""
    n_tokens: int


@dataclass(frozen=True, slots=True)
class _NoCells:
    """Saved without the cells: only the index's own work is timed, not copies of memory."""

    n_tokens: int

    @property
    def n_bytes(self) -> int:
        return self.n_tokens * _TOKEN_BYTES

    def split(self, n_tokens: int) -> "tuple[_NoCells, _NoCells]":
        return _NoCells(n_tokens), _NoCells(self.n_tokens - n_tokens)


def index_costs(n_tokens: int) -> IndexCosts:
    """Fill an index to n_tokens ≥ N_PROMPT, then time lookups and inserts in it, in turns."""
    assert n_tokens >= N_PROMPT
    index = PrefixIndex(n_tokens * _TOKEN_BYTES)
    number = 0
    while index.n_tokens + N_PROMPT <= n_tokens:
        _insert(index, _prompt(number))
        number += 1
    lookups, inserts = [], []
    for newest in range(number, number + _N_ROUNDS):
        lookups.append(_timed_us(partial(_look_up, index, _prompt(newest - 1))))
        prompt = _prompt(newest)
        n_known, saved = _saved(index, prompt)
        inserts.append(_timed_us(partial(index.insert, prompt, n_known, saved)))
    return IndexCosts(median(lookups), median(inserts), index.n_tokens)


def _prompt(number: int) -> list[TokenId]:
    """The number-th prompt; any two of a family begin with the same _N_COMMON tokens and then part."""
    family = [_token(number // _N_FAMILY, position) for position in range(_N_COMMON)]
    return family + [_token(-1 - number, position) for position in range(_N_COMMON, N_PROMPT)]


def _token(source: int, position: int) -> TokenId:
    """Some token; two sources differ in every position while their distance is no multiple of the vocabulary."""
    return TokenId((source * 7_919 + position * 10_007) % _N_VOCAB)


def _look_up(index: PrefixIndex, prompt: list[TokenId]) -> None:
    index.take(prompt, index.match(prompt))


def _insert(index: PrefixIndex, prompt: list[TokenId]) -> None:
    index.insert(prompt, *_saved(index, prompt))


def _saved(index: PrefixIndex, prompt: list[TokenId]) -> tuple[int, _NoCells]:
    n_known = index.match(prompt)
    return n_known, _NoCells(len(prompt) - n_known)


def _timed_us(action: Callable[[], None]) -> float:
    began_s = perf_counter()
    action()
    return (perf_counter() - began_s) * 1e6
