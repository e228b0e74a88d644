"""What guesses have been worth, and how many of them a step takes."""

from itertools import accumulate, product
from math import log, prod
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engine.step_costs import CPU, GPU, MATCHES, N_MOST, RIGHT, WRONG, Costs, cost, offer, row_costs
from worker.engine.ngram import Draft
from worker.engine.speculation import LEAST_GAIN, N_TIMED, Acceptance, Candidate, Speculation
from worker.wire.messages import TokenId

LAW = settings(derandomize=True, deadline=None, max_examples=200)


def judged(history: list[bool], n_matched: int) -> Acceptance:
    """One that has seen guesses after such a match be right or wrong."""
    acceptance = Acceptance()
    for is_right in history:
        acceptance.saw(offer(1, n_matched), [RIGHT if is_right else WRONG])
    return acceptance


def candidate(history: list[bool], n_guesses: int, n_matched: int = 16) -> Candidate:
    return Candidate(judged(history, n_matched), offer(n_guesses, n_matched))


CANDIDATES = st.builds(candidate, st.lists(st.booleans(), max_size=40), st.integers(0, 20), MATCHES)
TRUSTED = [True] * 500


# ── what guesses have been worth ─────────────────────────────────────────────────────────────────


@pytest.mark.long
@LAW
@given(st.lists(st.booleans(), max_size=60), MATCHES)
def test_a_right_guess_raises_the_rate_and_a_wrong_one_lowers_it(history: list[bool], n_matched: int) -> None:
    before = judged(history, n_matched).rate(n_matched)
    assert 0 < judged([*history, False], n_matched).rate(n_matched) < before
    assert before < judged([*history, True], n_matched).rate(n_matched) <= 1


@LAW
@given(st.lists(st.integers(1, 40).map(TokenId), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 30))
def test_a_guess_teaches_the_same_whether_it_was_taken_or_not(
    guesses: list[TokenId], n_right: int, n_matched: int
) -> None:
    """The step that takes them all, and the steps that take none and are offered what is left."""
    drawn = [*guesses[:n_right], WRONG]
    at_once, one_by_one = Acceptance(), Acceptance()
    at_once.saw(Draft(tuple(guesses), n_matched), drawn)
    for i, token in enumerate(drawn):
        one_by_one.saw(Draft(tuple(guesses[i:]), n_matched + i), [token])
    assert [at_once.rate(n) for n in range(1, 60)] == [one_by_one.rate(n) for n in range(1, 60)]


def test_guesses_behind_a_wrong_one_teach_nothing() -> None:
    short, long = Acceptance(), Acceptance()
    short.saw(offer(3, n_matched=6), [RIGHT, RIGHT, WRONG])
    long.saw(offer(9, n_matched=6), [RIGHT, RIGHT, WRONG])
    assert [short.rate(n) for n in range(1, 60)] == [long.rate(n) for n in range(1, 60)]


def test_longer_matches_are_trusted_more_until_they_were_seen() -> None:
    rates = [Acceptance().rate(n) for n in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    assert rates[0] == 0.5


def test_short_matches_do_not_spoil_long_ones() -> None:
    acceptance = judged([False] * 50, n_matched=1)
    assert acceptance.rate(1) < 0.1
    assert acceptance.rate(20) == Acceptance().rate(20)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_rate_comes_near_the_share_of_right_guesses(share: float) -> None:
    chance = Random(5)
    acceptance = Acceptance()
    seen = []
    for _ in range(2000):
        acceptance.saw(offer(1, 16), [RIGHT if chance.random() < share else WRONG])
        seen.append(acceptance.rate(16))
    assert sum(seen) / len(seen) == pytest.approx(share, abs=0.03)


# ── the plan of a step ───────────────────────────────────────────────────────────────────────────


@LAW
@given(row_costs(), st.integers(1, N_MOST), st.lists(CANDIDATES, max_size=30))
def test_a_plan_stays_within_the_offers_the_limit_and_what_was_measured(
    costs: Costs, n_most: int, candidates: list[Candidate]
) -> None:
    counts = Speculation(costs, n_most).plan(candidates)
    assert len(counts) == len(candidates)
    assert all(0 <= n <= len(c.offer.tokens) for n, c in zip(counts, candidates, strict=True))
    assert sum(counts) <= max(0, min(n_most, costs[-1][0] - len(candidates)))


@LAW
@given(row_costs(), st.lists(CANDIDATES, min_size=1, max_size=30))
def test_no_plan_takes_more_than_would_ever_pay(costs: Costs, candidates: list[Candidate]) -> None:
    speculation = Speculation(costs, N_MOST)
    assert sum(speculation.plan(candidates)) <= speculation.most_drafts(len(candidates))


@pytest.mark.parametrize("n_rows", range(1, 20))
def test_nothing_is_guessed_where_a_row_costs_what_the_first_did(n_rows: int) -> None:
    speculation = Speculation(((1, 2e-3), (32, 64e-3)), N_MOST)
    assert speculation.most_drafts(n_rows) == 0
    assert not any(speculation.plan([candidate(TRUSTED, N_MOST) for _ in range(n_rows)]))


def test_nothing_is_guessed_without_costs() -> None:
    speculation = Speculation((), N_MOST)
    speculation.took(1, 1.0)
    assert speculation.most_drafts(1) == 0
    assert speculation.plan([candidate(TRUSTED, N_MOST)]) == [0]


def net(costs: Costs, candidates: list[Candidate], counts: tuple[int, ...]) -> float:
    """Sum of the logarithms of the sequences' speeds, less what it is without guesses: the brute way."""
    gained = 0.0
    for n_taken, c in zip(counts, candidates, strict=True):
        rates = [c.acceptance.rate(c.offer.n_matched + i) for i in range(n_taken)]
        gained += log(1 + sum(prod(rates[: i + 1]) for i in range(n_taken)))
    n = len(candidates)
    return gained - n * log(cost(costs, n + sum(counts)) / cost(costs, n))


@LAW
@given(row_costs(), st.lists(st.builds(candidate, st.lists(st.booleans(), max_size=9), st.integers(0, 4)), max_size=3))
def test_a_plan_is_the_best_of_all(costs: Costs, candidates: list[Candidate]) -> None:
    assume(candidates)
    splits = product(*(range(len(c.offer.tokens) + 1) for c in candidates))
    best = max(net(costs, candidates, split) for split in splits)
    planned = net(costs, candidates, tuple(Speculation(costs, N_MOST).plan(candidates)))
    assert planned == pytest.approx(best if best > len(candidates) * log(LEAST_GAIN) else 0.0)


@pytest.mark.long
@LAW
@given(row_costs(), st.lists(CANDIDATES, min_size=1, max_size=20))
def test_a_step_with_guesses_is_expected_to_give_more_tokens_a_second(
    costs: Costs, candidates: list[Candidate]
) -> None:
    """Though a plan looks at each sequence's speed."""
    counts = Speculation(costs, N_MOST).plan(candidates)
    assume(any(counts))
    n_expected = float(len(candidates))
    for n_taken, c in zip(counts, candidates, strict=True):
        rates = [c.acceptance.rate(c.offer.n_matched + i) for i in range(n_taken)]
        n_expected += sum(accumulate(rates, lambda a, b: a * b))
    n = len(candidates)
    assert n_expected / cost(costs, n + sum(counts)) > LEAST_GAIN * n / cost(costs, n)


HISTORY = st.lists(st.booleans(), min_size=20, max_size=20)


@LAW
@given(row_costs(), st.lists(st.tuples(HISTORY, st.integers(0, 6)), min_size=1, max_size=4), HISTORY)
def test_more_right_guesses_never_lower_a_plan(
    costs: Costs, jobs: list[tuple[list[bool], int]], right_after_all: list[bool]
) -> None:
    """Of a sequence, and of the step."""
    (first, n_guesses), *others = jobs
    better = [a or b for a, b in zip(first, right_after_all, strict=True)]
    rest = [candidate(*job) for job in others]
    before = Speculation(costs, N_MOST).plan([candidate(first, n_guesses), *rest])
    rest = [candidate(*job) for job in others]
    after = Speculation(costs, N_MOST).plan([candidate(better, n_guesses), *rest])
    assert after[0] >= before[0]
    assert sum(after) >= sum(before)


def test_long_guesses_pay_for_one_job_on_a_cpu_and_none_in_a_full_batch() -> None:
    speculation = Speculation(CPU, N_MOST)
    assert speculation.plan([candidate(TRUSTED, N_MOST)]) == [15]
    assert [speculation.most_drafts(n) for n in (1, 2, 4, 16, 17, 64)] == [15, 14, 12, 0, 0, 0]


def test_one_repetitive_job_does_not_slow_its_seven_neighbours_on_a_cpu() -> None:
    jobs = [candidate(TRUSTED, N_MOST)] + [candidate([], 0) for _ in range(7)]
    assert not any(Speculation(CPU, N_MOST).plan(jobs))


def test_many_are_guessed_where_rows_are_nearly_free() -> None:
    speculation = Speculation(GPU, N_MOST)
    jobs = [candidate(TRUSTED, N_MOST)] + [candidate([], 0) for _ in range(7)]
    assert speculation.plan(jobs) == [N_MOST, *[0] * 7]
    assert speculation.plan([candidate(TRUSTED, N_MOST) for _ in range(8)]) == [2] * 8
    assert speculation.plan([candidate([False] * 4, N_MOST)])[0] >= 4


def test_a_long_context_makes_rows_dear() -> None:
    """Attention over many cells adds the same to each row, so that the weights' share of a step shrinks."""
    speculation = Speculation(CPU, N_MOST)
    n_before = speculation.plan([candidate([True] * 10, N_MOST)])[0]
    for _ in range(N_TIMED):
        speculation.took(2, 11e-3 + 2 * 30e-3)
    assert speculation.plan([candidate([True] * 10, N_MOST)])[0] < n_before
    assert speculation.most_drafts(8) == 0


def test_a_step_that_was_held_up_or_wider_than_measured_changes_nothing() -> None:
    speculation = Speculation(CPU, N_MOST)
    for seconds in (7.5e-3, 7e-3, 1.0, 7.5e-3, 2.0, 7.4e-3):
        speculation.took(1, seconds)
    for _ in range(N_TIMED):
        speculation.took(99, 5.0)
    assert speculation.plan([candidate(TRUSTED, N_MOST)]) == [15]


def test_more_rows_are_never_taken_to_cost_less() -> None:
    assert Speculation(((1, 5e-3), (2, 9e-3), (3, 1e-3), (17, 150e-3)), N_MOST).most_drafts(1) == 2
