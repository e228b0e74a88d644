"""The comparison of two sides' rows of logits: numbers for every position and for a whole text.

Rows go in one at a time, so that only a few more rows of float64 are held. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from parity import estimates
from parity.estimates import Estimate
from parity.report import Table
from worker.engine.sampling.shortlist import highest_first

N_TOP = 5
_NOISE = 1e-14
"""A share of the reference's probability below this is the rounding of `1 - sum`."""

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Positions:
    """A candidate's rows against the reference's, one entry per position: arrays of one length, float64 unless said.

    Where the reference row is known by its highest entries only, `kl` is over these and the rest as one (a lower
    bound), and errors are over these. If a candidate reports log-probabilities of some tokens,
    the same holds of those that both sides know, and errors are of log-probabilities.
    """

    kl: NDArray[np.float64]
    """KL(reference ‖ candidate), nats."""
    max_error: NDArray[np.float64]
    """Largest |candidate - reference| of a logit."""
    mean_error: NDArray[np.float64]
    top1: NDArray[np.bool_]
    """True if both rows have the same highest token."""
    top5: NDArray[np.float64]
    """Share of the reference's five highest that are among the candidate's."""
    margin: NDArray[np.float64]
    """Reference's highest logit minus its second."""
    nll: NDArray[np.float64]
    """Candidate's -log p of the token that follows in the window; NaN at the last position."""
    reference_nll: NDArray[np.float64]
    is_full: NDArray[np.bool_]
    """True if the reference row is complete."""


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A reference's row of which the highest logits are known."""

    ids: NDArray[np.int32]
    """Highest logit first, ties by lower id; at least two."""
    logits: NDArray[np.float32]
    logsumexp: float
    """The value over the whole vocabulary."""
    next_logit: float
    """The logit of the token that follows; NaN where none does."""

    def logprobs(self, target: int | None) -> dict[int, float]:
        """The log-probabilities of the known tokens and of `target`, the next token."""
        known = dict(zip(self.ids.tolist(), (self.logits.astype(np.float64) - self.logsumexp).tolist(), strict=True))
        return known if target is None else known | {target: self.next_logit - self.logsumexp}


ReportedRow = Mapping[int, float]
"""The part of a row that a server reports: log-probabilities by token, of the most probable tokens and the next
token."""


class _Position(NamedTuple):
    """The fields of Positions, of one position."""

    kl: float
    max_error: float
    mean_error: float
    top1: bool
    top5: float
    margin: float
    nll: float
    reference_nll: float
    is_full: bool


def compare_full(reference: NDArray[np.floating], candidate: NDArray[np.float32], targets: Sequence[int]) -> Positions:
    """`candidate` [n, n_vocab] against `reference` of the same shape; `targets[i]` follows position i, where any does.

    A candidate's row with a NaN or an infinity has infinite errors, KL and NLL, and agrees in
    nothing. Arithmetic is float64; rounding leaves some 1e-14 of a KL.
    Raises: ValueError for other shapes, and for a reference that is not finite.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"reference has shape {reference.shape}, candidate {candidate.shape}")
    rows = zip(reference, candidate, _followers(candidate, targets), strict=True)
    return _positions(_of_full(*row) for row in rows)


def compare_partial(reference: Sequence[KnownRow], candidate: NDArray[np.float32], targets: Sequence[int]) -> Positions:
    """Compare like `compare_full`, with only the highest logits of each row of the reference.

    KL treats the unknown tokens as one and is never above the full KL. Errors cover the known tokens. The
    other fields are exact.
    """
    if len(reference) != len(candidate):
        raise ValueError(f"reference has {len(reference)} rows, candidate {len(candidate)}")
    rows = zip(reference, candidate, _followers(candidate, targets), strict=True)
    return _positions(_of_known(*row) for row in rows)


def compare_reported(
    reference: Sequence[KnownRow], reported: Sequence[ReportedRow], targets: Sequence[int]
) -> Positions:
    """Compare like `compare_partial`, with only log-probabilities of the candidate, at least one for each row.

    The most probable token, the five most probable tokens and NLL are exact; the NLL of a token that the candidate does
    not report is infinite. KL covers the tokens that both sides know, and treats the others as two: those that only the
    candidate reports, and the rest. It is never above the full KL.
    Raises: ValueError for another number of rows.
    """
    followers = [*targets, *[None] * (len(reported) - len(targets))]
    return _positions(_of_reported(*row) for row in zip(reference, reported, followers, strict=True))


def second_half(positions: Positions) -> Positions:
    """The positions that llama-perplexity counts: those of a window's second half that have a next token."""
    n = len(positions.kl)
    return Positions(*(getattr(positions, field.name)[n // 2 : n - 1] for field in fields(Positions)))


def _followers(candidate: NDArray[np.float32], targets: Sequence[int]) -> list[int | None]:
    if candidate.ndim != 2 or not candidate.size or candidate.shape[1] < 2 or len(targets) > len(candidate):
        raise ValueError(f"logits of shape {candidate.shape} with {len(targets)} tokens that follow")
    return [*targets, *[None] * (len(candidate) - len(targets))]


def _positions(rows: Iterable[_Position]) -> Positions:
    return Positions(*map(np.array, zip(*rows, strict=True)))


def logsumexp(row: NDArray[np.floating]) -> float:
    """ln of the sum of exp(logit), in float64."""
    softmax = _Softmax.of(row)
    return softmax.highest + softmax.log_total


# ── one position ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A row against its highest logit, so that a constant added to it changes nothing."""

    highest: float
    shifted: Reals
    """logits - highest"""
    weights: Reals
    """exp(shifted)"""
    total: float

    @classmethod
    def of(cls, row: NDArray[np.floating]) -> Self:
        highest = float(row.max())
        shifted = row.astype(np.float64)
        shifted -= highest
        weights = np.exp(shifted)
        return cls(highest, shifted, weights, float(weights.sum()))

    @property
    def log_total(self) -> float:
        return math.log(self.total)

    def nll(self, token: int | None) -> float:
        return math.nan if token is None else self.log_total - float(self.shifted[token])


def _of_full(reference: NDArray[np.floating], candidate: NDArray[np.float32], target: int | None) -> _Position:
    """Every logit of both rows known. `target`: the token that follows. Raises: ValueError when the reference's row is
    not finite."""
    if not np.isfinite(reference).all():
        raise ValueError("the reference's logits are not all finite")
    tops, expected = highest_first(reference, N_TOP), _Softmax.of(reference)
    margin = float(expected.shifted[tops[0]] - expected.shifted[tops[1]])
    if not np.isfinite(candidate).all():
        return _broken(margin, expected.nll(target), is_full=True)
    found = _Softmax.of(candidate)
    difference = expected.shifted - found.shifted
    kl = _dot(expected.weights, difference) / expected.total + found.log_total - expected.log_total
    difference += expected.highest - found.highest
    return _Position(
        max(kl, 0.0),
        *_errors(difference),
        *_agreement(tops, candidate),
        margin,
        found.nll(target),
        expected.nll(target),
        is_full=True,
    )


def _of_known(reference: KnownRow, candidate: NDArray[np.float32], target: int | None) -> _Position:
    """KL of the known tokens and the rest as one, errors of the known tokens; the other numbers exact."""
    known = reference.logits.astype(np.float64)
    margin = float(known[0] - known[1])
    reference_nll = math.nan if target is None else reference.logsumexp - reference.next_logit
    if not np.isfinite(candidate).all():
        return _broken(margin, reference_nll, is_full=False)
    found = _Softmax.of(candidate)
    own = candidate[reference.ids].astype(np.float64)
    return _Position(
        max(_known_kl(known - reference.logsumexp, reference.ids, found), 0.0),
        *_errors(known - own),
        *_agreement(reference.ids[:N_TOP], candidate),
        margin,
        found.nll(target),
        reference_nll,
        is_full=False,
    )


def _known_kl(logprobs: Reals, ids: NDArray[np.int32], found: _Softmax) -> float:
    probs = np.exp(logprobs)
    kl = _dot(probs, logprobs - (found.shifted[ids] - found.log_total))
    rest = 1.0 - float(probs.sum())
    if rest < _NOISE or len(ids) == len(found.weights):
        return kl
    weights = found.weights.copy()
    weights[ids] = 0.0
    found_rest = float(weights.sum()) / found.total
    return kl + rest * math.log(rest / found_rest) if found_rest else math.inf


def _of_reported(reference: KnownRow, reported: ReportedRow, target: int | None) -> _Position:
    """Both rows known in part. `target`: the token that follows."""
    expected = reference.logprobs(target)
    shared = [token for token in reported if token in expected]
    own, theirs = (np.array([row[token] for token in shared], dtype=np.float64) for row in (reported, expected))
    tops = sorted(reported, key=lambda token: (-reported[token], token))[:N_TOP]
    alone = [reported[token] for token in reported if token not in expected]
    # None of them is more probable than the last known token, and together they have the rest of the probability.
    smallest, known = math.exp(float(reference.logits[-1]) - reference.logsumexp), _sum_of(expected.values())
    limit = max(min(len(alone) * smallest, 1.0 - known), 0.0)
    return _Position(
        max(_reported_kl(theirs, own, _sum_of(alone), limit), 0.0),
        *(_errors(theirs - own) if shared else (math.inf, math.inf)),
        tops[0] == reference.ids[0],
        len(set(tops).intersection(reference.ids[:N_TOP].tolist())) / len(reference.ids[:N_TOP]),
        float(reference.logits[0]) - float(reference.logits[1]),
        math.nan if target is None else -reported.get(target, -math.inf),
        math.nan if target is None else -expected[target],
        is_full=False,
    )


def _reported_kl(expected: Reals, own: Reals, of_alone: float, limit: float) -> float:
    """KL where two parts of the vocabulary count as one token each: the tokens that only the candidate reports, to
    which it gives `of_alone`, and the rest. What the reference gives to the former is not known, but at most `limit`;
    it is taken as what makes KL smallest."""
    probs = np.exp(expected)
    left = 1.0 - float(probs.sum())
    of_rest = max(1.0 - float(np.exp(own).sum()) - of_alone, _NOISE)
    to_alone = min(left * of_alone / (of_alone + of_rest), limit)
    parts = ((to_alone, of_alone), (left - to_alone, of_rest))
    return _dot(probs, expected - own) + sum(p * math.log(p / q) for p, q in parts if p > _NOISE)


def _sum_of(logprobs: Iterable[float]) -> float:
    """The sum of the probabilities."""
    return sum(map(math.exp, logprobs))


def _dot(one: Reals, other: Reals) -> float:
    # Not `@`: BLAS wakes its threads for every row, which takes six times as long as one core, and rounds more.
    return float((one * other).sum())


def _errors(difference: Reals) -> tuple[float, float]:
    np.abs(difference, out=difference)
    return float(difference.max()), float(difference.mean())


def _agreement(tops: NDArray[np.integer], candidate: NDArray[np.float32]) -> tuple[bool, float]:
    own = highest_first(candidate, N_TOP)
    return bool(own[0] == tops[0]), len(set(own.tolist()).intersection(tops.tolist())) / len(tops)


def _broken(margin: float, reference_nll: float, *, is_full: bool) -> _Position:
    """A candidate's row with a NaN or an infinity: no bound holds of it, and it agrees in nothing."""
    nll = math.nan if math.isnan(reference_nll) else math.inf
    return _Position(math.inf, math.inf, math.inf, False, 0.0, margin, nll, reference_nll, is_full)


# ── a whole text ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Summary:
    """Many positions as a few numbers; estimates with 95 % intervals, windows being the unit of chance.

    A position that is not finite makes all that it is part of NaN or infinite, which holds no bound.
    """

    n_windows: int
    n_positions: int
    n_full: int
    """The number of these positions with a complete row of the reference."""
    n_broken: int
    """The number of these positions with a candidate's logit that is NaN or infinite."""
    max_error: float
    mean_error: float
    kl_mean: Estimate
    kl_median: float
    kl_p90: float
    kl_p99: float
    kl_p999: float
    kl_max: float
    top1: Estimate
    top5: Estimate
    perplexity: Estimate
    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    """Candidate's over reference's: the geometric mean of the paired ratios of probabilities."""

    @property
    def perplexity_distance(self) -> float:
        """|ln| of the ratio; infinite where there is none."""
        ratio = self.perplexity_ratio.value
        return abs(math.log(ratio)) if ratio > 0.0 and math.isfinite(ratio) else math.inf

    def rows(self) -> tuple[tuple[str, str], ...]:
        """(what, how much) for a table."""
        return (
            ("positions", f"{self.n_positions} in {self.n_windows} windows"),
            ("known in full", str(self.n_full)),
            ("not finite", str(self.n_broken)),
            ("largest error of a logit", f"{self.max_error:.3g}"),
            ("mean error of a logit", f"{self.mean_error:.3g}"),
            ("KL mean", self.kl_mean.text()),
            ("KL median", f"{self.kl_median:.3g}"),
            ("KL 90 %", f"{self.kl_p90:.3g}"),
            ("KL 99 %", f"{self.kl_p99:.3g}"),
            ("KL 99.9 %", f"{self.kl_p999:.3g}"),
            ("KL largest", f"{self.kl_max:.3g}"),
            ("same most probable token", self.top1.text(".2f", 100.0, " %")),
            ("overlap of the five most probable", self.top5.text(".2f", 100.0, " %")),
            ("perplexity", self.perplexity.text(".4f")),
            ("reference's perplexity", self.reference_perplexity.text(".4f")),
            ("ratio of perplexities", self.perplexity_ratio.text(".6f")),
        )


def summarise(windows: Sequence[Positions]) -> Summary:
    """The positions of each window as one summary. Raises: ValueError when there are none."""
    if not windows:
        raise ValueError("there is nothing to summarise")
    kl = [window.kl for window in windows]
    all_kl = np.concatenate(kl)
    quantiles = np.quantile(all_kl, (0.5, 0.9, 0.99, 0.999)) if np.isfinite(all_kl).all() else np.full(4, math.nan)
    errors = np.concatenate([window.max_error for window in windows])
    predicting = [~np.isnan(window.reference_nll) for window in windows]
    nll = [window.nll[has_next] for window, has_next in zip(windows, predicting, strict=True)]
    reference_nll = [window.reference_nll[has_next] for window, has_next in zip(windows, predicting, strict=True)]
    return Summary(
        n_windows=len(windows),
        n_positions=len(errors),
        n_full=sum(int(window.is_full.sum()) for window in windows),
        n_broken=int(np.count_nonzero(np.isinf(errors))),
        max_error=float(errors.max()),
        mean_error=float(np.concatenate([window.mean_error for window in windows]).mean()),
        kl_mean=estimates.mean(kl),
        kl_median=float(quantiles[0]),
        kl_p90=float(quantiles[1]),
        kl_p99=float(quantiles[2]),
        kl_p999=float(quantiles[3]),
        kl_max=float(all_kl.max()),
        top1=estimates.share([window.top1.astype(np.float64) for window in windows]),
        top5=estimates.share([window.top5 for window in windows]),
        perplexity=estimates.exp(estimates.mean(nll)),
        reference_perplexity=estimates.exp(estimates.mean(reference_nll)),
        perplexity_ratio=estimates.exp(
            estimates.mean([own - other for own, other in zip(nll, reference_nll, strict=True)])
        ),
    )


def side_by_side(title: str, summaries: Mapping[str, Summary], note: str = "") -> Table:
    """A column for each of at least one summary."""
    labels = [label for label, _ in next(iter(summaries.values())).rows()]
    cells = [[text for _, text in summary.rows()] for summary in summaries.values()]
    rows = tuple(zip(labels, *cells, strict=True))
    return Table(title, ("", *(f">{name}" for name in summaries)), rows, note)
