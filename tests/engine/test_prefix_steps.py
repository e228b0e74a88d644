"""PrefixIndex takes as many steps in a large index as in a small one: lines are counted, not seconds."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.engine.fake_cells import Memory, ids, index_of, numbered, remember
from worker.engine import prefix_tree as prefix
from worker.engine.prefix_tree import PrefixIndex
from worker.wire.jobs import TokenId


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
