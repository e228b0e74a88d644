"""Every draft is what followed in an earlier job's text, within a fixed number of bytes, or in the job's own."""

from collections.abc import Sequence as Seq

from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.engine.drafting.lookups import (
    EARLIER_SIZES,
    HISTORY_BYTES,
    MAX_COUNTED,
    TRUST_BEHIND_A_CHANGE,
    EarlierAnswers,
    History,
    NgramLookup,
)
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
    history = remembered(
        History(HISTORY_BYTES),
        [([], tokens(1, 2, 3, 4, 50)), ([], tokens(1, 2, 3, 4, 60)), ([], tokens(9, 9, 3, 4, 70)), ([], tokens(4, 80))],
    )
    assert drafted(history, tokens(1, 2, 3, 4), 1) == Draft((TokenId(60),), n_matched=4)
    assert drafted(history, tokens(8, 3, 4), 1) == Draft((TokenId(70),), n_matched=2)
    assert drafted(history, tokens(8, 4), 1) is NO_DRAFT


def test_what_is_longer_than_the_ring_loses_its_beginning() -> None:
    history = History(16 * 20)
    answer = [TokenId(i) for i in range(100)]
    remembered(history, [([], answer)])
    assert drafted(history, answer[:50], FAR) is NO_DRAFT
    assert drafted(history, answer[:90], 3) == Draft((TokenId(90), TokenId(91), TokenId(92)), n_matched=9)


TEXTS = st.lists(TOKENS, max_size=60)


def asked_once(text: list[TokenId], n_most: int = FAR) -> Draft:
    return NgramLookup(text).propose(n_most)


def continuation(text: list[TokenId], place: int, n: int) -> tuple[TokenId, ...]:
    """The tokens that follow if the text goes on after its end as it did at the place."""
    longer = list(text)
    for i in range(n):
        longer.append(longer[place + i])
    return tuple(longer[len(text) :])


def n_alike(text: list[TokenId], place: int) -> int:
    """The number of tokens before the place that are the last ones, going back over single ones that differ."""
    n = 0
    for back in range(1, place + 1):
        if text[place - back] == text[-back]:
            n += 1
        elif text[place - back - 1 : place - back] != text[len(text) - back - 1 : len(text) - back]:
            break
    return n


def tokens(*numbers: int) -> list[TokenId]:
    return [TokenId(number) for number in numbers]


@LAW
@given(TEXTS, st.integers(0, FAR))
def test_a_draft_is_what_followed_an_earlier_place_with_the_same_tokens_before_it(
    text: list[TokenId], n_most: int
) -> None:
    draft = asked_once(text, n_most)
    if draft == NO_DRAFT:
        return
    places = [i for i in range(1, len(text)) if n_alike(text, i) >= draft.n_matched]
    assert draft.tokens in [continuation(text, place, n_most) for place in places]


@LAW
@given(TEXTS)
def test_there_is_a_draft_whenever_the_last_token_stood_before(text: list[TokenId]) -> None:
    draft = asked_once(text)
    is_known = text[-1:] != [] and text[-1] in text[:-1]
    assert draft != NO_DRAFT or not is_known
    assert draft == NO_DRAFT or is_known or draft.n_matched <= len(text) // TRUST_BEHIND_A_CHANGE


@LAW
@given(st.lists(st.tuples(st.lists(TOKENS, max_size=9), st.none() | st.integers(0, FAR)), max_size=12))
def test_growing_and_asking_on_the_way_changes_nothing(parts: list[tuple[list[TokenId], int | None]]) -> None:
    text: list[TokenId] = []
    ngram_lookup = NgramLookup(text)
    for part, n_most in parts:
        text += part
        if n_most is not None:
            assert ngram_lookup.propose(n_most) == asked_once(text, n_most)
    assert ngram_lookup.propose(FAR) == asked_once(text)


@LAW
@given(TEXTS, st.integers(0, FAR))
def test_a_short_draft_is_the_beginning_of_a_long_one(text: list[TokenId], n_most: int) -> None:
    assert asked_once(text, n_most).tokens == asked_once(text).tokens[:n_most]


@LAW
@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 3 * FAR))
@example(1, 1, FAR)
def test_the_draft_of_a_repeating_text_is_as_long_as_asked(period: int, n_more: int, n_most: int) -> None:
    text = [TokenId(i % period) for i in range(period + n_more)]
    going_on = tuple(i % period for i in range(len(text), len(text) + n_most))
    assert asked_once(text, n_most).tokens == going_on


def test_the_latest_of_the_longest_matches_is_read() -> None:
    """5 was expected last, so the place is looked for anew: 1 2 3 4 stood twice, and 4 alone later still."""
    text = tokens(1, 2, 3, 4, 50, 8, 1, 2, 3, 4, 60, 7, 4, 70, 9, 1, 2, 3, 5, 1, 2, 3, 4)
    assert asked_once(text, 1) == Draft((TokenId(60),), n_matched=4)


def test_a_place_that_has_agreed_for_long_is_kept_over_a_later_one() -> None:
    """The copy of 1..9 passes 4 5 6 7, which last went on with 99; the place it came from goes on with 8."""
    text = tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 4, 5, 6, 7, 99, 21, 1, 2, 3, 4, 5, 6, 7)
    assert asked_once(text, 2) == Draft((TokenId(8), TokenId(9)), n_matched=7)


def test_behind_a_changed_token_the_place_goes_on() -> None:
    """It is trusted as one that has agreed for a quarter of the tokens."""
    passage = [TokenId(i) for i in range(20)]
    edited = [*passage[:9], TokenId(99)]
    assert asked_once(passage + edited, 3) == Draft(tuple(passage[10:13]), n_matched=2)
    assert asked_once([*passage, *edited, *passage[10:12]], 3) == Draft(tuple(passage[12:15]), n_matched=4)


def test_a_changed_token_that_is_known_leads_elsewhere_with_the_one_before_it() -> None:
    passage, other, edited = tokens(1, 2, 3, 4, 5, 6, 7, 8), tokens(3, 20, 30, 20, 40), tokens(1, 2, 3)
    assert asked_once([*passage, *other, *edited, TokenId(20)], 1) == Draft((TokenId(30),), n_matched=2)
    assert asked_once([*passage, *other, *edited, TokenId(40)], 1) == Draft((TokenId(5),), n_matched=0)


def test_after_two_changed_tokens_the_place_is_found_again_by_the_next_one() -> None:
    passage, edited = tokens(1, 2, 3, 4, 5, 6, 7, 8), tokens(1, 2, 3, 99, 98)
    assert asked_once(passage + edited) == NO_DRAFT
    assert asked_once([*passage, *edited, TokenId(6)], 2) == Draft(tuple(passage[6:8]), n_matched=1)


def test_a_match_is_counted_while_it_is_followed() -> None:
    passage = [TokenId(i) for i in range(40)]
    for n in (1, 2, 5, 30):
        assert asked_once(passage + passage[:n], 1).n_matched == n


def test_a_match_that_is_found_is_counted_back_only_so_far() -> None:
    """77 is expected behind the third copy, as behind the second; with 99 it is the first that fits, all along."""
    passage = [TokenId(i) for i in range(MAX_COUNTED + 4)]
    text = passage + tokens(99) + passage + tokens(77) + passage
    n_trusted = len(passage) // TRUST_BEHIND_A_CHANGE
    assert asked_once(text, 1) == Draft((TokenId(77),), n_matched=n_trusted + len(passage))
    assert asked_once([*text, TokenId(99)], 1) == Draft((TokenId(0),), n_matched=MAX_COUNTED)
