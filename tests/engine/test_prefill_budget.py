"""Prefill steps are as long as the gap between two tokens has room for, whatever they were before."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.config import EngineConfig
from worker.engine.prefill_budget import (
    EARNED_SHARE,
    GRAIN,
    LONGEST_GAP,
    MAX_GAP,
    MIN_CHUNK,
    MIN_DECODES,
    TILE,
    PrefillBudget,
    widest_step_of,
)

LAW = settings(max_examples=200)
TARGET_S = 0.15
TOKEN_S = st.floats(1e-4, 0.1)
BASE_S = st.floats(0.0, 1.0)
"""The time of a step beside that of its tokens."""
WIDEST = 512


def budget_of(chunk: int, *, target_s: float = TARGET_S, is_fixed: bool = False) -> PrefillBudget:
    config = EngineConfig(
        n_slots=1,
        n_cells=WIDEST,
        context_length=WIDEST,
        chunk=chunk,
        widest_step=WIDEST,
        itl_target_s=target_s,
        is_deterministic=is_fixed,
    )
    return PrefillBudget(config, can_abort=True)


def prefill(budget: PrefillBudget, token_s: float, n_whole: int = WIDEST, base_s: float = 0.0) -> int:
    """A step of the present size at a prompt's beginning, each token of which takes so long, and its size."""
    size = budget.size_beside(n_whole, 0)
    budget.took_beside(size, size / 2, base_s + size * token_s)
    return size


@LAW
@given(chunk=st.integers(1, 64), costs=st.lists(TOKEN_S, min_size=1, max_size=30))
def test_without_a_target_steps_only_grow(chunk: int, costs: list[float]) -> None:
    budget = budget_of(chunk, target_s=math.inf)
    sizes = [prefill(budget, cost) for cost in costs * 40]
    assert sizes == sorted(sizes)
    assert sizes[-1] > WIDEST - budget.grain


@LAW
@given(
    chunk=st.integers(1, 64),
    costs=st.lists(TOKEN_S, max_size=4),
    token_s=TOKEN_S,
    base_s=BASE_S,
    n_streams=st.integers(1, 8),
    n_whole=st.integers(1, 4000),
)
def test_steps_are_as_long_as_the_gap_has_room_for_whatever_they_took_before(
    *, chunk: int, costs: list[float], token_s: float, base_s: float, n_streams: int, n_whole: int
) -> None:
    budget = budget_of(chunk)
    budget.decode_took(base_s)
    decode_s = base_s + n_streams * token_s
    budget.decode_took(decode_s)
    for cost in costs:
        prefill(budget, cost, base_s=base_s)
    size = [prefill(budget, token_s, n_whole, base_s) for _ in range(60)][-1]
    min_s = max(MAX_GAP * TARGET_S - decode_s, MIN_DECODES * decode_s)
    max_s = max(min_s, LONGEST_GAP * TARGET_S - decode_s)
    assert budget.grain <= size <= max(MIN_CHUNK, 1.01 * (max_s - base_s) / token_s)
    n_fitting = min(WIDEST, 0.9 * (min_s - base_s) / token_s)
    assert size > min(n_fitting, TILE if n_fitting < 1.5 * TILE else WIDEST) - 2 * budget.grain


@LAW
@given(token_s=st.floats(1e-3, 0.1), base_s=BASE_S, n_whole=st.integers(1, 4000))
def test_a_gap_is_longer_than_the_target_allows_only_for_long_prompts_and_long_decode_steps(
    token_s: float, base_s: float, n_whole: int
) -> None:
    """A tenth of the time that the streams would wait if the prompts were read first, or the decode steps themselves
    leave no other way."""
    budget = budget_of(16)
    decode_s = base_s + token_s
    budget.decode_took(decode_s)
    size = [prefill(budget, token_s, n_whole, base_s) for _ in range(40)][-1]
    gap_s = base_s + size * token_s + decode_s
    longest_s = max(
        MAX_GAP * TARGET_S,
        min(0.1 * (base_s + 2 * n_whole * token_s), LONGEST_GAP * TARGET_S),
        (1 + MIN_DECODES) * decode_s,
        base_s + MIN_CHUNK * token_s + decode_s,
    )
    assert gap_s <= 1.01 * longest_s


@LAW
@given(chunk=st.integers(1, 64), costs=st.lists(TOKEN_S, max_size=4), decode_s=BASE_S, depth=st.integers(0, 9000))
def test_a_fixed_budget_depends_on_no_time(chunk: int, costs: list[float], decode_s: float, depth: int) -> None:
    budget = budget_of(chunk, is_fixed=True)
    budget.decode_took(decode_s)
    for cost in costs:
        assert prefill(budget, cost) == chunk
    assert (budget.size_beside(9000, depth), budget.widest, budget.grain, budget.can_abort) == (
        chunk,
        chunk,
        chunk,
        False,
    )


def test_a_long_step_is_followed_by_one_that_fits() -> None:
    budget = budget_of(32)
    budget.decode_took(0.03)
    fitting = [prefill(budget, 0.003, n_whole=100) for _ in range(3)]
    slowed = [prefill(budget, 0.006, n_whole=100) for _ in range(3)]
    assert fitting[0] == 32
    assert fitting[-1] in range(40, 57)
    assert slowed[0] > 40, "the budget could not know"
    assert all(size * 0.006 + 0.03 <= 1.5 * TARGET_S for size in slowed[1:])


def test_the_end_of_a_prompt_says_little() -> None:
    """A few tokens take long for their number, because the weights are read once all the same."""
    undisturbed, budget = budget_of(32), budget_of(32)
    for each in (undisturbed, budget):
        prefill(each, 0.003)
        each.size_beside(100, 0)
    budget.took_beside(2, 900.0, 0.016)
    assert budget.size_beside(100, 0) == undisturbed.size_beside(100, 0)


def test_a_few_tokens_more_than_a_tile_are_left_for_the_next_step() -> None:
    budget = budget_of(TILE, target_s=0.2)
    sizes = dict.fromkeys((1e-3, 2.5e-3, 2.9e-3, 3.6e-3, 5e-3), 0)
    for token_s in sizes:
        for _ in range(40):
            sizes[token_s] = prefill(budget, token_s)
    n_fitting = [MAX_GAP * 0.2 / token_s for token_s in sizes]
    assert [round(n) for n in n_fitting] == [260, 104, 90, 72, 52]
    assert [size // GRAIN for size in sizes.values()] == [32, 13, 8, 8, 6]


@LAW
@given(n_computed=st.integers(0, 20_000), steps=st.lists(st.integers(1, WIDEST), max_size=30))
def test_what_a_prompt_loses_is_bounded_by_a_micro_batch_and_a_share_of_what_it_gained(
    n_computed: int, steps: list[int]
) -> None:
    """Every step that may be stopped is stopped at its end."""
    budget, n_lost = budget_of(32), 0
    for size in steps:
        if size <= budget.most_lost(n_computed, n_lost):
            n_lost += size
    assert n_lost <= WIDEST + EARNED_SHARE * n_computed
    assert budget.most_lost(0, 0) == WIDEST, "at first it is a whole one"


@pytest.mark.parametrize(
    ("chunk", "n_ubatch", "can_abort", "widest"),
    [(16, 512, True, 512), (64, 256, True, 256), (16, 512, False, 16), (64, 512, False, 256), (512, 512, False, 512)],
)
def test_a_step_that_cannot_be_stopped_is_no_longer_than_a_newcomer_can_wait(
    *, chunk: int, n_ubatch: int, can_abort: bool, widest: int
) -> None:
    assert widest_step_of(chunk, n_ubatch, can_abort=can_abort) == widest
