"""Row groups: every row once and in order, as many rows as a group needs, and nothing left of those not read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.llama.conftest import GREEDY, LoadRandom, MakeContext, slice_of
from tests.llama.random_models import PLAIN, RECURRENT, SLIDING, Kind
from worker.engine.step import Slice
from worker.llama.batch import RowGroups
from worker.llama.context import Context
from worker.llama.model import Model
from worker.llama.self_test import ROW_GROUPINGS, in_words, widths
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.wire.jobs import SlotId, TokenId

FILLED = RowGroups(multiple=4, most=4)
FASTER = RowGroups(padded={2: 4, 3: 4, 7: 9})
"""A GPU may want these widths."""


@given(groups=st.sampled_from(ROW_GROUPINGS), n_rows=st.integers(1, 40))
def test_each_row_of_a_decode_step_is_in_one_group_and_each_group_is_whole(groups: RowGroups, n_rows: int) -> None:
    slices = [Slice(SlotId(slot), 5, [TokenId(0)], GREEDY) for slot in range(n_rows)]
    parts = list(groups.split(slices))
    assert [slice_ for part in parts for slice_ in part] == slices
    for part in parts:
        assert len(part) <= (groups.most or n_rows)
        assert (len(part) + groups.n_padding(part, 0)) % groups.multiple == 0
        assert groups.n_padding(part, 0) < groups.multiple


@pytest.mark.parametrize("groups", ROW_GROUPINGS)
def test_a_step_of_prompts_or_of_guesses_is_left_as_it_is(groups: RowGroups) -> None:
    slices = [Slice(SlotId(slot), 0, [TokenId(0)] * (1 + (slot == 3))) for slot in range(9)]
    assert list(groups.split(slices)) == [slices]
    assert groups.n_padding(slices, 0) == 0


@given(n_rows=st.integers(1, 40), n_drafts=st.integers(0, 3), n_spare=st.integers(0, 50))
def test_steps_are_filled_up_to_the_width_that_takes_less_time_where_there_are_cells(
    n_rows: int, n_drafts: int, n_spare: int
) -> None:
    slices = [Slice(SlotId(slot), 5, [TokenId(0)] * (1 + n_drafts * (slot == 0)), GREEDY) for slot in range(n_rows)]
    n_tokens = n_rows + n_drafts
    assert list(FASTER.split(slices)) == [slices]
    n_wanted = FASTER.padded.get(n_tokens, n_tokens)
    assert FASTER.n_padding(slices, n_spare) == (n_wanted - n_tokens if n_wanted <= n_spare else 0)


@pytest.mark.parametrize(("found", "words"), [((8,), "8"), ((2, 3, 4, 8), "2 to 4 and 8"), ((1, 3, 5), "1, 3 and 5")])
def test_widths_are_reported_in_words(found: tuple[int, ...], words: str) -> None:
    assert in_words(found) == words


@given(n_slots=st.integers(1, MAX_SEQ_IDS))
def test_all_small_widths_are_tried_and_the_widest(n_slots: int) -> None:
    tried = widths(n_slots)
    assert tried[0] == 1
    assert tried[-1] == n_slots
    assert set(range(1, min(16, n_slots) + 1)) <= set(tried)
    assert list(tried) == sorted(set(tried))


def rows_of(context: Context, slices: list[Slice]) -> NDArray[np.float32]:
    context.decode(slices)
    return context.rows().copy()


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, SLIDING, RECURRENT], ids=str)
def test_unread_rows_change_no_others_and_leave_no_cell(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """Products are row by row; the memory is full but for their cells."""
    model = load_random(kind)
    bare, filled = (context_of(make_context, model, groups) for groups in (RowGroups(), FILLED))
    for context in (bare, filled):
        for slot in range(3):
            context.decode([slice_of(slot, 0, [TokenId(slot + 5)] * (20 + slot))])
    for turn in range(8):
        slices = [slice_of(slot, 20 + slot + turn, [TokenId(40 + turn)]) for slot in range(3)]
        own, beside = (rows_of(context, slices) for context in (bare, filled))
        assert filled.kv.n_cells_used == bare.kv.n_cells_used
        assert filled.kv.count_tokens() == bare.kv.count_tokens()
        if kind.is_row_by_row:
            assert np.array_equal(own, beside)
        else:
            np.testing.assert_allclose(own, beside, rtol=0, atol=1e-3)


def test_a_full_memory_has_cells_for_unread_rows(tiny: Model) -> None:
    context = Context(
        tiny, n_ctx=256, n_batch=256, n_ubatch=64, n_seq_max=1, n_threads=1, n_threads_batch=1, has_padding=True
    )
    context.row_groups = FILLED
    context.decode([slice_of(0, 0, [TokenId(5)] * 252)])
    context.decode([slice_of(0, 252, [TokenId(5)])])
    assert context.kv.n_cells_used == 253


@pytest.mark.parametrize(("n_slots", "can_pad"), [(8, True), (253, True), (254, False), (256, False)])
def test_a_context_whose_slots_leave_no_seq_id_cannot_fill_steps_up(
    tiny: Model, n_slots: int, *, can_pad: bool
) -> None:
    context = Context(
        tiny, n_ctx=256, n_batch=256, n_ubatch=64, n_seq_max=n_slots, n_threads=1, n_threads_batch=1, has_padding=True
    )
    assert context.can_pad == can_pad


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, SLIDING], ids=str)
def test_rows_that_only_save_time_need_no_slot_of_their_own(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """They go by the seq_id for copies: those made before and after are whole."""
    model = load_random(kind)
    plain, faster = (make_context(model, n_seq_max=3, type_k="bf16", n_ctx=256, n_batch=256) for _ in range(2))
    faster.row_groups = FASTER
    for context in (plain, faster):
        for slot in range(3):
            context.decode([slice_of(slot, 0, [TokenId(slot + 5)] * (20 + slot))])
    for turn in range(4):
        slices = [slice_of(slot, 20 + slot + turn, [TokenId(40 + turn)]) for slot in range(3)]
        own, beside = (rows_of(context, slices) for context in (plain, faster))
        np.testing.assert_allclose(own, beside, rtol=0, atol=1e-3)
        assert faster.kv.count_tokens() == plain.kv.count_tokens()
        saved = faster.kv.save(SlotId(0), 0)
        faster.kv.trim(SlotId(0), 0)
        faster.kv.load(SlotId(0), [saved], saved.n_tokens)
    room = faster.n_ctx - faster.kv.n_cells_used
    faster.decode([slice_of(0, 24, [TokenId(5)] * (room - 3))])
    faster.decode([slice_of(slot, faster.kv.n_cells(SlotId(slot)), [TokenId(5)]) for slot in range(3)])
    assert faster.kv.n_cells_used == faster.n_ctx, "a full memory has no cells for them, and the step runs as it is"


def context_of(make_context: MakeContext, model: Model, groups: RowGroups) -> Context:
    context = make_context(model, n_seq_max=3, type_k="bf16", has_padding=True)
    context.row_groups = groups
    return context
