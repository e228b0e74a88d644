"""PrefixIndex by example: what is given out, what is evicted first, and how many lines run (no seconds are counted).

An index whose parts no job holds owns all that is alive in its Memory (fake_cells.py).
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.engine.fake_cells import Cells, Memory, Tokens, ids, index_of, numbered, remember
from worker.engine import prefix_tree as prefix
from worker.engine.prefix_tree import PrefixIndex
from worker.wire.jobs import TokenId


def pieces(memory: Memory) -> list[Tokens]:
    return sorted(cells.tokens for cells in memory.alive)


A, B, C = (numbered(family, 10) for family in (100, 200, 300))


def test_inserting_what_is_known_already_is_the_callers_mistake() -> None:
    memory = Memory()
    index = index_of(memory, A)
    with pytest.raises(AssertionError):
        index.insert(A[:5], 5, memory.save(A, 5))


def test_cells_that_do_not_begin_where_the_match_ends_are_the_callers_mistake() -> None:
    memory = Memory()
    index = index_of(memory, A)
    longer = (*A, TokenId(1))
    with pytest.raises(AssertionError):
        index.insert(longer, 0, memory.save(longer, 0))


def test_taking_more_than_is_matched_is_the_callers_mistake() -> None:
    index = index_of(Memory(), A)
    with pytest.raises(AssertionError):
        index.take((*A, TokenId(1)), 11)


def test_parts_outlive_their_eviction_for_as_long_as_a_job_holds_them() -> None:
    memory = Memory()
    index = index_of(memory, A, limit_bytes=10 * len(A))
    parts = index.take(A, 10)
    remember(index, memory, B)
    assert index.match(A) == 0
    assert [part.tokens for part in parts if isinstance(part, Cells)] == [A]
    parts.clear()
    assert memory.n_alive_bytes == index.n_bytes


def test_taking_is_a_use() -> None:
    memory = Memory()
    index = index_of(memory, A, B, limit_bytes=200)
    index.take(A, 3)
    remember(index, memory, C)
    assert pieces(memory) == [A, C]


def test_matching_is_no_use() -> None:
    memory = Memory()
    index = index_of(memory, A, B, limit_bytes=200)
    assert index.match(A) == 10
    remember(index, memory, C)
    assert pieces(memory) == [B, C]


@pytest.mark.parametrize(
    ("n_uses_between", "goes"),
    [
        pytest.param(0, "large", id="ages 2 and 1"),
        pytest.param(20, "large", id="ages 22 and 1, sizes 1 and 32: 22 < 32"),
        pytest.param(40, "small", id="ages 42 and 1, sizes 1 and 32: 42 > 32"),
    ],
)
def test_the_greatest_age_times_bytes_goes(n_uses_between: int, goes: str) -> None:
    memory = Memory()
    small, large, new = numbered(100, 4), numbered(200, 128), numbered(300, 4)
    index = index_of(memory, small, limit_bytes=10 * (4 + 128 + 3))
    for _ in range(n_uses_between):
        index.take(numbered(400, 1), 0)
    remember(index, memory, large)
    remember(index, memory, new)
    assert pieces(memory) == sorted([new, large if goes == "small" else small])


def test_using_a_continuation_uses_its_prefix() -> None:
    memory = Memory()
    trunk, other = numbered(100, 8), numbered(200, 8)
    index = index_of(memory, trunk, (*trunk, *numbered(1, 32)), other, limit_bytes=10 * 48)
    index.take((*trunk, *numbered(1, 32)), 40)
    remember(index, memory, numbered(300, 8))
    assert pieces(memory) == sorted([trunk, other, numbered(300, 8)])
    remember(index, memory, numbered(400, 32))
    assert pieces(memory) == sorted([trunk, numbered(300, 8), numbered(400, 32)])


def test_the_rest_of_a_split_edge_keeps_its_age() -> None:
    memory = Memory()
    index = index_of(memory, A, B, limit_bytes=200)
    remember(index, memory, (*A[:4], *numbered(1, 6)))
    assert pieces(memory) == sorted([A[:4], numbered(1, 6), B]), "2 × 60 > 1 × 100; had it become new, B would be gone"


def test_a_path_may_be_deeper_than_python_can_recurse() -> None:
    memory = Memory()
    tokens = ids(range(sys.getrecursionlimit() + 100))
    index = index_of(memory, *(tokens[: n + 1] for n in range(len(tokens))), limit_bytes=10 * len(tokens))
    assert index.match(tokens) == len(tokens) == len(index.take(tokens, len(tokens)))
    remember(index, memory, numbered(1 << 20, len(tokens)))
    assert pieces(memory) == [numbered(1 << 20, len(tokens))]


def lines_run(action: Callable[[], object]) -> int:
    """The lines of prefix_tree.py that run: a loop over nodes, leaves or tokens shows, however busy the machine is."""
    n_lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:  # sys.settrace passes Any, and wants it back
        nonlocal n_lines
        n_lines += event == "line"
        return trace if frame.f_code.co_filename == prefix.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return n_lines


def full_index(n_tokens: int) -> PrefixIndex:
    """100 new tokens a sequence, in every fifth behind the same 50, and no room for another."""
    sequences = [ids([0] * 50 * (i % 5 == 0) + [i + 1] * 100) for i in range(n_tokens // 100)]
    return index_of(Memory(), *sequences, limit_bytes=10 * n_tokens)


def steps(index: PrefixIndex) -> dict[str, int]:
    memory = Memory()
    known, new = ids([0] * 50), ids([0] * 25 + [TokenId(1 << 20)] * 100)
    return {
        "match": lines_run(lambda: index.match(new)),
        "take": lines_run(lambda: index.take(known, 50)),
        "insert, split and evict": lines_run(lambda: remember(index, memory, new)),
    }


def test_an_index_a_hundred_times_as_large_takes_about_as_many_steps() -> None:
    few, many = steps(full_index(10_000)), steps(full_index(1_000_000))
    assert [name for name in few if many[name] > 1.2 * few[name]] == [], (few, many)


@pytest.mark.parametrize("n_tokens", [100, 10_000])
def test_a_long_edge_is_compared_without_a_step_per_token(n_tokens: int) -> None:
    tokens = numbered(1, n_tokens)
    index = index_of(Memory(), tokens)
    query = (*tokens[:-1], TokenId(0))
    assert index.match(query) == n_tokens - 1
    assert lines_run(lambda: index.match(query)) < 120
