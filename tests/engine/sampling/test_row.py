"""Bias and bans change scores, one at a time."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from tests.engine.sampling.rows import ids_of, row
from worker.engine.sampling.sample import sample
from worker.wire.jobs import SamplingParams

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
