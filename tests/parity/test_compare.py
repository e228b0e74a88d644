"""The difference of two rows of logits by plain Python, and intervals that cover the truth as often as they promise."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parity import estimates
from parity.compare import (
    KnownRow,
    Positions,
    ReportedRow,
    compare_full,
    compare_partial,
    compare_reported,
    logsumexp,
    second_half,
    summarise,
)
from parity.estimates import Estimate
from worker.engine.sampling.shortlist import highest_first

LAW = settings(max_examples=60)
Rows = NDArray[np.float32]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """A reference and a candidate, near it or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 7, 300]))
    reference = (rng.normal(size=shape) * draw(st.sampled_from([0.0, 1.0, 5.0, 30.0]))).astype(np.float32)
    error = rng.normal(size=shape) * draw(st.sampled_from([0.0, 1e-5, 1e-2, 3.0]))
    return reference, (reference + error).astype(np.float32)


def known(reference: Rows, targets: list[int], n_known: int) -> list[KnownRow]:
    rows = []
    for number, row in enumerate(reference):
        ids = highest_first(row, n_known).astype(np.int32)
        following = float(row[targets[number]]) if number < len(targets) else math.nan
        rows.append(KnownRow(ids, row[ids], logsumexp(row), following))
    return rows


def reported(candidate: Rows, targets: list[int], n_listed: int) -> list[ReportedRow]:
    """A server's report: the highest `n_listed` of each row, and the token that follows."""
    rows: list[ReportedRow] = []
    for number, row in enumerate(candidate):
        ids = {*highest_first(row, n_listed).tolist(), *targets[number : number + 1]}
        rows.append({token: float(row[token]) - logsumexp(row) for token in ids})
    return rows


def plain_kl(reference: list[float], candidate: list[float]) -> float:
    p, q = ([math.exp(value - max(row)) for value in row] for row in (reference, candidate))
    p, q = ([value / math.fsum(row) for value in row] for row in (p, q))
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0.0)


@LAW
@given(pairs())
def test_numbers_are_those_of_plain_python(pair: tuple[Rows, Rows]) -> None:
    reference, candidate = pair
    targets = [1] * (len(reference) - 1)
    found = compare_full(reference, candidate, targets)
    for at, (expected, own) in enumerate(zip(reference.tolist(), candidate.tolist(), strict=True)):
        errors = [abs(a - b) for a, b in zip(expected, own, strict=True)]
        by_rank = [sorted(range(len(row)), key=lambda token: (-row[token], token)) for row in (expected, own)]
        assert found.kl[at] == pytest.approx(plain_kl(expected, own), rel=1e-7, abs=1e-13)
        assert found.max_error[at] == pytest.approx(max(errors), rel=1e-9, abs=1e-12)
        assert found.mean_error[at] == pytest.approx(sum(errors) / len(errors), rel=1e-9, abs=1e-12)
        assert found.top1[at] == (by_rank[0][0] == by_rank[1][0])
        n_top = min(5, len(own))
        assert found.top5[at] == len(set(by_rank[0][:5]) & set(by_rank[1][:5])) / n_top
        assert found.margin[at] == expected[by_rank[0][0]] - expected[by_rank[0][1]]
        if at < len(targets):
            assert found.nll[at] == pytest.approx(logsumexp(candidate[at]) - own[1], rel=1e-9, abs=1e-12)
    assert math.isnan(found.nll[-1])
    assert math.isnan(found.reference_nll[-1])
    assert found.is_full.all()


@LAW
@given(pairs())
def test_kl_is_never_negative_and_what_is_known_in_part_never_shows_more(pair: tuple[Rows, Rows]) -> None:
    reference, candidate = pair
    targets = [0] * (len(reference) - 1)
    full = compare_full(reference, candidate, targets)
    partials = {n: compare_partial(known(reference, targets, n), candidate, targets) for n in (2, 5, len(reference[0]))}
    for n_known, partial in partials.items():
        assert (partial.kl >= 0.0).all()
        assert (partial.kl <= full.kl * (1 + 1e-9) + 1e-12).all()
        assert (partial.max_error <= full.max_error + 1e-12).all()
        if n_known >= 5:
            assert np.array_equal(partial.top5, full.top5)
        for name in ("top1", "nll", "reference_nll", "margin"):
            np.testing.assert_allclose(getattr(partial, name), getattr(full, name), rtol=1e-12, atol=1e-12)
    assert partials[len(reference[0])].kl == pytest.approx(full.kl, rel=1e-6, abs=1e-12)


@LAW
@given(pairs(), st.sampled_from([2, 5, 256]), st.sampled_from([1, 5, 20, 300]))
def test_what_a_server_reports_is_exact_but_for_kl_which_it_never_exceeds(
    pair: tuple[Rows, Rows], n_known: int, n_listed: int
) -> None:
    reference, candidate = pair
    targets = [0] * (len(reference) - 1)
    n_vocab = len(reference[0])
    full = compare_full(reference, candidate, targets)
    rows = known(reference, targets, min(n_known, n_vocab))
    found = compare_reported(rows, reported(candidate, targets, min(n_listed, n_vocab)), targets)
    assert (found.kl >= 0.0).all()
    assert (found.kl <= full.kl * (1 + 1e-9) + 1e-12).all()
    for name in ("top1", "margin", *(("top5",) if min(n_known, n_listed) >= 5 else ())):
        assert np.array_equal(getattr(found, name), getattr(full, name))
    for name in ("nll", "reference_nll"):
        np.testing.assert_allclose(getattr(found, name), getattr(full, name), rtol=1e-9, atol=1e-12)
    assert not found.is_full.any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("is_full", [True, False])
def test_a_candidate_that_is_not_finite_holds_no_bound(value: float, is_full: bool) -> None:
    reference = np.random.default_rng(4).normal(size=(3, 50)).astype(np.float32)
    candidate = reference.copy()
    candidate[1, 49] = value
    targets = [1, 2]
    found = (
        compare_full(reference, candidate, targets)
        if is_full
        else compare_partial(known(reference, targets, 5), candidate, targets)
    )
    assert (found.kl[1], found.max_error[1], found.mean_error[1], found.nll[1]) == (math.inf,) * 4
    assert (found.top1.tolist(), found.top5.tolist()) == ([True, False, True], [1.0, 0.0, 1.0])
    summary = summarise([found])
    assert summary.n_broken == 1
    of_all = (
        summary.kl_mean.value,
        summary.kl_median,
        summary.kl_p99,
        summary.perplexity_ratio.value,
    )
    assert all(math.isnan(number) for number in of_all)
    assert summary.kl_max == summary.max_error == math.inf
    assert ("KL mean", "not finite") in summary.rows()


def test_a_reference_that_is_not_finite_is_refused() -> None:
    rows = np.full((1, 4), np.nan, dtype=np.float32)
    with pytest.raises(ValueError, match="reference"):
        compare_full(rows, np.zeros((1, 4), dtype=np.float32), [])


def made(seed: int, n_windows: int = 3) -> list[Positions]:
    rng = np.random.default_rng(seed)
    windows = []
    for _ in range(n_windows):
        reference = (rng.normal(size=(20, 100)) * 3).astype(np.float32)
        candidate = (reference + rng.normal(size=reference.shape) * 0.1).astype(np.float32)
        windows.append(compare_full(reference, candidate, rng.integers(0, 100, 19).tolist()))
    return windows


def test_a_summary_is_of_all_positions_alike() -> None:
    windows = made(0)
    summary = summarise(windows)
    kl = np.concatenate([window.kl for window in windows])
    nll = np.concatenate([window.nll[:-1] for window in windows])
    assert (summary.n_windows, summary.n_positions, summary.n_full, summary.n_broken) == (3, 60, 60, 0)
    assert summary.kl_mean.value == pytest.approx(kl.mean())
    assert [summary.kl_median, summary.kl_p99] == pytest.approx(np.quantile(kl, [0.5, 0.99]).tolist())
    assert summary.perplexity.value == pytest.approx(math.exp(nll.mean()))
    assert summary.perplexity_ratio.value == pytest.approx(
        summary.perplexity.value / summary.reference_perplexity.value
    )
    assert summary.top1.value == pytest.approx(np.concatenate([window.top1 for window in windows]).mean())


@pytest.mark.parametrize(("n_tokens", "counted"), [(512, range(256, 511)), (64, range(32, 63)), (5, range(2, 4))])
def test_the_second_half_is_what_llama_perplexity_counts(n_tokens: int, counted: range) -> None:
    """Context 512: positions 256 to 510, each with the token after it."""
    whole = made(3, 1)[0]
    numbered = replace(whole, kl=np.arange(n_tokens, dtype=np.float64), top1=np.arange(n_tokens) % 2 == 0)
    half = second_half(numbered)
    assert half.kl.tolist() == list(counted)
    assert half.top1.tolist() == [number % 2 == 0 for number in counted]


Groups = list[NDArray[np.float64]]
N_TEXTS = 400
MIN_COVERED, MAX_COVERED = 0.90, 0.995
"""The share of 400 texts that an interval of 95 % covers lies between 92.8 and 97.2 % in 19 of 20 cases. Intervals of
shares are a little wide."""


def covers(make: Callable[[np.random.Generator], Groups], of: Callable[[Groups], Estimate], truth: float) -> float:
    rng = np.random.default_rng(11)
    found = [of(make(rng)) for _ in range(N_TEXTS)]
    return sum(one.low <= truth <= one.high for one in found) / N_TEXTS


def alike(rng: np.random.Generator, n_windows: int = 8) -> Groups:
    return [rng.normal(size=60) for _ in range(n_windows)]


def unlike(rng: np.random.Generator) -> Groups:
    """Windows differ by as much as their positions do: 480 positions are worth little more than eight."""
    return [rng.normal() + rng.normal(size=60) for _ in range(8)]


@pytest.mark.parametrize("n_windows", [1, 2, 8, 40])
def test_means_of_windows_that_are_alike_are_covered(n_windows: int) -> None:
    assert MIN_COVERED <= covers(lambda rng: alike(rng, n_windows), estimates.mean, 0.0) <= MAX_COVERED


def test_means_of_windows_that_differ_are_covered() -> None:
    assert MIN_COVERED <= covers(unlike, estimates.mean, 0.0) <= MAX_COVERED


@pytest.mark.parametrize("p", [0.5, 0.94, 0.995])
def test_shares_are_covered(p: float) -> None:
    def make(rng: np.random.Generator) -> Groups:
        return [(rng.random(60) < p).astype(np.float64) for _ in range(8)]

    assert MIN_COVERED <= covers(make, estimates.share, p) <= 1.0


@pytest.mark.parametrize("of", [estimates.mean, estimates.share])
@pytest.mark.parametrize("groups", [[np.array([1.0, math.inf])], [np.array([math.nan])], [np.empty(0)]])
def test_what_is_not_finite_is_no_estimate(of: Callable[[Groups], Estimate], groups: Groups) -> None:
    found = of(groups)
    assert all(math.isnan(number) for number in (found.value, found.low, found.high))
    assert found.text() == "not finite"
