"""A draft model, or the model's own next-token head: the same answers, faster where it pays, and hardly slower where it
does not. The rig checks in every step that there is a row for the token before each one that a head reads.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.drafting.draft_rig import CPU, GPU, ITL_TARGET_S, Costs, DraftRig, Guesser, cheap, cost
from tests.engine.fake_runner import Request, ToyModel
from worker.engine.drafting.draft_model import CATCH_UP_SHARE
from worker.engine.drafting.pricing import MAX_LOST, N_INVESTED
from worker.limits import MAX_DRAFTS, MAX_HIDDEN_ROWS

LAW = settings(max_examples=25)
QUICK: Costs = tuple((n, seconds / 5) for n, seconds in CPU)
SLOW: Costs = tuple((n, 0.9 * seconds) for n, seconds in CPU)
NEAR = Guesser(of=ToyModel(n_seen=8), share=0.9)
"""The next token follows from the last eight, so a head that sees only the last tokens can be right."""
EACH_KIND = pytest.mark.parametrize("is_head", [False, True])


def seconds(share: float, costs: Costs, draft_costs: Costs | None, requests: list[Request]) -> float:
    return DraftRig(Guesser(share=share), costs, draft_costs).serve(requests)


def jobs(n_jobs: int, n_tokens: int, n_prompt: int = 8) -> list[Request]:
    return [Request(tuple(range(i, i + n_prompt)), n_tokens) for i in range(n_jobs)]


@pytest.mark.parametrize(("share", "least"), [(1.0, 1.15), (0.95, 1.05)])
def test_drafts_that_are_nearly_always_right_make_a_job_faster(share: float, least: float) -> None:
    """No draft, however good, makes a job more than 1.36 times as fast on two cores at these costs."""
    plain_s = seconds(share, CPU, None, jobs(1, 300))
    assert plain_s / seconds(share, CPU, QUICK, jobs(1, 300)) >= least


def test_a_draft_model_with_recurrent_state_drafts_as_much_as_another() -> None:
    """It goes back without a copy, and computes the right tokens again with the next draft."""
    rigs = [DraftRig(Guesser(share=0.9), GPU, cheap(GPU), has_state=has_state) for has_state in (False, True)]
    for rig in rigs:
        for request in jobs(3, 200):
            rig.submit(request)
        rig.run()
        rig.check()
        assert not rig.warnings
    cut, stateful = (sum(step.n_accepted for step in rig.steps) for rig in rigs)
    assert stateful > 0.9 * cut > 0
    assert not any(rigs[1].draft.kv.held[4:]), "spare slots are empty between two steps"


def test_drafts_pay_for_many_jobs_where_rows_are_nearly_free() -> None:
    tenth = tuple((n, one / 10) for n, one in GPU)
    assert seconds(0.9, GPU, None, jobs(4, 300)) / seconds(0.9, GPU, tenth, jobs(4, 300)) >= 1.8


@dataclass(frozen=True, slots=True)
class Case:
    share: float
    part: float
    """The cost of the draft model's step, divided by that of the model's."""
    costs: Costs
    n_jobs: int
    n_tokens: int
    n_prompt: int
    is_head: bool


CASES = st.builds(
    Case,
    st.floats(0, 1),
    st.floats(0.02, 1.5),
    st.sampled_from((CPU, GPU)),
    st.integers(1, 4),
    st.integers(1, 150),
    st.integers(1, 100),
    st.booleans(),
)


@pytest.mark.long
@LAW
@given(CASES)
def test_a_draft_model_never_costs_more_than_a_fiftieth_and_a_trial(case: Case) -> None:
    """However often it is right and however long it takes. A trial is what each job may lose at once, and what may be
    spent on reading along."""
    taken = []
    for draft_costs in (None, tuple((n, case.part * one) for n, one in case.costs)):
        rig = DraftRig(replace(NEAR, share=case.share), case.costs, draft_costs, is_head=case.is_head)
        taken.append(rig.serve(jobs(case.n_jobs, case.n_tokens, case.n_prompt)))
    widest = min(1 + MAX_DRAFTS, case.costs[-1][0])
    trial_s = case.n_jobs * cost(case.costs, widest) + N_INVESTED * case.costs[0][1]
    assert taken[1] <= (1 + MAX_LOST) * taken[0] + trial_s


@EACH_KIND
@pytest.mark.parametrize("costs", [QUICK, SLOW])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_draft_model_that_does_not_pay_costs_nearly_nothing_over_many_jobs(
    share: float, costs: Costs, *, is_head: bool
) -> None:
    """The experience outlives the job."""
    guesser = replace(NEAR, share=share)
    plain, drafting = (DraftRig(guesser, CPU, draft_costs, is_head=is_head) for draft_costs in (None, costs))
    for rig in (plain, drafting):
        for request in jobs(40, 100):
            rig.serve([request])
    assert drafting.now_s <= (1 + MAX_LOST) * plain.now_s


def test_a_draft_model_that_cannot_pay_is_never_asked() -> None:
    rig = DraftRig(Guesser(), CPU, SLOW)
    rig.submit(jobs(1, 100)[0])
    rig.run()
    assert not rig.draft.ran


def test_a_draft_model_that_is_not_sure_drafts_nothing_and_is_soon_not_asked() -> None:
    rig = DraftRig(Guesser(probability=0.4), CPU, QUICK)
    rig.submit(jobs(1, 400)[0])
    rig.run()
    assert not any(step.n_drafted for step in rig.steps)
    assert 0 < len(rig.draft.ran) < 40


def test_a_long_prompt_is_read_along_in_parts_that_delay_no_other_job() -> None:
    """The draft model reads it only if the answer may be long enough."""
    rig = DraftRig(Guesser(), GPU, cheap(GPU))
    rig.submit(Request(tuple(range(64)) * 20, 400))
    rig.run()
    rig.check()
    parts_s = [seconds for kind, seconds in rig.draft_steps if kind == "prefill"]
    assert len(parts_s) > 1
    assert max(parts_s) <= CATCH_UP_SHARE * ITL_TARGET_S
    short = DraftRig(Guesser(), CPU, QUICK)
    short.submit(Request(tuple(range(64)) * 20, 16))
    short.run()
    assert not short.draft.ran


OPERATIONS = st.lists(
    st.one_of(
        st.builds(Request, st.lists(st.integers(0, 63), min_size=1, max_size=40).map(tuple), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("step"), st.integers(1, 20)),
    ),
    max_size=30,
)


@pytest.mark.long
@LAW
@given(OPERATIONS, st.integers(100, 300), st.integers(60, 400), st.sampled_from(("has_state", "is_head", "")))
def test_every_job_has_the_tokens_that_it_has_alone(
    operations: list[Any], n_cells: int, n_draft_cells: int, kind: str
) -> None:
    """While others come, pause and are cancelled, and however few cells the draft model has."""
    kinds = {kind: True} if kind else {}
    DraftRig(NEAR, GPU, cheap(GPU), n_cells=n_cells, n_draft_cells=n_draft_cells, **kinds).play(operations)


@EACH_KIND
def test_a_draft_model_that_fails_is_left_out_with_one_warning(*, is_head: bool) -> None:
    rig = DraftRig(NEAR, GPU, cheap(GPU), is_head=is_head)
    warning = rig.serve_until_it_fails(jobs(3, 400))
    kind = "next-token head" if is_head else "draft model"
    assert warning.startswith(f"the {kind} has failed and is not asked any more: ")
    n_before = len(rig.draft.ran)
    rig.serve([jobs(1, 50)[0]])
    assert len(rig.draft.ran) == n_before


def test_a_head_sees_the_last_tokens_of_a_long_prompt_alone() -> None:
    rig = DraftRig(NEAR, GPU, cheap(GPU), is_head=True)
    rig.serve([Request(tuple(range(64)) * 20, 300)])
    assert sum(step.n_accepted for step in rig.steps) > 100
    n_sees = max(map(len, rig.draft.kv.held))
    assert MAX_HIDDEN_ROWS / 2 < n_sees <= MAX_HIDDEN_ROWS + 300


def test_a_head_drafts_for_a_job_whose_prompt_was_cached_from_its_first_token() -> None:
    """Cached tokens have no rows."""
    rig = DraftRig(NEAR, GPU, cheap(GPU), is_head=True)
    for _ in range(2):
        rig.serve([Request(tuple(range(64)) * 10, 200)])
    first, second = ([step for step in rig.steps if any(d.job == job for d in step.deltas)] for job in (0, 1))
    assert sum(step.n_accepted for step in second) > 0.5 * sum(step.n_accepted for step in first) > 0


def test_after_the_draft_model_becomes_right_it_is_asked_again() -> None:
    """A job in which it was of no use for long, and then is of some."""
    early, late = (DraftRig(Guesser(useless_until=n), GPU, cheap(GPU)) for n in (0, 200))
    for rig in (early, late):
        rig.submit(jobs(1, 1_000)[0])
        rig.run()
    assert sum(step.n_accepted for step in late.steps) > 0.3 * sum(step.n_accepted for step in early.steps)
