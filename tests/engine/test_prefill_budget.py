"""Prefill steps are as long as the gap between two tokens has room for, whatever they were before."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.prefill_budget import CAUTION, GRAIN, LEAST_SHARE, MOST_GAP, PrefillBudget

LAW = settings(max_examples=200)
TARGET_S = 0.15
TOKEN_S = st.floats(1e-4, 0.1)
DECODE_S = st.floats(0.0, 1.0)


def budget_of(chunk: int, *, is_fixed: bool = False) -> PrefillBudget:
    return PrefillBudget(chunk=chunk, widest_step=4 * chunk, itl_target_s=TARGET_S, is_fixed=is_fixed)


def prefill(budget: PrefillBudget, token_s: float) -> None:
    """A step of the present size, each token of which takes so long."""
    budget.prefill_took(budget.size, budget.size * token_s)


@LAW
@given(chunk=st.integers(1, 64), costs=st.lists(TOKEN_S, min_size=20, max_size=30))
def test_without_a_target_steps_only_grow(chunk: int, costs: list[float]) -> None:
    budget = PrefillBudget(chunk=chunk, widest_step=2 * chunk, itl_target_s=math.inf)
    for cost in costs:
        before = budget.size
        prefill(budget, cost)
        assert budget.size >= before
    assert budget.size > 2 * chunk - min(GRAIN, chunk)


@LAW
@given(chunk=st.integers(1, 64), costs=st.lists(TOKEN_S, max_size=4), token_s=TOKEN_S, decode_s=DECODE_S)
def test_steps_are_as_long_as_fits_whatever_they_took_before(
    chunk: int, costs: list[float], token_s: float, decode_s: float
) -> None:
    budget = budget_of(chunk)
    budget.decode_took(decode_s)
    for cost in costs:
        prefill(budget, cost)
    for _ in range(20):
        prefill(budget, token_s)
    grain = min(GRAIN, chunk)
    most_gap_s = MOST_GAP * TARGET_S
    n_fitting = max(most_gap_s - decode_s, most_gap_s * LEAST_SHARE) / token_s
    assert grain <= budget.size <= max(grain, n_fitting)
    assert budget.size > min(CAUTION * n_fitting, 2 * chunk) - 2 * grain


@LAW
@given(chunk=st.integers(1, 64), costs=st.lists(TOKEN_S, max_size=4), decode_s=DECODE_S)
def test_a_fixed_budget_depends_on_no_time(chunk: int, costs: list[float], decode_s: float) -> None:
    budget = budget_of(chunk, is_fixed=True)
    budget.decode_took(decode_s)
    for cost in costs:
        prefill(budget, cost)
    assert (budget.size, budget.widest, budget.grain) == (chunk, chunk, chunk)


def test_a_long_step_is_followed_by_one_that_fits_and_growth_is_careful() -> None:
    budget = budget_of(32)
    budget.decode_took(0.03)
    sizes = []
    for seconds in (0.1, 0.16, 0.15, 0.14, 0.08):
        budget.prefill_took(budget.size, seconds)
        sizes.append(budget.size)
    assert sizes == [40, 32, 32, 32, 40]


def test_the_end_of_a_prompt_says_little() -> None:
    """A few tokens take long for their number, because the weights are read once all the same."""
    budget = budget_of(32)
    budget.prefill_took(2, 0.016)
    assert budget.size == 32
