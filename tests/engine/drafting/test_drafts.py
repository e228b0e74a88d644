"""The worth of past drafts decides how many of their tokens a step takes."""

from itertools import accumulate, product
from math import log, prod
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engine.drafting.draft_rig import CPU, GPU, MATCHES, N_MOST, RIGHT, WRONG, Costs, cost, draft_of, row_costs
from worker.engine.drafting.pricing import (
    MAX_HELD_UP,
    MIN_GAIN,
    N_TIMED,
    Acceptance,
    Account,
    Draft,
    Proposal,
    Speculation,
)
from worker.wire.jobs import TokenId

LAW = settings(max_examples=200)


def judged(history: list[bool], n_matched: int) -> Acceptance:
    """An Acceptance that has seen draft tokens after such a match be right or wrong."""
    acceptance = Acceptance()
    for is_right in history:
        acceptance.saw(draft_of(1, n_matched), [RIGHT if is_right else WRONG])
    return acceptance


def proposal(history: list[bool], n_drafts: int, n_matched: int = 16) -> Proposal:
    return Proposal(Account(), judged(history, n_matched), draft_of(n_drafts, n_matched))


PROPOSALS = st.builds(proposal, st.lists(st.booleans(), max_size=40), st.integers(0, 20), MATCHES)
TRUSTED = [True] * 500


@pytest.mark.long
@LAW
@given(st.lists(st.booleans(), max_size=60), MATCHES)
def test_a_right_draft_raises_the_rate_and_a_wrong_one_lowers_it(history: list[bool], n_matched: int) -> None:
    before = judged(history, n_matched).rate(n_matched)
    assert 0 < judged([*history, False], n_matched).rate(n_matched) < before
    assert before < judged([*history, True], n_matched).rate(n_matched) <= 1


@LAW
@given(st.lists(st.integers(1, 40).map(TokenId), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 30))
def test_a_draft_teaches_the_same_whether_it_was_taken_or_not(
    tokens: list[TokenId], n_right: int, n_matched: int
) -> None:
    """The step that takes all of it, and the steps that take none and are proposed what is left."""
    drawn = [*tokens[:n_right], WRONG]
    at_once, one_by_one = Acceptance(), Acceptance()
    at_once.saw(Draft(tuple(tokens), n_matched), drawn)
    for i, token in enumerate(drawn):
        one_by_one.saw(Draft(tuple(tokens[i:]), n_matched + i), [token])
    assert [at_once.rate(n) for n in range(1, 60)] == [one_by_one.rate(n) for n in range(1, 60)]


def test_longer_matches_are_trusted_more_until_they_were_seen() -> None:
    rates = [Acceptance().rate(n) for n in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    assert rates[0] == 0.5


def test_short_matches_do_not_spoil_long_ones() -> None:
    acceptance = judged([False] * 50, n_matched=1)
    assert acceptance.rate(1) < 0.1
    assert acceptance.rate(20) == Acceptance().rate(20)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_rate_comes_near_the_share_of_right_drafts(share: float) -> None:
    chance = Random(5)
    acceptance = Acceptance()
    seen = []
    for _ in range(2000):
        acceptance.saw(draft_of(1, 16), [RIGHT if chance.random() < share else WRONG])
        seen.append(acceptance.rate(16))
    assert sum(seen) / len(seen) == pytest.approx(share, abs=0.03)


@LAW
@given(row_costs(), st.integers(1, N_MOST), st.lists(PROPOSALS, max_size=30))
def test_a_plan_stays_within_the_drafts_the_limit_and_what_was_measured(
    costs: Costs, n_most: int, proposals: list[Proposal]
) -> None:
    counts = Speculation(costs, n_most).plan(proposals)
    assert len(counts) == len(proposals)
    assert all(0 <= n <= len(c.draft.tokens) for n, c in zip(counts, proposals, strict=True))
    assert sum(counts) <= max(0, min(n_most, costs[-1][0] - len(proposals)))


@LAW
@given(row_costs(), st.lists(PROPOSALS, min_size=1, max_size=30))
def test_no_plan_takes_more_than_would_ever_pay(costs: Costs, proposals: list[Proposal]) -> None:
    speculation = Speculation(costs, N_MOST)
    assert sum(speculation.plan(proposals)) <= speculation.most_drafts(len(proposals))


def test_there_are_no_drafts_without_costs() -> None:
    speculation = Speculation((), N_MOST)
    speculation.costs.took(1, 1.0)
    assert speculation.most_drafts(1) == 0
    assert speculation.plan([proposal(TRUSTED, N_MOST)]) == [0]


@LAW
@given(proposals=st.lists(PROPOSALS, min_size=2, max_size=16), switch_s=st.sampled_from((1e-4, 1e-3, 3e-3)))
def test_on_a_gpu_no_job_is_much_slower_for_the_drafts_of_others(proposals: list[Proposal], switch_s: float) -> None:
    counts = Speculation(GPU, N_MOST, switch_s).plan(proposals)
    n_rows = len(proposals)
    slower = (cost(GPU, n_rows + sum(counts)) + switch_s) / cost(GPU, n_rows)
    for each, count in zip(proposals, counts, strict=True) if any(counts) else ():
        first = each.draft.n_matched
        chances = accumulate((each.acceptance.rate(n) for n in range(first, first + count)), lambda a, b: a * b)
        assert (1 + sum(chances)) * (1 + MAX_HELD_UP) >= slower * (1 - 1e-9)


@pytest.mark.parametrize(("switch_s", "n_drafts"), [(0.0, N_MOST), (2e-3, N_MOST), (100e-3, 0)])
def test_drafts_must_win_what_a_change_of_width_costs(switch_s: float, n_drafts: int) -> None:
    assert Speculation(GPU, N_MOST, switch_s).plan([proposal(TRUSTED, N_MOST)]) == [n_drafts]


def test_what_is_seldom_right_has_no_drafts_where_widths_are_dear() -> None:
    """Two of ten drafts are right: worth a row that costs a hundredth of a step, but no change that costs a third."""
    seldom = [True, False, False, False, False] * 8
    assert any(Speculation(GPU, N_MOST).plan([proposal(seldom, N_MOST)]))
    assert not any(Speculation(GPU, N_MOST, 1.7e-3).plan([proposal(seldom, N_MOST)]))


def test_the_time_of_a_change_is_not_put_down_to_rows() -> None:
    speculation = Speculation(GPU, N_MOST, 2e-3)
    for _ in range(N_TIMED):
        speculation.took(32, 6e-3 + 1e-3, has_drafts=True)
        speculation.took(1, 5e-3 + 1e-3, has_drafts=False)
    assert speculation.costs.of(32) == pytest.approx(6e-3)


def net(costs: Costs, proposals: list[Proposal], counts: tuple[int, ...]) -> float:
    """Sum of the logarithms of the sequences' speeds, less what it is without drafts: the brute way."""
    gained = 0.0
    for n_taken, c in zip(counts, proposals, strict=True):
        rates = [c.acceptance.rate(c.draft.n_matched + i) for i in range(n_taken)]
        gained += log(1 + sum(prod(rates[: i + 1]) for i in range(n_taken)))
    n = len(proposals)
    return gained - n * log(cost(costs, n + sum(counts)) / cost(costs, n))


@LAW
@given(row_costs(), st.integers(1, 8), st.lists(PROPOSALS, min_size=1, max_size=3))
def test_the_best_of_several_proposals_gains_most(costs: Costs, n_rows: int, proposals: list[Proposal]) -> None:
    """The best is found by trying all, as one of n sequences of which the others have no drafts."""
    others = [proposal([], 0) for _ in range(n_rows - 1)]

    def most(one: Proposal) -> float:
        counts = range(min(len(one.draft.tokens), N_MOST, costs[-1][0] - n_rows) + 1)
        return max(net(costs, [one, *others], (n, *[0] * (n_rows - 1))) for n in counts)

    best = Speculation(costs, N_MOST).best(proposals, n_rows)
    assert best in proposals
    assert most(best) == pytest.approx(max(map(most, proposals)))


@LAW
@given(row_costs(), st.lists(st.builds(proposal, st.lists(st.booleans(), max_size=9), st.integers(0, 4)), max_size=3))
def test_a_plan_is_the_best_of_all(costs: Costs, proposals: list[Proposal]) -> None:
    assume(proposals)
    splits = product(*(range(len(c.draft.tokens) + 1) for c in proposals))
    best = max(net(costs, proposals, split) for split in splits)
    planned = net(costs, proposals, tuple(Speculation(costs, N_MOST).plan(proposals)))
    assert planned == pytest.approx(best if best > len(proposals) * log(MIN_GAIN) else 0.0)


@pytest.mark.long
@LAW
@given(row_costs(), st.lists(PROPOSALS, min_size=1, max_size=20))
def test_a_step_with_drafts_is_expected_to_give_more_tokens_a_second(costs: Costs, proposals: list[Proposal]) -> None:
    """This holds though a plan looks at each sequence's speed."""
    counts = Speculation(costs, N_MOST).plan(proposals)
    assume(any(counts))
    n_expected = float(len(proposals))
    for n_taken, c in zip(counts, proposals, strict=True):
        rates = [c.acceptance.rate(c.draft.n_matched + i) for i in range(n_taken)]
        n_expected += sum(accumulate(rates, lambda a, b: a * b))
    n = len(proposals)
    assert n_expected / cost(costs, n + sum(counts)) > MIN_GAIN * n / cost(costs, n)


HISTORY = st.lists(st.booleans(), min_size=20, max_size=20)


@LAW
@given(row_costs(), st.lists(st.tuples(HISTORY, st.integers(0, 6)), min_size=1, max_size=4), HISTORY)
def test_more_right_drafts_never_lower_a_plan(
    costs: Costs, jobs: list[tuple[list[bool], int]], right_after_all: list[bool]
) -> None:
    """Neither what the sequence takes, nor what the step takes."""
    (first, n_drafts), *others = jobs
    better = [a or b for a, b in zip(first, right_after_all, strict=True)]
    rest = [proposal(*job) for job in others]
    before = Speculation(costs, N_MOST).plan([proposal(first, n_drafts), *rest])
    rest = [proposal(*job) for job in others]
    after = Speculation(costs, N_MOST).plan([proposal(better, n_drafts), *rest])
    assert after[0] >= before[0]
    assert sum(after) >= sum(before)


def test_long_drafts_pay_for_one_job_on_a_cpu_and_none_in_a_full_batch() -> None:
    speculation = Speculation(CPU, N_MOST)
    assert speculation.plan([proposal(TRUSTED, N_MOST)]) == [15]
    assert [speculation.most_drafts(n) for n in (1, 2, 4, 16, 17, 64)] == [15, 14, 12, 0, 0, 0]


def test_a_long_context_makes_rows_dear() -> None:
    """Attention over many cells adds the same to each row, so that the weights' share of a step shrinks."""
    speculation = Speculation(CPU, N_MOST)
    n_before = speculation.plan([proposal([True] * 10, N_MOST)])[0]
    for _ in range(N_TIMED):
        speculation.costs.took(2, 11e-3 + 2 * 30e-3)
    assert speculation.plan([proposal([True] * 10, N_MOST)])[0] < n_before
    assert speculation.most_drafts(8) == 0


def test_a_step_that_was_delayed_or_wider_than_measured_changes_nothing() -> None:
    speculation = Speculation(CPU, N_MOST)
    for seconds in (7.5e-3, 7e-3, 1.0, 7.5e-3, 2.0, 7.4e-3):
        speculation.costs.took(1, seconds)
    for _ in range(N_TIMED):
        speculation.costs.took(99, 5.0)
    assert speculation.plan([proposal(TRUSTED, N_MOST)]) == [15]


def test_more_rows_are_never_taken_to_cost_less() -> None:
    assert Speculation(((1, 5e-3), (2, 9e-3), (3, 1e-3), (17, 150e-3)), N_MOST).most_drafts(1) == 2
