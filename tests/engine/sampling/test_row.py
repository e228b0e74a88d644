"""Bias and bans change scores, one at a time."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from tests.engine.sampling.rows import ids_of, log_ratio, row
from worker.engine.sampling.sample import sample
from worker.wire.jobs import SamplingParams, TokenId

ENDS = np.array([0, 2], dtype=np.intp)


def test_a_bias_is_added_before_the_temperature() -> None:
    biased = SamplingParams(seed=0, temperature=0.5, logit_bias={"0": 1.5})
    assert log_ratio(row(0.0, 0.0), biased, ()) == pytest.approx(3.0)


def test_a_bias_changes_the_greedy_choice() -> None:
    greedy = SamplingParams(seed=0, temperature=0.0, logit_bias={"1": 2.5, "2": -100})
    assert sample(row(2.0, 0.0, 9.0), greedy, ()) == 1


def test_a_banned_token_is_no_candidate_even_where_its_logit_is_no_number() -> None:
    banning = SamplingParams(seed=0, logit_bias={"1": -100})
    assert ids_of(row(0.0, 5.0, 1.0), banning) == [2, 0]
    assert ids_of(row(0.0, math.inf, 1.0), banning) == [2, 0]


def test_ignore_eos_bans_the_ends_alone() -> None:
    sampling = SamplingParams(seed=0, ignore_eos=True, stop_token_ids=(TokenId(1),))
    assert ids_of(row(9.0, 1.0, 9.0, 0.0), sampling, ends=ENDS) == [1, 3]


def test_min_tokens_bans_ends_and_stop_tokens_until_enough_were_generated() -> None:
    sampling = SamplingParams(seed=0, min_tokens=2, stop_token_ids=(TokenId(1),))
    logits = row(3.0, 2.0, 1.0, 0.0)
    assert ids_of(logits, sampling, [3], ENDS) == [3]
    assert ids_of(logits, sampling, [3, 3], ENDS) == [0, 1, 2, 3]
    assert sample(logits, replace(sampling, temperature=0.0), [3], ENDS) == 3


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
