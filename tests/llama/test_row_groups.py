"""Row groups: every row once and in order, as many rows as a group needs, and nothing left of those not read.

A width that is held costs little, and saves changes: laws over any jobs that come and end.
"""

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.llama.conftest import GREEDY, LoadRandom, MakeContext, context_on, fill, slice_of
from tests.llama.random_models import PLAIN, RECURRENT, SLIDING, Kind
from worker.engine.drafting.pricing import interpolated
from worker.engine.step import Slice
from worker.llama.batch import RowGroups
from worker.llama.context import Context
from worker.llama.held_width import MAX_SURPLUS, HeldWidth
from worker.llama.model import Model
from worker.llama.self_test import ROW_GROUPINGS, widths
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.wire.jobs import SlotId, TokenId
from worker.wire.load import RowCosts

FILLED = RowGroups(multiple=4, most=4)
FASTER = RowGroups(padded={2: 4, 3: 4, 7: 9})
"""A GPU may want these widths."""


def decode_of(n_rows: int, n_drafts: int = 0) -> list[Slice]:
    """The first one has the drafts."""
    return [Slice(SlotId(slot), 5, [TokenId(0)] * (1 + n_drafts * (slot == 0)), GREEDY) for slot in range(n_rows)]


@given(groups=st.sampled_from(ROW_GROUPINGS), n_rows=st.integers(1, 40))
def test_each_row_of_a_decode_step_is_in_one_group_and_each_group_is_whole(groups: RowGroups, n_rows: int) -> None:
    slices = decode_of(n_rows)
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
    slices = decode_of(n_rows, n_drafts)
    n_tokens = n_rows + n_drafts
    assert list(FASTER.split(slices)) == [slices]
    n_wanted = FASTER.padded.get(n_tokens, n_tokens)
    assert FASTER.n_padding(slices, n_spare) == (n_wanted - n_tokens if n_wanted <= n_spare else 0)


@given(n_slots=st.integers(1, MAX_SEQ_IDS))
def test_all_small_widths_are_tried_and_the_widest(n_slots: int) -> None:
    tried = widths(n_slots)
    assert tried[0] == 1
    assert tried[-1] == n_slots
    assert set(range(1, min(16, n_slots) + 1)) <= set(tried)
    assert list(tried) == sorted(set(tried))


# ── a width that is held ──────────────────────────────────────────────────────────────────────────

WIDEST = 12
MISTRAL: RowCosts = ((1, 3.5), (2, 4.2), (4, 5.3), (6, 6.4), (7, 7.1), (8, 7.1), (9, 7.1), (12, 7.5))
SMOLLM2: RowCosts = ((1, 1.2), (2, 1.4), (4, 1.6), (6, 1.7), (7, 1.75), (8, 1.8), (9, 3.1), (12, 3.4))
"""Milliseconds on an H100: docs/device-checks."""

costs = st.lists(st.floats(0.5, 20), min_size=WIDEST, max_size=WIDEST).map(
    lambda times: tuple((n, time) for n, time in enumerate(sorted(times), 1))
)
asked = st.lists(st.integers(0, WIDEST + 3), min_size=1, max_size=60)
"""The rows of one step after another; 0: a step of another kind."""


def played(held: HeldWidth, steps: list[int]) -> list[int]:
    """The width of each step, 0 for one of another kind."""
    widths = []
    for n_rows in steps:
        if n_rows:
            widths.append(held.of(n_rows))
        else:
            held.forget()
            widths.append(0)
    return widths


def n_changes(widths: list[int]) -> int:
    return sum(before != after for before, after in pairwise(widths))


@given(row_costs=costs | st.sampled_from((MISTRAL, SMOLLM2)), change_s=st.floats(0, 50), steps=asked)
def test_no_step_is_much_longer_and_all_together_by_no_more_than_changes_that_came(
    row_costs: RowCosts, change_s: float, steps: list[int]
) -> None:
    seconds = [0.0, *interpolated(row_costs), *[0.0] * 3]
    widths = played(HeldWidth(row_costs, change_s), steps)
    surplus = [seconds[width] - seconds[n] for width, n in zip(widths, steps, strict=True)]
    for before, width, n_rows, more_s in zip([0, *widths], widths, steps, surplus, strict=False):
        assert width in (n_rows, max(n_rows, before)), "only the width of the step before is kept"
        assert 0 <= more_s <= MAX_SURPLUS * seconds[n_rows] + 1e-9
    assert sum(surplus) <= change_s * n_changes(steps) + 1e-9
    assert n_changes(widths) <= n_changes(steps)


@given(steps=asked)
def test_rows_that_cost_nothing_are_kept_until_a_step_of_another_kind_comes(steps: list[int]) -> None:
    widths = played(HeldWidth(((1, 1.0), (WIDEST + 3, 1.0)), 0.0), steps)
    most = 0
    for n_rows, width in zip(steps, widths, strict=True):
        most = max(most, n_rows) if n_rows else 0
        assert width == most


@pytest.mark.parametrize(("row_costs", "ended"), [(MISTRAL, 8), (MISTRAL, 12), (SMOLLM2, 8), (SMOLLM2, 12)])
def test_the_end_of_one_of_many_jobs_changes_no_width_for_many_steps(row_costs: RowCosts, ended: int) -> None:
    widths = played(HeldWidth(row_costs, 1.3), [ended, *[ended - 1] * 8])
    assert widths == [ended] * 9


def test_a_width_that_costs_much_is_left_at_once() -> None:
    assert played(HeldWidth(SMOLLM2, 1e9), [9, 8, 3]) == [9, 8, 3]


@given(n_rows=st.integers(1, 8), n_spare=st.integers(0, 12))
def test_a_step_is_filled_up_to_the_width_that_is_held_where_there_are_cells(n_rows: int, n_spare: int) -> None:
    groups = RowGroups(padded={8: 9}, held=HeldWidth(((1, 1.0), (9, 1.0)), 0.0))
    assert groups.n_padding(decode_of(8), 100) == 1
    assert groups.n_padding(decode_of(n_rows), n_spare) == (9 - n_rows if n_spare >= 9 else 0)
    assert groups.n_padding([Slice(SlotId(0), 0, [TokenId(0)] * 5)], 100) == 0
    assert groups.n_padding(decode_of(3), 100) == 0, "the width is forgotten"


# ── on the real library ──────────────────────────────────────────────────────────────────────────


def turns(n: int, *contexts: Context) -> Iterator[list[NDArray[np.float32]]]:
    """The rows of each context after a prompt of three slots, in n decode steps."""
    for context, slot in product(contexts, range(3)):
        fill(context, slot, 20 + slot)
    for turn in range(n):
        slices = [slice_of(slot, 20 + slot + turn, [TokenId(40 + turn)]) for slot in range(3)]
        for context in contexts:
            context.decode(slices)
        yield [context.rows().copy() for context in contexts]


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, SLIDING, RECURRENT], ids=str)
def test_unread_rows_change_no_others_and_leave_no_cell(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """Products are row by row; the memory is full but for their cells."""
    model = load_random(kind)
    bare, filled = (make_context(model, n_seq_max=3, type_k="bf16", has_padding=True) for _ in range(2))
    filled.row_groups = FILLED
    for own, beside in turns(8, bare, filled):
        assert filled.kv.n_cells_used == bare.kv.n_cells_used
        assert filled.kv.count_tokens() == bare.kv.count_tokens()
        if kind.is_row_by_row:
            assert np.array_equal(own, beside)
        else:
            np.testing.assert_allclose(own, beside, rtol=0, atol=1e-3)


def padding(tiny: Model, n_slots: int) -> Context:
    return context_on(tiny, n_ctx=256, n_batch=256, n_seq_max=n_slots, has_padding=True)


def test_a_full_memory_has_cells_for_unread_rows(tiny: Model) -> None:
    context = padding(tiny, 1)
    context.row_groups = FILLED
    fill(context, 0, 252)
    context.decode([slice_of(0, 252, [TokenId(5)])])
    assert context.kv.n_cells_used == 253


@pytest.mark.parametrize(("n_slots", "can_pad"), [(8, True), (253, True), (254, False), (256, False)])
def test_a_context_whose_slots_leave_no_seq_id_cannot_fill_steps_up(
    tiny: Model, n_slots: int, *, can_pad: bool
) -> None:
    assert padding(tiny, n_slots).can_pad == can_pad


@pytest.mark.model
@pytest.mark.parametrize("kind", [PLAIN, SLIDING], ids=str)
def test_rows_that_only_save_time_need_no_slot_of_their_own(
    load_random: LoadRandom, make_context: MakeContext, kind: Kind
) -> None:
    """They go by the seq_id for copies: those made before and after are whole."""
    model = load_random(kind)
    plain, faster = (make_context(model, n_seq_max=3, type_k="bf16", n_ctx=256, n_batch=256) for _ in range(2))
    faster.row_groups = FASTER
    for own, beside in turns(4, plain, faster):
        np.testing.assert_allclose(own, beside, rtol=0, atol=1e-3)
        assert faster.kv.count_tokens() == plain.kv.count_tokens()
        saved = faster.kv.save(SlotId(0), 0)
        faster.kv.trim(SlotId(0), 0)
        faster.kv.load(SlotId(0), [saved], saved.n_tokens)
    room = faster.n_ctx - faster.kv.n_cells_used
    faster.decode([slice_of(0, 24, [TokenId(5)] * (room - 3))])
    faster.decode([slice_of(slot, faster.kv.n_cells(SlotId(slot)), [TokenId(5)]) for slot in range(3)])
    assert faster.kv.n_cells_used == faster.n_ctx, "a full memory has no cells for them, and the step runs as it is"
