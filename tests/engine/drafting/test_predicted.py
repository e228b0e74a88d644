"""Drafts from a text that an answer will probably repeat: the same tokens with and without, and fewer steps."""

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.drafting.test_draft_runs import words
from tests.engine.fake_runner import Request, ToyModel
from tests.engine.rig import Rig
from worker.engine.drafting import lookups
from worker.engine.drafting.lookups import MAX_PREDICTED, N_INDEXED, Predicted
from worker.engine.drafting.pricing import NO_DRAFT
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import Finished, TokenId

LAW = settings(max_examples=60)
CHEAP_ROWS = ((1, 1.0), (32, 1.01))
"""(tokens in a decode step, seconds): drafts nearly always pay."""
MODEL = ToyModel()
"""Its text repeats itself by chance alone, so that other drafts are wrong."""
N_ANSWER = 60


def answer_of(prompt: Seq[int], n_tokens: int = N_ANSWER) -> list[TokenId]:
    return MODEL.answer_of(prompt, n_tokens)


def ran(request: Request, n_before: int = 0) -> tuple[str, int, Finished]:
    """The text of a job, its decode steps, and its end, next to others that are submitted before it."""
    rig = Rig(MODEL, context_length=200, row_costs=CHEAP_ROWS)
    for number in range(n_before):
        rig.submit(Request((number + 1,), 40, prediction=tuple(answer_of((number + 1,), 40))))
    job = rig.submit(request)
    rig.run_until_idle()
    rig.check_stories()
    story = rig.stories[job]
    assert isinstance(story.end, Finished)
    return story.text, rig.kinds.count("decode"), story.end


edits = st.lists(
    st.tuples(st.integers(0, N_ANSWER - 1), st.integers(0, 5), st.lists(st.integers(0, 63), max_size=5)), max_size=4
)
"""(where, how many tokens are left out, which are put in)"""


def edited(answer: list[TokenId], changes: list[tuple[int, int, list[int]]]) -> tuple[int, ...]:
    text: list[int] = list(answer)
    for at, n_out, put_in in changes:
        text[at : at + n_out] = put_in
    return tuple(text)


@LAW
@given(
    changes=edits,
    n_before=st.integers(0, 3),
    stop=st.sampled_from(((), ("ab",), ("ccd",))),
    constraint=st.none() | st.integers(0, 5),
    has_logprobs=st.booleans(),
)
def test_the_answer_is_the_same_with_a_prediction_and_without(
    changes: list[tuple[int, int, list[int]]],
    n_before: int,
    stop: tuple[str, ...],
    constraint: int | None,
    has_logprobs: bool,
) -> None:
    prompt = (7, 8, 9)
    plain = Request(prompt, N_ANSWER, stop, constraint=constraint, has_logprobs=has_logprobs)
    prediction = edited(answer_of(prompt), changes)
    with_it = Request(prompt, N_ANSWER, stop, constraint=constraint, has_logprobs=has_logprobs, prediction=prediction)
    text, _, end = ran(plain, n_before)
    same, _, end_with_it = ran(with_it, n_before)
    assert (same, end_with_it.reason, end_with_it.stop) == (text, end.reason, end.stop)


def test_a_text_that_comes_true_takes_a_fraction_of_the_steps_and_is_counted() -> None:
    prompt = (1, 2, 3)
    answer = answer_of(prompt)
    _, n_plain, plain = ran(Request(prompt, N_ANSWER))
    _, n_steps, end = ran(Request(prompt, N_ANSWER, prediction=tuple(answer)))
    assert n_plain >= N_ANSWER - 1
    assert n_steps < n_plain / 5
    assert plain.n_accepted == N_ANSWER - 1 - n_plain
    assert end.n_accepted == N_ANSWER - 1 - n_steps, "all but one token of each step were drafted"
    assert end.n_drafted - end.n_accepted <= MAX_DRAFTS


def test_a_text_that_never_comes_true_is_soon_no_longer_followed_and_counted_as_rejected() -> None:
    wrong = tuple((token + 1) % 64 for token in answer_of((1, 2, 3)))
    _, n_steps, end = ran(Request((1, 2, 3), N_ANSWER, prediction=wrong))
    assert n_steps >= N_ANSWER - 4
    assert end.n_drafted - end.n_accepted > 0


def test_a_prediction_is_one_jobs_alone() -> None:
    rig = Rig(MODEL, context_length=200, row_costs=CHEAP_ROWS)
    first = rig.submit(Request((1, 2), 40, prediction=tuple(answer_of((1, 2), 40))))
    other = rig.submit(Request((3, 4), 40))
    rig.run_until_idle()
    ends = {job: rig.stories[job].end for job in (first, other)}
    accepted = {job: end.n_accepted for job, end in ends.items() if isinstance(end, Finished)}
    assert accepted[first] > 30
    assert accepted[other] <= 2, "its own text repeats nothing but by chance"


def followed(text: list[TokenId], answer: list[TokenId], n_most: int = 8) -> list[int]:
    """The number of draft tokens that the answer accepts, before each of the answer's tokens."""
    told: list[TokenId] = []
    lookup, rights = Predicted(text, told), []
    for at, token in enumerate(answer):
        draft = lookup.propose(n_most).tokens
        told.append(token)
        pairs = zip(draft, answer[at:], strict=False)
        rights.append(
            next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(draft), len(answer) - at))
        )
    return rights


@pytest.fixture(scope="module")
def text() -> list[TokenId]:
    return words(200, seed=1)


def test_the_beginning_is_proposed_before_anything_is_drawn(text: list[TokenId]) -> None:
    assert Predicted(text, []).propose(5).tokens == tuple(text[:5])
    assert Predicted([], []).propose(5) is NO_DRAFT


def test_a_text_that_comes_true_is_proposed_to_its_end(text: list[TokenId]) -> None:
    assert followed(text, text) == [min(8, len(text) - at) for at in range(len(text))]
    assert Predicted(text, text).propose(8) is NO_DRAFT


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((100, 0, 30), id="put-in"),
        pytest.param((100, 30, 0), id="left-out"),
        pytest.param((100, 1, 1), id="replaced"),
        pytest.param((100, 20, 30), id="rewritten"),
        pytest.param((0, 0, 15), id="preamble"),
    ],
)
def test_behind_a_change_the_text_is_found_again_within_two_tokens(
    text: list[TokenId], change: tuple[int, int, int]
) -> None:
    at, n_out, n_in = change
    answer = [*text[:at], *words(n_in, seed=2), *text[at + n_out :]]
    behind = followed(text, answer)[at + n_in :]
    assert sum(right == 0 for right in behind) <= 2
    assert behind[5] == 8


def test_of_places_that_are_alike_the_next_one_is_meant() -> None:
    """Lines that begin alike, of which one is new: the text goes on with the one after it, not with the last."""
    lines = [[*words(4, seed=1), *words(6, seed=10 + number)] for number in range(6)]
    text = [token for line in lines for token in line]
    answer = [*lines[0], *lines[1], *words(10, seed=3), *[token for line in lines[2:] for token in line]]
    behind = followed(text, answer)[30:]
    assert sum(right == 0 for right in behind) <= 2


def test_what_is_looked_at_is_bounded_and_indexed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    long = words(MAX_PREDICTED + 5, seed=4)
    assert Predicted(long, long[:MAX_PREDICTED]).propose(8) is NO_DRAFT
    monkeypatch.setattr(lookups, "N_INDEXED", 10)
    text = words(100, seed=5)
    new = words(20, seed=6)
    told = list(new)
    lookup = Predicted(text, told)
    lookup.propose(8)
    told += text[50:54]
    assert lookup.propose(8).tokens != tuple(text[54:62]), "it is not indexed up to there"
    for token in text[54:60]:
        lookup.propose(8)
        told.append(token)
    told += [*new, *text[70:74]]
    assert lookup.propose(8).tokens == tuple(text[74:82])
    assert N_INDEXED < MAX_PREDICTED
