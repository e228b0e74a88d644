"""Each penalty, bias and ban changes scores in its way, one at a time; repetitions against their definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.engine.sampling.reference import match_lengths
from tests.engine.sampling.rows import ids_of, row
from worker.engine.sampling.row import dry, repetitions
from worker.engine.sampling.sample import sample
from worker.wire.jobs import SamplingParams

LAW = settings(max_examples=400)
few_letters = st.lists(st.integers(0, 2), max_size=40)
repeating = st.builds(lambda word, times, end: word * times + end, few_letters, st.integers(1, 4), few_letters)


def test_a_hopeless_token_can_still_be_drawn_when_it_is_the_only_one() -> None:
    sampling = SamplingParams(seed=0, dry_multiplier=100.0, dry_base=16.0)
    assert sample(row(5.0), sampling, [0] * 1000) == 0
    assert sample(row(5.0), replace(sampling, temperature=0.0), [0] * 1000) == 0


@LAW
@given(st.one_of(few_letters, repeating), st.integers(1, 5))
def test_repetitions_are_those_of_the_definition(tokens: list[int], shortest: int) -> None:
    expected = {token: length for token, length in match_lengths(tokens).items() if length >= shortest}
    assert repetitions(tokens, shortest) == expected


def test_two_thousand_equal_tokens_are_one_long_repetition() -> None:
    assert repetitions([7] * 2000, 2) == {7: 1999}
    assert repetitions([7, 8] * 1000, 2) == {7: 1998}


def test_the_penalty_grows_with_the_length_and_never_becomes_infinite() -> None:
    sizes = dry(np.array([2.0, 3.0, 5.0, 2000.0]), SamplingParams(seed=0, dry_multiplier=0.8))
    assert sizes.tolist() == pytest.approx([0.8, 0.8 * 1.75, 0.8 * 1.75**3, 1e100])
    assert dry(np.array([2000.0]), SamplingParams(seed=0, dry_multiplier=1.0, dry_base=1.0)).tolist() == [1.0]


ENDS = np.array([0, 2], dtype=np.intp)


def test_a_banned_token_is_no_candidate_even_where_its_logit_is_no_number() -> None:
    banning = SamplingParams(seed=0, logit_bias={"1": -100})
    assert ids_of(row(0.0, 5.0, 1.0), banning) == [2, 0]
    assert ids_of(row(0.0, math.inf, 1.0), banning) == [2, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_no_token_are_an_error_that_says_so(temperature: float) -> None:
    sampling = SamplingParams(seed=0, temperature=temperature, ignore_eos=True)
    for settings_ in (sampling, replace(sampling, top_k=1), replace(sampling, top_n_sigma=1.0)):
        with pytest.raises(ValueError, match="logit_bias, ignore_eos and min_tokens together ban every possible token"):
            sample(row(1.0, -math.inf, 2.0), settings_, (), ENDS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_is_refused_under_bans_too(temperature: float) -> None:
    sampling = SamplingParams(seed=0, temperature=temperature, ignore_eos=True, presence_penalty=0.1)
    for settings_ in (sampling, replace(sampling, top_k=1), replace(sampling, top_p=0.5)):
        with pytest.raises(ValueError, match="NaN"):
            sample(row(1.0, math.nan, 2.0, 1.0), settings_, [1], ENDS)
        with pytest.raises(ValueError, match="NaN"):
            sample(row(1.0, math.nan, 2.0, 1.0), settings_, [3], ENDS)
