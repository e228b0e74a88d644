"""Mask first, then draw: cuts, penalties and biases see a row that has nothing but the allowed tokens."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.engine.sampling.reference import Borders, NothingLeft, Probs, expected_candidates, expected_token
from tests.engine.sampling.rows import Row, row
from tests.engine.sampling.test_transforms import ENDS, SHARP, Case, cases
from worker.engine.sampling.row import NO_IDS, Ids, Mask
from worker.engine.sampling.sample import candidates, masked, sample, uniform
from worker.wire.jobs import SamplingParams, TokenId

LAW = settings(max_examples=250)


def only(*tokens: int, n_vocab: int) -> Mask:
    return np.isin(np.arange(n_vocab), tokens)


@st.composite
def masked_cases(draw: st.DrawFn) -> tuple[Case, Mask]:
    case = draw(cases())
    tokens = draw(st.frozensets(st.integers(0, len(case[0]) - 1), min_size=1))
    return case, only(*tokens, n_vocab=len(case[0]))


def expected_given(case: Case, allowed: Mask, borders: Borders) -> Probs:
    """The reference on the row without the others, where min_tokens has no effect if it leaves nothing."""
    logits, sampling, generated = case
    left = [float(logit) if is_in else -math.inf for logit, is_in in zip(logits, allowed, strict=True)]
    try:
        return expected_candidates(left, sampling, generated, ENDS.tolist(), borders)
    except NothingLeft:
        return expected_candidates(left, replace(sampling, min_tokens=0), generated, ENDS.tolist(), borders)


@pytest.mark.long
@LAW
@given(masked_cases())
def test_the_draw_is_the_plain_references_on_a_row_without_the_other_tokens(drawn: tuple[Case, Mask]) -> None:
    case, allowed = drawn
    borders = Borders()
    try:
        expected = expected_given(case, allowed, borders)
    except NothingLeft:
        with pytest.raises(ValueError, match="the constraint allows no token that is possible and not banned"):
            sample(*case, ENDS, allowed)
        return
    assume(borders.nearest > SHARP)
    _, sampling, generated = case
    token = sample(*case, ENDS, allowed)
    assert allowed[token]
    assert token == expected_token(expected, uniform(sampling.drawn_seed, len(generated)))


@pytest.mark.long
@LAW
@given(masked_cases())
def test_the_probabilities_are_the_plain_references_on_a_row_without_the_other_tokens(
    drawn: tuple[Case, Mask],
) -> None:
    (logits, sampling, generated), allowed = drawn
    sampling = replace(sampling, min_tokens=0)
    borders = Borders()
    try:
        expected = expected_given((logits, sampling, generated), allowed, borders)
    except NothingLeft:
        return
    assume(borders.nearest > SHARP)
    ids, probs = candidates(masked(logits, allowed), sampling, generated, ENDS)
    assert ids.tolist() == list(expected)
    assert probs.tolist() == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-300)


@pytest.mark.long
@LAW
@given(masked_cases(), st.floats(-15, 15, width=32) | st.just(-math.inf))
def test_what_is_not_allowed_has_no_part_in_the_draw(drawn: tuple[Case, Mask], other: float) -> None:
    """Its logits may be anything, a NaN among them."""
    (logits, sampling, generated), allowed = drawn
    for value in (other, math.nan, math.inf):
        changed = np.where(allowed, logits, np.float32(value))
        assert drawn_or_none(changed, sampling, generated, allowed) == drawn_or_none(
            logits, sampling, generated, allowed
        )


def drawn_or_none(logits: Row, sampling: SamplingParams, generated: list[int], allowed: Mask) -> TokenId | None:
    try:
        return sample(logits, sampling, generated, ENDS, allowed)
    except ValueError:
        return None


def test_the_row_is_only_read_and_masked_in_a_copy() -> None:
    logits = row(0.0, 0.0, 0.0)
    assert not logits.flags.writeable
    assert masked(logits, only(1, n_vocab=3)).tolist() == [-np.inf, 0.0, -np.inf]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_and_a_mask_that_leave_no_token_are_an_error(temperature: float) -> None:
    logits = row(0.0, 1.0, -np.inf)
    banning = SamplingParams(seed=0, temperature=temperature, logit_bias={"0": -100})
    with pytest.raises(ValueError, match="the constraint allows no token that is possible and not banned"):
        drawn(logits, banning, 0, 2)
    with pytest.raises(ValueError, match="the constraint allows no token"):
        drawn(logits, banning)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_allowed_logit_that_is_no_number_is_an_error(temperature: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        drawn(row(0.0, math.nan, 1.0), SamplingParams(seed=0, temperature=temperature), 0, 1)


def drawn(logits: Row, sampling: SamplingParams, *tokens: int, ends: Ids = NO_IDS) -> TokenId:
    return sample(logits, sampling, (), ends, only(*tokens, n_vocab=len(logits)))
