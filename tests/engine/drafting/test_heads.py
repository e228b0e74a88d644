"""A model's own next-token head: the same answers, and the same promises as of a draft model, with rows to read.

The rig checks in every step that there is a row for the token before each one that the head reads.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.drafting.draft_rig import DraftRig, Guesser
from tests.engine.drafting.step_costs import CPU, GPU, Costs, cheap, cost
from tests.engine.drafting.test_draft_model import CASES, LAW, OPERATIONS, Case, jobs
from tests.engine.fake_runner import Request, ToyModel
from worker.engine.drafting.speculation import MAX_LOST, N_INVESTED
from worker.limits import MAX_DRAFTS, MAX_HIDDEN_ROWS

NEAR = Guesser(of=ToyModel(n_seen=8), share=0.9)
"""The next token follows from the last eight, so a head that sees only the last tokens can be right."""


def rig_of(guesser: Guesser, costs: Costs, head_costs: Costs | None, **sizes: int) -> DraftRig:
    return DraftRig(guesser, costs, head_costs, is_head=True, **sizes)  # type: ignore[arg-type]  # sizes alone


def test_a_head_that_is_often_right_makes_jobs_faster() -> None:
    plain, drafting = (rig_of(NEAR, GPU, head) for head in (None, cheap(GPU)))
    for rig in (plain, drafting):
        rig.serve(jobs(3, 300))
    assert plain.now_s > 1.5 * drafting.now_s
    assert not drafting.warnings


def test_of_a_long_prompt_it_sees_the_last_tokens_alone() -> None:
    rig = rig_of(NEAR, GPU, cheap(GPU))
    rig.serve([Request(tuple(range(64)) * 20, 300)])
    assert sum(step.n_accepted for step in rig.steps) > 100
    n_sees = max(map(len, rig.draft.kv.held))
    assert MAX_HIDDEN_ROWS / 2 < n_sees <= MAX_HIDDEN_ROWS + 300


def test_a_job_whose_prompt_was_cached_is_drafted_for_from_its_first_token() -> None:
    """Cached tokens have no rows."""
    rig = rig_of(NEAR, GPU, cheap(GPU))
    prompt = tuple(range(64)) * 10
    for _ in range(2):
        rig.serve([Request(prompt, 200)])
    first, second = ([step for step in rig.steps if any(d.job == job for d in step.deltas)] for job in (0, 1))
    assert sum(step.n_accepted for step in second) > 0.5 * sum(step.n_accepted for step in first) > 0


def test_a_head_that_is_never_right_costs_nearly_nothing_over_many_jobs() -> None:
    wrong = replace(NEAR, share=0.0)
    plain, drafting = (rig_of(wrong, CPU, head) for head in (None, cheap(CPU)))
    for rig in (plain, drafting):
        for request in jobs(40, 100):
            rig.serve([request])
    assert drafting.now_s <= (1 + MAX_LOST) * plain.now_s


@pytest.mark.long
@LAW
@given(CASES)
def test_a_head_never_costs_more_than_a_fiftieth_and_a_trial(case: Case) -> None:
    head_costs = tuple((n, case.part * one) for n, one in case.costs)
    taken = []
    for costs in (None, head_costs):
        rig = rig_of(replace(NEAR, share=case.share), case.costs, costs)
        taken.append(rig.serve(jobs(case.n_jobs, case.n_tokens, case.n_prompt)))
    widest = min(1 + MAX_DRAFTS, case.costs[-1][0])
    trial_s = case.n_jobs * cost(case.costs, widest) + N_INVESTED * case.costs[0][1]
    assert taken[1] <= (1 + MAX_LOST) * taken[0] + trial_s


@settings(LAW, max_examples=40)
@given(OPERATIONS, st.integers(100, 300), st.integers(60, 400))
def test_every_job_has_the_tokens_that_it_has_alone(operations: list[Any], n_cells: int, n_head_cells: int) -> None:
    """While others come, pause and are cancelled, and however few cells the head has."""
    rig = rig_of(replace(NEAR, share=0.8), GPU, cheap(GPU), n_cells=n_cells, n_draft_cells=n_head_cells)
    rig.play(operations)


def test_a_head_that_fails_is_left_out_with_one_warning() -> None:
    rig = rig_of(NEAR, GPU, cheap(GPU))
    warning = rig.serve_until_it_fails(jobs(3, 400))
    assert warning.startswith("the next-token head has failed and is not asked any more: ")
