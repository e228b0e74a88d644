"""What bias, bans and penalties do to scores, one at a time."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.sampling.rows import Row, ids_of, probs_of, row
from worker.sampling.sample import candidates, sample
from worker.wire.messages import Sampling, TokenId

ENDS = np.array([0, 2], dtype=np.intp)


def log_ratio(logits: Row, sampling: Sampling, generated: Sequence[int]) -> float:
    """ln of token 0's probability over token 1's: what the penalties did to two scores."""
    ids, probs = candidates(logits, sampling, generated)
    by_id = dict(zip(ids.tolist(), probs.tolist(), strict=True))
    return math.log(by_id[0] / by_id[1])


# ── bias and bans ────────────────────────────────────────────────────────────────────────────────


def test_a_bias_is_added_before_the_temperature() -> None:
    biased = Sampling(seed=0, temperature=0.5, logit_bias=((TokenId(0), 1.5),))
    assert log_ratio(row(0.0, 0.0), biased, ()) == pytest.approx(3.0)


def test_a_bias_changes_the_greedy_choice() -> None:
    greedy = Sampling(seed=0, temperature=0.0, logit_bias=((TokenId(1), 2.5), (TokenId(2), -math.inf)))
    assert sample(row(2.0, 0.0, 9.0), greedy, ()) == 1


def test_a_banned_token_is_no_candidate_even_where_its_logit_is_no_number() -> None:
    banning = Sampling(seed=0, logit_bias=((TokenId(1), -math.inf),))
    assert ids_of(row(0.0, 5.0, 1.0), banning) == [2, 0]
    assert ids_of(row(0.0, math.inf, 1.0), banning) == [2, 0]


def test_ignore_eos_bans_the_ends_alone() -> None:
    sampling = Sampling(seed=0, ignore_eos=True, stop_token_ids=(TokenId(1),))
    assert ids_of(row(9.0, 1.0, 9.0, 0.0), sampling, ends=ENDS) == [1, 3]


def test_min_tokens_bans_ends_and_stop_tokens_until_so_many_were_generated() -> None:
    sampling = Sampling(seed=0, min_tokens=2, stop_token_ids=(TokenId(1),))
    logits = row(3.0, 2.0, 1.0, 0.0)
    assert ids_of(logits, sampling, [3], ENDS) == [3]
    assert ids_of(logits, sampling, [3, 3], ENDS) == [0, 1, 2, 3]
    assert sample(logits, replace(sampling, temperature=0.0), [3], ENDS) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_no_token_are_an_error_that_says_so(temperature: float) -> None:
    sampling = Sampling(seed=0, temperature=temperature, ignore_eos=True)
    for settings_ in (sampling, replace(sampling, top_k=1), replace(sampling, top_n_sigma=1.0)):
        with pytest.raises(ValueError, match="logit_bias, ignore_eos and min_tokens together ban every possible token"):
            sample(row(1.0, -math.inf, 2.0), settings_, (), ENDS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nan_is_refused_under_bans_too(temperature: float) -> None:
    sampling = Sampling(seed=0, temperature=temperature, ignore_eos=True, presence_penalty=0.1)
    for settings_ in (sampling, replace(sampling, top_k=1), replace(sampling, top_p=0.5)):
        with pytest.raises(ValueError, match="NaN"):
            sample(row(1.0, math.nan, 2.0, 1.0), settings_, [1], ENDS)
        with pytest.raises(ValueError, match="NaN"):
            sample(row(1.0, math.nan, 2.0, 1.0), settings_, [3], ENDS)


# ── penalties ────────────────────────────────────────────────────────────────────────────────────


def test_frequency_counts_each_time_and_presence_once() -> None:
    frequent, present = Sampling(seed=0, frequency_penalty=0.5), Sampling(seed=0, presence_penalty=0.5)
    assert log_ratio(row(0.0, 0.0), frequent, [0, 0, 0, 1]) == pytest.approx(-1.0)
    assert log_ratio(row(0.0, 0.0), present, [0, 0, 0]) == pytest.approx(-0.5)


def test_frequency_and_presence_come_after_temperature_and_repetition() -> None:
    sampling = Sampling(seed=0, temperature=0.5, repetition_penalty=2.0, presence_penalty=0.25)
    assert log_ratio(row(1.0, 0.0), sampling, [0]) == pytest.approx(1.0 / 0.5 / 2.0 - 0.25)


@pytest.mark.parametrize(("last_n", "times"), [(-1, 3), (0, 0), (1, 0), (2, 1), (4, 2), (99, 3)])
def test_repeat_last_n_is_the_window_of_every_penalty(last_n: int, times: int) -> None:
    generated = [0, 2, 0, 2, 0, 2]
    frequent = Sampling(seed=0, frequency_penalty=0.5, repeat_last_n=last_n)
    assert log_ratio(row(0.0, 0.0, 0.0), frequent, generated) == pytest.approx(-0.5 * times)
    repeated = Sampling(seed=0, repetition_penalty=2.0, repeat_last_n=last_n)
    assert log_ratio(row(1.0, 0.0, 0.0), repeated, generated) == pytest.approx(0.5 if times else 1.0)


def test_dry_penalises_what_would_carry_on_a_repetition() -> None:
    """After 0 1 2 0 1 the token 2 would make it three: a match of 2, at the allowed length 2."""
    sampling = Sampling(seed=0, dry_multiplier=0.8)
    ids, probs = candidates(row(0.0, 0.0, 0.0), sampling, [0, 1, 2, 0, 1])
    assert ids.tolist() == [0, 1, 2]
    assert np.log(probs[2] / probs[0]) == pytest.approx(-0.8)
    _, longer = candidates(row(0.0, 0.0, 0.0, 0.0), sampling, [3, 0, 1, 2, 3, 0, 1])
    assert np.log(longer[3] / longer[0]) == pytest.approx(-0.8 * 1.75)


def test_dry_looks_at_the_window_only() -> None:
    sampling = Sampling(seed=0, dry_multiplier=0.8, repeat_last_n=4)
    assert probs_of(row(0.0, 0.0, 0.0), sampling, [0, 1, 2, 0, 1]) == pytest.approx([1 / 3] * 3)


def test_a_hopeless_token_can_still_be_drawn_when_it_is_the_only_one() -> None:
    sampling = Sampling(seed=0, dry_multiplier=100.0, dry_base=16.0)
    assert sample(row(5.0), sampling, [0] * 1000) == 0
    assert sample(row(5.0), replace(sampling, temperature=0.0), [0] * 1000) == 0
