"""Every draft is what followed in an earlier job's text, within a fixed number of bytes."""

from collections.abc import Sequence as Seq

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.drafting.lookups import EARLIER_SIZES, HISTORY_BYTES, MAX_COUNTED, EarlierAnswers, History
from worker.engine.drafting.pricing import NO_DRAFT, Acceptance, Draft
from worker.wire.jobs import TokenId

LAW = settings(max_examples=300)

TOKENS = st.integers(0, 3).map(TokenId)
"""Few, so that everything has stood somewhere before."""
JOBS = st.tuples(st.lists(TOKENS, max_size=12), st.lists(TOKENS, max_size=30))
"""(prompt, answer)"""
LIMITS = st.sampled_from((0, 15, 16, 100, 400, 1000, 5000))
FAR = 12

Job = tuple[list[TokenId], list[TokenId]]


def remembered(history: History, jobs: Seq[Job], n_at_once: int = 256) -> History:
    for prompt, answer in jobs:
        history.remember([*prompt, *answer], len(prompt))
        while history.read(n_at_once):
            pass
    return history


def drafted(history: History, tokens: list[TokenId], n_most: int) -> Draft:
    return EarlierAnswers(history, tokens, Acceptance()).propose(n_most)


def is_read_from(job: Job, tokens: list[TokenId], draft: Draft) -> bool:
    """True if the draft stands in the job's text, after as many of the last tokens as it says."""
    text = [*job[0], *job[1]]
    n, m = len(draft.tokens), draft.n_matched
    return any(
        tuple(text[place : place + n]) == draft.tokens and text[place - m : place] == tokens[-m:]
        for place in range(m, len(text) - n + 1)
    )


@LAW
@given(LIMITS, st.lists(JOBS, max_size=12), st.lists(TOKENS, max_size=20), st.integers(0, FAR))
def test_a_draft_is_what_followed_the_last_tokens_in_an_earlier_job(
    limit_bytes: int, jobs: list[Job], tokens: list[TokenId], n_most: int
) -> None:
    draft = drafted(remembered(History(limit_bytes), jobs), tokens, n_most)
    if draft is NO_DRAFT:
        return
    assert min(EARLIER_SIZES) <= draft.n_matched <= MAX_COUNTED
    assert len(draft.tokens) <= n_most
    assert any(is_read_from(job, tokens, draft) for job in jobs)


@LAW
@given(LIMITS, st.lists(st.tuples(JOBS, st.lists(TOKENS, max_size=4), st.integers(0, 9)), max_size=12))
def test_a_place_that_is_followed_while_answers_come_and_go_proposes_nothing_else(
    limit_bytes: int, parts: list[tuple[Job, list[TokenId], int]]
) -> None:
    """Also where the ring has come around, or an answer is not yet read to its end."""
    history, tokens = History(limit_bytes), list[TokenId]()
    lookup = EarlierAnswers(history, tokens, Acceptance())
    for number, ((prompt, answer), more, n_read) in enumerate(parts):
        history.remember([*prompt, *answer], len(prompt))
        history.read(n_read)
        tokens += more
        draft = lookup.propose(FAR)
        assert draft is NO_DRAFT or draft.n_matched >= 1
        assert draft is NO_DRAFT or any(is_read_from(job, tokens, draft) for job, _, _ in parts[: number + 1])


@LAW
@given(st.integers(0, 10_000), st.lists(JOBS, max_size=12), st.integers(1, 50))
def test_the_history_takes_as_many_bytes_as_were_allowed_and_no_more(
    limit_bytes: int, jobs: list[Job], n_at_once: int
) -> None:
    history = History(limit_bytes)
    n_bytes = history.n_bytes
    assert limit_bytes - 4 * (1 + len(EARLIER_SIZES)) < n_bytes <= limit_bytes
    assert remembered(history, jobs, n_at_once).n_bytes == n_bytes


@LAW
@given(JOBS, st.integers(1, 40))
def test_an_answer_is_found_by_the_end_of_its_prompt_and_followed_to_its_end(job: Job, n_most: int) -> None:
    prompt, answer = [TokenId(100 + i) for i in range(9)], [TokenId(1000 + i) for i in range(len(job[1]))]
    tokens = [TokenId(7), *prompt]
    history = remembered(History(HISTORY_BYTES), [job, (prompt, answer), job])
    lookup = EarlierAnswers(history, tokens, Acceptance())
    for n_told, token in enumerate(answer):
        draft = lookup.propose(n_most)
        assert draft == Draft(
            tuple(answer[n_told : n_told + n_most]), min(len(prompt) + n_told, MAX_COUNTED, 8 + n_told)
        )
        tokens.append(token)
    assert lookup.propose(n_most) is NO_DRAFT


@LAW
@given(st.lists(JOBS, max_size=8), st.integers(1, 9), st.lists(TOKENS, max_size=20))
def test_reading_in_parts_is_reading_at_once(jobs: list[Job], n_at_once: int, tokens: list[TokenId]) -> None:
    in_parts, at_once = (remembered(History(HISTORY_BYTES // 100), jobs, n) for n in (n_at_once, 10_000))
    assert drafted(in_parts, tokens, FAR) == drafted(at_once, tokens, FAR)


@LAW
@given(st.lists(JOBS, max_size=8), st.lists(TOKENS, min_size=2, max_size=20))
def test_what_was_not_read_is_not_known(jobs: list[Job], tokens: list[TokenId]) -> None:
    history = History(HISTORY_BYTES // 100)
    for prompt, answer in jobs:
        history.remember([*prompt, *answer], len(prompt))
    assert drafted(history, tokens, FAR) is NO_DRAFT


def test_the_last_of_the_longest_matches_is_read() -> None:
    def ngram(*numbers: int) -> list[TokenId]:
        return [TokenId(number) for number in numbers]

    history = remembered(
        History(HISTORY_BYTES),
        [([], ngram(1, 2, 3, 4, 50)), ([], ngram(1, 2, 3, 4, 60)), ([], ngram(9, 9, 3, 4, 70)), ([], ngram(4, 80))],
    )
    assert drafted(history, ngram(1, 2, 3, 4), 1) == Draft((TokenId(60),), n_matched=4)
    assert drafted(history, ngram(8, 3, 4), 1) == Draft((TokenId(70),), n_matched=2)
    assert drafted(history, ngram(8, 4), 1) is NO_DRAFT


def test_what_is_longer_than_the_ring_loses_its_beginning() -> None:
    history = History(16 * 20)
    answer = [TokenId(i) for i in range(100)]
    remembered(history, [([], answer)])
    assert drafted(history, answer[:50], FAR) is NO_DRAFT
    assert drafted(history, answer[:90], 3) == Draft((TokenId(90), TokenId(91), TokenId(92)), n_matched=9)
