"""From two sides' rows of logits to numbers: what every position differs by, and what a whole text does.

Rows go in one at a time, so that beside them only a few rows of float64 are held. Knows nothing of who made the rows,
or of bounds. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from worker.parity import estimates
from worker.parity.estimates import Estimate
from worker.parity.evidence import Positions
from worker.parity.report import Table
from worker.parity.row_numbers import KnownRow, Numbers, of_full, of_known


def compare_full(reference: NDArray[np.floating], candidate: NDArray[np.float32], targets: Sequence[int]) -> Positions:
    """`candidate` [n, n_vocab] against `reference` of the same shape; `targets[i]` follows position i, where any does.

    A candidate's row with a NaN or an infinity has infinite errors, KL and NLL, a NaN for its cosine, and agrees in
    nothing. Arithmetic is float64; rounding leaves some 1e-14 of a KL.
    Raises: ValueError for other shapes, and for a reference that is not finite.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"reference has shape {reference.shape}, candidate {candidate.shape}")
    rows = zip(reference, candidate, _followers(candidate, targets), strict=True)
    return _positions(of_full(*row) for row in rows)


def compare_partial(reference: Sequence[KnownRow], candidate: NDArray[np.float32], targets: Sequence[int]) -> Positions:
    """As `compare_full`, where each row of the reference is known by its highest logits.

    KL is that of the known tokens and the rest as one, which is never above the full one; errors and cosine are those
    of the known tokens. The other fields are exact.
    """
    if len(reference) != len(candidate):
        raise ValueError(f"reference has {len(reference)} rows, candidate {len(candidate)}")
    rows = zip(reference, candidate, _followers(candidate, targets), strict=True)
    return _positions(of_known(*row) for row in rows)


def second_half(positions: Positions) -> Positions:
    """The positions that llama-perplexity counts: those of a window's second half that have a next token."""
    n = len(positions.kl)
    return Positions(*(getattr(positions, field.name)[n // 2 : n - 1] for field in fields(Positions)))


def _followers(candidate: NDArray[np.float32], targets: Sequence[int]) -> list[int | None]:
    if candidate.ndim != 2 or not candidate.size or candidate.shape[1] < 2 or len(targets) > len(candidate):
        raise ValueError(f"logits of shape {candidate.shape} with {len(targets)} tokens that follow")
    return [*targets, *[None] * (len(candidate) - len(targets))]


def _positions(rows: Iterable[Numbers]) -> Positions:
    return Positions(*map(np.array, zip(*rows, strict=True)))


# ── a whole text ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Summary:
    """Many positions as a few numbers; estimates with 95 % intervals, windows being the unit of chance.

    A position that is not finite makes all that it is part of NaN or infinite, which holds no bound.
    """

    n_windows: int
    n_positions: int
    n_full: int
    """Of these: with every logit of the reference known."""
    n_broken: int
    """Of these: with a candidate's logit that is NaN or infinite."""
    max_error: float
    mean_error: float
    cosine_min: float
    cosine_mean: float
    kl_mean: Estimate
    kl_median: Estimate
    kl_p90: Estimate
    kl_p99: Estimate
    kl_p999: Estimate
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
            ("least cosine", f"{self.cosine_min:.9f}"),
            ("mean cosine", f"{self.cosine_mean:.9f}"),
            ("KL mean", self.kl_mean.text()),
            ("KL median", self.kl_median.text()),
            ("KL 90 %", self.kl_p90.text()),
            ("KL 99 %", self.kl_p99.text()),
            ("KL 99.9 %", self.kl_p999.text()),
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
    errors = np.concatenate([window.max_error for window in windows])
    cosines = np.concatenate([window.cosine for window in windows])
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
        cosine_min=float(cosines.min()),
        cosine_mean=float(cosines.mean()),
        kl_mean=estimates.mean(kl),
        kl_median=estimates.quantile(kl, 0.5),
        kl_p90=estimates.quantile(kl, 0.9),
        kl_p99=estimates.quantile(kl, 0.99),
        kl_p999=estimates.quantile(kl, 0.999),
        kl_max=float(np.concatenate(kl).max()),
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
