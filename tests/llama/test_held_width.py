"""A width that is held costs little, and saves changes: laws over any jobs that come and end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llama.conftest import GREEDY
from worker.engine.drafting.pricing import interpolated
from worker.engine.step import Slice
from worker.llama.batch import RowGroups
from worker.llama.held_width import MAX_SURPLUS, HeldWidth
from worker.wire.jobs import SlotId, TokenId
from worker.wire.load import RowCosts

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
    assert groups.n_padding(prompt_of(5), 100) == 0
    assert groups.n_padding(decode_of(3), 100) == 0, "the width is forgotten"


def decode_of(n_rows: int) -> list[Slice]:
    return [Slice(SlotId(slot), 5, [TokenId(0)], GREEDY) for slot in range(n_rows)]


def prompt_of(n_tokens: int) -> list[Slice]:
    return [Slice(SlotId(0), 0, [TokenId(0)] * n_tokens)]
