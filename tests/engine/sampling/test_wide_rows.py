"""Cutting before sorting changes nothing: whole vocabularies against the plain way. Log-probabilities are raw."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from parity import formula
from worker.engine.sampling.row import NO_IDS, row_of
from worker.engine.sampling.sample import in_order, log_probabilities, sample
from worker.engine.sampling.shortlist import covering, settled, some_highest, truncated, whole
from worker.wire.jobs import SamplingParams

Row = NDArray[np.float32]
Make = Callable[[np.random.Generator, int], Row]

LAW = settings(max_examples=120)
F32_MAX = float(np.finfo(np.float32).max)
WORST = SamplingParams(seed=1, temperature=0.8, top_p=0.95)


def normal(rng: np.random.Generator, size: int) -> Row:
    scale = rng.choice([1e-20, 0.1, 1.0, 3.0, 6.0, 1e3, 1e30])
    return np.array(rng.normal(size=size) * scale, dtype=np.float32)


def model_like(rng: np.random.Generator, size: int) -> Row:
    row = normal(rng, size) if rng.random() < 0.2 else (rng.normal(size=size) * 2.5).astype(np.float32)
    row[rng.integers(0, size, 40)] += rng.normal(8.0, 3.0, size=40).astype(np.float32)
    return row


def tied(rng: np.random.Generator, size: int) -> Row:
    """Few values, so that ties lie across every edge."""
    return np.array(np.round(rng.normal(size=size) * rng.choice([1.0, 4.0])), dtype=np.float32)


def flat(rng: np.random.Generator, size: int) -> Row:
    return np.full(size, rng.choice([-1e4, 0.0, 0.3, 7.0]), dtype=np.float32)


def two_levels(rng: np.random.Generator, size: int) -> Row:
    return np.where(rng.random(size) < rng.choice([0.01, 0.5]), 5.0, rng.choice([4.0, -30.0])).astype(np.float32)


def dominated(rng: np.random.Generator, size: int) -> Row:
    row = model_like(rng, size)
    row[rng.integers(size)] = rng.choice([25.0, 40.0, 500.0, F32_MAX])
    return row


def mostly_impossible(rng: np.random.Generator, size: int) -> Row:
    row = model_like(rng, size)
    row[rng.random(size) < rng.choice([0.5, 0.999])] = -np.inf
    row[rng.integers(size)] = 1.0
    return row


def far_apart(rng: np.random.Generator, size: int) -> Row:
    row = normal(rng, size)
    row[rng.integers(0, size, 20)] = rng.choice(np.array([-F32_MAX, -1e-45, 1e-45, 88.0, -104.0], np.float32), size=20)
    return row


makes: list[Make] = [normal, model_like, tied, flat, two_levels, dominated, mostly_impossible, far_apart]

protocol_settings = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.one_of(st.sampled_from([1e-6, 1e-3, 0.8, 1.0, 2.0]), st.floats(2**-7, 2, width=32)),
    top_p=st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0 - 2.0**-24, 1.0]), st.floats(0, 1, width=32)),
    top_k=st.one_of(st.just(0), st.sampled_from([1, 40, 1000, 2**32 - 1])),
    repetition_penalty=st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.1, 2.0]),
    min_p=st.one_of(st.just(0.0), st.sampled_from([1e-38, 1e-20, 1e-3, 0.05, 0.5, 1.0])),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Row, SamplingParams, list[int]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([1, 2, 300, 1025, 5000, 12_000]))
    row = draw(st.sampled_from(makes))(rng, size)
    generated = rng.integers(0, size, draw(st.sampled_from([0, 1, 30, 700]))).tolist()
    row.flags.writeable = False
    return row, draw(protocol_settings), generated


@LAW
@given(cases())
def test_every_seed_draws_the_token_of_the_plain_way(case: tuple[Row, SamplingParams, list[int]]) -> None:
    row, sampling, generated = case
    for seed in range(3):
        reseeded = replace(sampling, seed=sampling.drawn_seed ^ seed)
        assert sample(row, reseeded, generated) == formula.sample(row, reseeded, generated)


@pytest.mark.parametrize("make", makes)
@pytest.mark.parametrize("size", [49_152, 152_064])
def test_whole_vocabularies_agree_with_the_plain_way(make: Make, size: int) -> None:
    row = make(np.random.default_rng(size), size)
    for sampling in (WORST, SamplingParams(seed=2), SamplingParams(seed=3, top_k=40, top_p=0.9)):
        assert sample(row, sampling, [5, 5, 9]) == formula.sample(row, sampling, [5, 5, 9])


@pytest.mark.parametrize("size", [6, 1000, 3 * 2**14])
@pytest.mark.parametrize("top_p", [0.25, 0.5])
def test_a_border_that_rounding_leaves_open_is_decided_as_the_plain_way_does(size: int, top_p: float) -> None:
    """A flat row: the sum meets top_p exactly, but for the rounding of each addition."""
    row = flat(np.random.default_rng(0), size)
    for seed in range(40):
        sampling = SamplingParams(seed=seed, top_p=top_p)
        assert sample(row, sampling, ()) == formula.sample(row, sampling, ())


@LAW
@given(cases(), st.floats(0, 1))
def test_a_cut_is_a_prefix_of_the_sorted_tokens_that_holds_the_wanted_share_or_all_that_min_p_keeps(
    case: tuple[Row, SamplingParams, list[int]], share: float
) -> None:
    row = row_of(*case, NO_IDS, case[1].temperature)
    shortlist, all_tokens = covering(row, case[1], share), whole(row, case[1])
    ids, _ = in_order(all_tokens)
    assert np.array_equal(np.sort(ids[: len(shortlist.ids)]), shortlist.ids)
    assert abs(shortlist.total - all_tokens.total) <= shortlist.error + all_tokens.error
    left_out = np.isin(all_tokens.ids, shortlist.ids, invert=True)
    assert shortlist.held >= share * all_tokens.total or (all_tokens.weights[left_out] < case[1].min_p).all()


@LAW
@given(cases())
def test_settling_a_cut_makes_its_total_exact(case: tuple[Row, SamplingParams, list[int]]) -> None:
    row = row_of(case[0], case[1], case[2], NO_IDS, case[1].temperature)
    plain = replace(case[1], top_k=0)
    shortlist = settled(covering(row, plain, 0.5), row)
    assert shortlist.total == pytest.approx(whole(row, plain).total, rel=1e-11)
    assert shortlist.error <= 1e-10 * shortlist.total


@LAW
@given(cases(), st.integers(1, 3000))
def test_a_cut_by_number_keeps_all_of_the_highest(case: tuple[Row, SamplingParams, list[int]], n_wanted: int) -> None:
    row = case[0]
    kept = some_highest(row, n_wanted)
    possible = row[row > -np.inf]
    assert (np.diff(kept) > 0).all()
    assert len(kept) >= min(n_wanted, len(possible))
    assert (row[kept] > -np.inf).all()
    assert len(kept) == len(possible) or row[kept].min() > np.delete(row, kept).max()


def test_a_row_like_a_models_is_cut_to_few_tokens() -> None:
    """The cut makes it cheap: hundreds of tokens are sorted, not the vocabulary's tens of thousands."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = (rng.normal(size=49_152) * 2.5).astype(np.float32)
        logits[:40] += rng.normal(8.0, 3.0, size=40).astype(np.float32)
        row = row_of(logits, WORST, (), NO_IDS, WORST.temperature)
        shortlist = covering(row, WORST, WORST.top_p)
        assert len(shortlist.ids) < 2500
        assert len(truncated(shortlist, WORST).ids) <= len(shortlist.ids)
        assert len(some_highest(logits, 40)) < 1000


LAW_OF_LOGPROBS = settings(max_examples=150)
logit = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([-math.inf, 0.0, -0.0, 1.0, 1.0, -3.4e38, 3.4e38, 88.0])
)
logit_rows = (
    st.lists(logit, min_size=1, max_size=30)
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: np.array(values, dtype=np.float32))
)


def expected(row: NDArray[np.float32]) -> list[float]:
    """ln p of every token."""
    values = [float(value) for value in row]
    total = math.fsum(math.exp(value - max(values)) for value in values)
    return [value - max(values) - math.log(total) for value in values]


@LAW_OF_LOGPROBS
@given(logit_rows, st.data())
def test_they_agree_with_the_formula(row: NDArray[np.float32], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    n_top = data.draw(st.integers(0, 20))
    logprob, top = log_probabilities(row, token, n_top)
    logprobs = expected(row)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    possible = [token for token in order if row[token] > -math.inf]
    assert logprob == pytest.approx(logprobs[token], rel=1e-12, abs=1e-12)
    assert [token for token, _ in top] == possible[:n_top]
    assert [value for _, value in top] == pytest.approx([logprobs[token] for token, _ in top], rel=1e-12, abs=1e-12)


def test_a_whole_vocabulary_lists_the_same_top_as_a_sort() -> None:
    row = np.round(np.random.default_rng(0).normal(size=49_152) * 3).astype(np.float32)
    _, top = log_probabilities(row, 7, 20)
    assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:20].tolist()


@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_a_row_without_a_distribution_is_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="no log-probabilities"):
        log_probabilities(np.array(row, dtype=np.float32), 0, 1)
