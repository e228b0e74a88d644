"""Saved cells: nothing is lost or changed on the way out, apart, together and back."""

import struct

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.conftest import GREEDY, LoadRandom, MakeContext
from tests.llama.random_models import PLAIN
from worker.engine.step import Slice
from worker.llama.context import Context
from worker.server.saved.copies import Block, SavedCells, chained, lasting, parse_seq_state
from worker.wire.jobs import SlotId, TokenId

MAGIC, SEQ_ID = 0xAF143CD8, 7


def state_of(positions: list[int], *, is_transposed: bool) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """One layer: K of three bytes a cell, V of two rows of two bytes; each byte shows its cell and place."""
    n = len(positions)
    cells = b"".join(struct.pack("<iIi", pos, 1, SEQ_ID) for pos in positions)
    k = bytes(10 * pos + i for pos in positions for i in range(3))
    if is_transposed:
        rows = bytes(10 * pos + 3 + 2 * row + i for row in (0, 1) for pos in positions for i in (0, 1))
        v = struct.pack("<iII", 1, 2, 2) + rows
    else:
        v = struct.pack("<iQ", 1, 4) + bytes(10 * pos + 3 + i for pos in positions for i in range(4))
    head = struct.pack("<IiII", MAGIC, SEQ_ID, 1, n)
    return np.frombuffer(head + cells + struct.pack("<IIiQ", is_transposed, 1, 1, 3) + k + v, np.uint8)


def blocks(saved: SavedCells) -> list[Block]:
    return [block for cache in saved.state.caches for block in cache.k + cache.v]


def saved_of(positions: list[int], *, is_transposed: bool) -> SavedCells:
    return SavedCells([state_of(positions, is_transposed=is_transposed)])


@settings(max_examples=50)
@given(n=st.integers(2, 20), cuts=st.lists(st.integers(1, 19), max_size=4), is_transposed=st.booleans(), data=st.data())
def test_split_and_chained_again_it_is_the_same(
    n: int, cuts: list[int], is_transposed: bool, data: st.DataObject
) -> None:
    parts = [saved_of(list(range(n)), is_transposed=is_transposed)]
    for cut in cuts:
        if 0 < cut < parts[-1].n_tokens:
            parts[-1:] = parts[-1].split(cut)
    assert sum(part.n_tokens for part in parts) == n
    n_wanted = data.draw(st.integers(1, n))
    expected = state_of(list(range(n_wanted)), is_transposed=is_transposed)
    assert chained(parts, n_wanted).tobytes() == expected.tobytes()


def test_bytes_are_counted_exactly_and_parts_are_copies() -> None:
    whole = saved_of([0, 1, 2, 3], is_transposed=True)
    first, rest = whole.split(1)
    for part, positions in ((whole, [0, 1, 2, 3]), (first, [0]), (rest, [1, 2, 3])):
        assert part.n_bytes == state_of(positions, is_transposed=True).nbytes
    for part in (first, rest):
        assert not np.shares_memory(part.state.caches[0].k[0].items, whole.state.caches[0].k[0].items)
    assert (rest.start, rest.n_tokens) == (1, 3)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_cells_that_lay_in_disorder_are_put_in_order(is_transposed: bool) -> None:
    saved = saved_of([3, 0, 2, 1], is_transposed=is_transposed)
    assert chained([saved], 4).tobytes() == state_of([0, 1, 2, 3], is_transposed=is_transposed).tobytes()


@pytest.mark.parametrize("n_tokens", [-1, 0, 4, 5])
def test_a_split_has_two_sides(n_tokens: int) -> None:
    with pytest.raises(ValueError, match="4 saved cells cannot be split"):
        saved_of([0, 1, 2, 3], is_transposed=False).split(n_tokens)


def test_parts_with_a_gap_are_refused() -> None:
    first, rest = saved_of([0, 1, 2, 3], is_transposed=False).split(1)
    for parts in ([rest], [first, first], [first, rest.split(1)[1]]):
        with pytest.raises(ValueError, match="do not follow"):
            chained(parts, 4)
    with pytest.raises(ValueError, match="4 cells are asked for; the saved ones are 1"):
        chained([first], 4)


def logits_after(context: Context, slot: int, start: int, tokens: list[TokenId]) -> bytes:
    context.decode([Slice(SlotId(slot), start, tokens, GREEDY)])
    return context.rows().tobytes()


@pytest.mark.model
@pytest.mark.parametrize(
    ("type_k", "type_v", "flash_attn"),
    [
        *[("f32", "f32", "on"), ("f16", "f16", "on"), ("bf16", "f16", "on"), ("bf16", "bf16", "on")],
        *[("q8_0", "f16", "on"), ("q8_0", "q8_0", "on"), ("q4_0", "q4_1", "on")],
        *[("f32", "f32", "off"), ("f16", "f16", "off"), ("bf16", "f16", "off"), ("q8_0", "f16", "off")],
    ],
)
def test_what_was_loaded_is_what_was_saved_whatever_the_cache_type(
    load_random: LoadRandom, make_context: MakeContext, type_k: str, type_v: str, flash_attn: str
) -> None:
    """V lies transposed without flash attention, which a quantised V needs."""
    context = make_context(load_random(PLAIN), type_k=type_k, type_v=type_v, flash_attn=flash_attn)
    tokens = [TokenId(3 + 7 * i % 250) for i in range(90)]
    context.decode([Slice(SlotId(0), 0, tokens)])
    saved, tail = context.kv.save(SlotId(0), 0), context.kv.save(SlotId(0), 60)
    expected = logits_after(context, 0, 90, tokens[:5])
    context.kv.clear()
    context.kv.load(SlotId(1), [*saved.split(20)[:1], saved.split(20)[1].split(40)[0], tail], 90)
    again = context.kv.save(SlotId(1), 0)
    for ours, theirs in zip(blocks(saved), blocks(again), strict=True):
        assert ours.items.tobytes() == theirs.items.tobytes()
    assert logits_after(context, 1, 90, tokens[:5]) == expected


@pytest.mark.model
def test_a_prefix_of_what_was_saved_can_be_gone_on_from(load_random: LoadRandom, make_context: MakeContext) -> None:
    context = make_context(load_random(PLAIN), type_k="bf16")
    tokens = [TokenId(3 + 7 * i % 250) for i in range(90)]
    expected = logits_after(context, 0, 0, tokens[:50])
    context.kv.clear()
    context.decode([Slice(SlotId(0), 0, tokens)])
    saved = context.kv.save(SlotId(0), 0)
    context.kv.load(SlotId(1), [saved], 49)
    assert logits_after(context, 1, 49, tokens[49:50]) == expected


@pytest.mark.model
def test_a_copy_outlives_what_the_context_does_next(load_random: LoadRandom, make_context: MakeContext) -> None:
    context = make_context(load_random(PLAIN))
    context.decode([Slice(SlotId(0), 0, [TokenId(9)] * 50)])
    saved = context.kv.save(SlotId(0), 0)
    before = chained([saved], 50).tobytes()
    context.kv.clear()
    context.decode([Slice(SlotId(0), 0, [TokenId(8)] * 90)])
    context.close()
    assert chained([saved], 50).tobytes() == before
    assert parse_seq_state(np.frombuffer(before, np.uint8)).n_cells == saved.n_tokens == 50


def test_memory_of_a_copy_goes_back_at_once_whatever_lies_around_it() -> None:
    process, n_bytes = psutil.Process(), 2**20
    before = process.memory_info().rss
    rooms = [lasting(n_bytes) for _ in range(100)]
    for room in rooms:
        room[:] = 1
    assert process.memory_info().rss - before > 90 * n_bytes
    del rooms[::2]
    assert process.memory_info().rss - before < 60 * n_bytes
