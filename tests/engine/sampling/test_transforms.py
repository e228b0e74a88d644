"""All sampling settings, masks and penalties against the slow reference, and the tokens that each cut keeps."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from tests.engine.sampling.reference import (
    Borders,
    NothingLeft,
    Probs,
    Row,
    expected_candidates,
    expected_token,
    ids_of,
    match_lengths,
    row,
)
from worker.engine.sampling.row import NO_IDS, Ids, Mask, dry, repetitions
from worker.engine.sampling.sample import candidates, masked, sample, uniform
from worker.wire.jobs import SamplingParams, TokenId

LAW = settings(max_examples=400)
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


PLAIN = SamplingParams(seed=42)
GREEDY = SamplingParams(seed=42, temperature=0.0)
F32_MAX = float(np.finfo(np.float32).max)


ordinary = st.floats(-20, 20, width=32)
tied = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
extreme = st.sampled_from([-math.inf, -F32_MAX, F32_MAX, 1e-45, -1e-45, 1e-20, 88.0, -104.0])
logit = st.one_of(ordinary, tied, extreme)
extreme_rows = (
    st.one_of(
        st.lists(ordinary, min_size=1, max_size=24),
        st.lists(tied, min_size=1, max_size=24),
        st.lists(logit, min_size=1, max_size=24),
        st.builds(lambda size, value: [value] * size, st.integers(1, 24), ordinary),
        st.builds(lambda rest, peak: [*rest, peak], st.lists(ordinary, max_size=12), st.just(500.0)),
    )
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: row(*values))
)
samplings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.one_of(st.sampled_from([0.0, 9e-7, 1e-6, 0.7, 1.0, 2.0]), st.floats(2**-7, 2, width=32)),
    top_p=st.one_of(st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.floats(0, 1, width=32)),
    top_k=st.one_of(st.sampled_from([0, 1, 5, 2**32 - 1]), st.integers(0, 30)),
    repetition_penalty=st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.1, 2.0]), st.floats(2**-6, 2, width=32)),
    min_p=st.one_of(st.sampled_from([0.0, 0.05, 1.0]), st.floats(0, 1, width=32)),
)


@st.composite
def extreme_cases(draw: st.DrawFn) -> Case:
    logits = draw(extreme_rows)
    generated = draw(st.lists(st.integers(0, len(logits) - 1), max_size=12))
    return logits, draw(samplings), generated


@pytest.mark.long
@LAW
@given(cases() | extreme_cases())
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


@pytest.mark.long
@LAW
@given(extreme_cases(), extreme_cases())
def test_the_token_depends_on_its_own_row_settings_and_history_only(
    case: Case,
    other: Case,
) -> None:
    before = case[0].copy()
    first = sample(*case)
    sample(*other)
    assert sample(before.copy(), *case[1:]) == first
    assert case[0].tobytes() == before.tobytes()


CUTS = [json.loads(line) for line in Path(__file__).with_name("cuts.jsonl").read_text().splitlines()]
"""Scores, or what they are the logarithms of, a setting, and the ids of the tokens that it keeps."""


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut['says']} {cut['sampling']}")
def test_the_kept_tokens(cut: dict[str, Any]) -> None:
    scores = [-math.inf if score is None else float(score) for score in cut.get("logits", ())]
    logits = row(*scores, *map(math.log, cut.get("odds", ())))
    assert ids_of(logits, SamplingParams(seed=0, **cut["sampling"])) == cut["kept"]


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN, replace(GREEDY, repetition_penalty=1.1), replace(PLAIN, top_k=1)])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (row(0.0, math.nan, 1.0), "NaN"),
        (row(0.0, math.inf, math.nan), "NaN"),
        (row(0.0, math.inf), r"\+inf"),
        (row(-math.inf, -math.inf), "every logit is -inf"),
    ],
)
def test_a_row_without_a_distribution_is_refused(
    logits: NDArray[np.float32], message: str, sampling: SamplingParams
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(logits, sampling, [0])
    with pytest.raises(ValueError, match=message):
        candidates(logits, sampling, [0])


LAW_OF_MASKS = settings(max_examples=250)


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
@LAW_OF_MASKS
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
@LAW_OF_MASKS
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
@LAW_OF_MASKS
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


LAW_OF_PENALTIES = settings(max_examples=400)
few_letters = st.lists(st.integers(0, 2), max_size=40)
repeating = st.builds(lambda word, times, end: word * times + end, few_letters, st.integers(1, 4), few_letters)


def test_a_hopeless_token_can_still_be_drawn_when_it_is_the_only_one() -> None:
    sampling = SamplingParams(seed=0, dry_multiplier=100.0, dry_base=16.0)
    assert sample(row(5.0), sampling, [0] * 1000) == 0
    assert sample(row(5.0), replace(sampling, temperature=0.0), [0] * 1000) == 0


@LAW_OF_PENALTIES
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
