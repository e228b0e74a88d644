"""Answers to numbers, numbers to verdicts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tools.bench.measures import (
    USUAL,
    Answer,
    Bound,
    Measure,
    at_least,
    at_most,
    computed,
    computed_by_new,
    first_token,
    gap_at_ends,
    last_first_token,
    longest_gap_beside_the_last,
    stream_rate,
    total_rate,
)

NO_BOUND = at_most(1.0)


def of(measure: Measure, *answers: object) -> float:
    return measure.of(answers)  # type: ignore[arg-type] # tests pass answers only


def answer(arrivals_s: Sequence[float], *, sent_s: float = 0.0) -> Answer:
    """Ends with its last token."""
    return Answer(sent_s=sent_s, arrivals_s=tuple(arrivals_s), ended_s=arrivals_s[-1], n_tokens=len(arrivals_s))


def steady(n_tokens: int, per_s: float, *, ttft_s: float = 0.0) -> Answer:
    """An answer of n tokens at an even pace."""
    return answer([ttft_s + number / per_s for number in range(n_tokens)])


@pytest.mark.parametrize("limit", [0.15, 1.0, 1.5])
def test_a_bound_holds_up_to_its_limit_and_not_beyond(limit: float) -> None:
    assert at_least(limit).holds(limit)
    assert at_most(limit).holds(limit)
    assert not at_least(limit).holds(limit * 0.999)
    assert not at_most(limit).holds(limit * 1.001)


def test_a_bound_says_what_it_is() -> None:
    assert [str(at_least(0.98)), str(at_most(1.0)), str(Bound("at most", 1.3, "value"))] == ["≥ 0.98", "≤ 1", "≤ 1.3"]


def test_a_stream_s_rate_is_the_median_of_the_streams() -> None:
    assert of(stream_rate(), steady(9, 10.0), steady(9, 50.0), steady(9, 20.0)) == pytest.approx(20.0)


def test_the_first_token_is_the_median_in_milliseconds_and_the_last_one_s_alone() -> None:
    answers = [steady(3, 10.0, ttft_s=ttft_s) for ttft_s in (0.1, 0.4, 0.2)]
    assert of(first_token(), *answers) == pytest.approx(200)
    assert of(last_first_token(NO_BOUND), *answers) == pytest.approx(200)
    assert of(last_first_token(NO_BOUND), *answers[:2]) == pytest.approx(400)


def test_what_is_computed_is_compared_with_what_no_prompt_had_before() -> None:
    """Two conversations of two turns over 40 common tokens: new are 40, and 60 and 80 after them."""
    sizes = [(70, 0), (80, 40), (100, 70), (120, 70), (40, 39)]
    answers = [replace(answer([1.0]), n_prompt=n_prompt, n_cached=n_cached) for n_prompt, n_cached in sizes]
    assert of(computed(NO_BOUND), *answers) == 70 + 40 + 30 + 50
    assert of(computed_by_new(NO_BOUND, n_conversations=2), *answers) == pytest.approx(190 / 180)
    alone = [answers[0], answers[2], answers[4]]
    assert of(computed_by_new(NO_BOUND, n_conversations=1), *alone) == pytest.approx(100 / 100)


def test_the_longest_gap_is_that_of_the_streams_once_the_last_request_came() -> None:
    before = answer([0.0, 5.0, 6.0])
    during = answer([4.0, 5.9, 7.4, 7.6])
    late = answer([8.0, 20.0], sent_s=5.5)
    assert of(longest_gap_beside_the_last(NO_BOUND), before, during, late) == pytest.approx(1900)
    assert of(longest_gap_beside_the_last(NO_BOUND), before, answer([7.0], sent_s=5.0)) == 1000


def test_the_delay_at_an_end_is_what_the_others_waited_beyond_an_ordinary_token() -> None:
    """One ends at 3 s. Another's next token comes a second and a half later instead of one, the third's at once."""
    ending = answer([1.0, 2.0, 3.0])
    delayed = answer([1.0, 2.0, 3.0, 4.5, 5.5])
    soon_after = answer([1.01, 2.01, 3.01, 4.01, 5.01])
    assert of(gap_at_ends(NO_BOUND), ending, soon_after) == pytest.approx(0, abs=1e-6)
    assert of(gap_at_ends(NO_BOUND), ending, delayed, soon_after) == pytest.approx(500)
    # A gap far from an end or of a lone stream is no delay.
    assert of(gap_at_ends(NO_BOUND), answer([1.0, 2.0]), answer([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])) == 0
    assert of(gap_at_ends(NO_BOUND), answer([1.0, 2.0, 7.0])) == 0


def test_total_rate_is_all_tokens_by_all_time() -> None:
    assert of(total_rate(), answer([1.0, 2.0]), answer([1.0, 4.0])) == 1.0


def test_every_usual_measure_has_its_number() -> None:
    numbers = {measure.name: of(measure, answer([1.0, 2.0]), answer([3.0, 4.0])) for measure in USUAL}
    assert numbers["between tokens, longest"] == 1000
