"""All sampling parameters together against the slow reference, and what each truncation means by example."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.engine.sampling.reference import Borders, NothingLeft, expected_candidates, expected_token
from tests.engine.sampling.rows import Row, row
from worker.engine.sampling.sample import candidates, sample, uniform
from worker.wire.jobs import SamplingParams, TokenId

LAW = settings(max_examples=250)
ENDS = np.array([0, 2], dtype=np.intp)
Case = tuple[Row, SamplingParams, list[int]]
SHARP = 1e-9
"""Nearer to a border, rounding decides, and two right programs may differ."""


some_logit = st.one_of(st.floats(-15, 15, width=32), st.sampled_from([-2.0, 0.0, 1.0, 2.0, -math.inf, 40.0]))
rows = st.lists(some_logit, min_size=4, max_size=24).filter(lambda values: max(values) > -math.inf)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    logits = draw(rows)
    tokens = st.integers(0, len(logits) - 1)
    generated = draw(st.one_of(st.lists(tokens, max_size=14), st.lists(st.integers(0, 3), max_size=30)))
    bias = st.one_of(st.just(-100), st.floats(-100, 100, width=32))
    biased = draw(st.dictionaries(tokens, bias, max_size=3))
    stops = draw(st.lists(tokens, max_size=2))
    sampling = SamplingParams(
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.4, 0.0])),
        top_k=draw(st.sampled_from([0, 0, 3, 10])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.07])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7, -0.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1.1])),
        repeat_last_n=draw(st.sampled_from([-1, -1, 0, 1, 5, 1000])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3, 0.0])),
        top_n_sigma=draw(st.sampled_from([0.0, 0.0, 0.5, 1.3])),
        xtc_probability=draw(st.sampled_from([0.0, 0.5, 1.0])),
        xtc_threshold=draw(st.sampled_from([0.0, 0.07, 0.2, 0.6])),
        dry_multiplier=draw(st.sampled_from([0.0, 0.8, 100.0])),
        dry_base=draw(st.sampled_from([1.0, 1.75, 16.0])),
        dry_allowed_length=draw(st.integers(1, 4)),
        logit_bias={str(token): value for token, value in biased.items()},
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, 3, 40])),
        stop_token_ids=tuple(TokenId(token) for token in stops),
    )
    return row(*logits), sampling, generated


@pytest.mark.long
@LAW
@given(cases())
def test_candidates_and_draw_agree_with_the_plain_reference(case: Case) -> None:
    logits, sampling, generated = case
    borders = Borders()
    try:
        expected = expected_candidates(logits.tolist(), sampling, generated, ENDS.tolist(), borders)
    except NothingLeft:
        with pytest.raises(ValueError, match="ban every possible token"):
            sample(*case, ENDS)
        return
    assume(borders.nearest > SHARP)
    ids, probs = candidates(*case, ENDS)
    assert ids.tolist() == list(expected)
    assert probs.tolist() == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-300)
    assert sample(*case, ENDS) == expected_token(expected, uniform(sampling.drawn_seed, len(generated)))


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 0.95, 0.5]),
    st.sampled_from([1.0, 0.9, 0.2]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([0.0, 1.0]),
)
@example(seed=1, top_p=1.0, typical_p=0.5, n_sigma=0.0, xtc=0.0)
def test_a_wide_row_agrees_with_the_plain_reference(
    seed: int, top_p: float, typical_p: float, n_sigma: float, xtc: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=3000) * rng.choice([0.5, 2.5])).astype(np.float32)
    sampling = SamplingParams(
        seed=seed,
        temperature=0.8,
        top_p=top_p,
        typical_p=typical_p,
        top_n_sigma=n_sigma,
        xtc_probability=xtc,
        xtc_threshold=0.01,
        dry_multiplier=0.8,
        frequency_penalty=-2.0,
        logit_bias=dict.fromkeys(map(str, range(100, 130)), 4.0),
    )
    generated = rng.integers(0, 30, 60).tolist()
    borders = Borders()
    expected = expected_candidates(logits.tolist(), sampling, generated, (), borders)
    assume(borders.nearest > 1e-11)
    ids, probs = candidates(logits, sampling, generated)
    assert ids.tolist() == list(expected)
    assert probs.tolist() == pytest.approx(list(expected.values()), rel=1e-9)
    assert sample(logits, sampling, generated) == expected_token(expected, uniform(seed, 60))
