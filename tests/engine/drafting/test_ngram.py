"""Every draft is what followed where the job's last tokens stood before."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.engine.drafting.lookups import MAX_COUNTED, TRUST_BEHIND_A_CHANGE, NgramLookup
from worker.engine.drafting.pricing import NO_DRAFT, Draft
from worker.wire.jobs import TokenId

LAW = settings(max_examples=300)

TOKENS = st.integers(0, 3).map(TokenId)
"""Few, so that everything has stood somewhere before."""
TEXTS = st.lists(TOKENS, max_size=60)
FAR = 12


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
    """Behind the third copy 77 was expected, as behind the second; with 99 it is the first that fits, all along."""
    passage = [TokenId(i) for i in range(MAX_COUNTED + 4)]
    text = passage + tokens(99) + passage + tokens(77) + passage
    n_trusted = len(passage) // TRUST_BEHIND_A_CHANGE
    assert asked_once(text, 1) == Draft((TokenId(77),), n_matched=n_trusted + len(passage))
    assert asked_once([*text, TokenId(99)], 1) == Draft((TokenId(0),), n_matched=MAX_COUNTED)
