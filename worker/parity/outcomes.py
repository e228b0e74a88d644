"""Checkpoints 9 to 12: the selected row, its highest token, its probabilities, and whole continuations.

Owns what counts as a near-tie: where two of the reference's logits are no further apart than twice the error that a
logit may have, either order is right. The numbers come from the bounds file. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.parity.bounds import Bounds
from worker.parity.report import Check
from worker.sampling.sorted import softmax

Logits = NDArray[np.floating]

N_TOP = 5


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits of one text, each [n_tokens, n_vocab]."""

    reference: Logits
    in_graph: Logits
    """The graph's own tensor."""
    given: Logits
    """What the library hands out."""


def outcomes(
    rows: Rows,
    continuation: Sequence[int],
    margins: Sequence[float],
    runs: Sequence[Sequence[int]],
    bounds: Bounds,
) -> Iterator[Check]:
    """`margins`: the reference's, of the tokens of its `continuation`. `runs`: the library's continuations."""
    near = 2 * bounds.bound("checkpoints.logits").value
    yield _selected(rows.in_graph[-1], rows.given[-1], bounds)
    yield _highest(rows.reference, rows.given, near, bounds)
    yield from _probabilities(rows.reference[-1], rows.given[-1], near, bounds)
    yield from _end_to_end(continuation, margins, runs, near, bounds)


def _selected(in_graph: Logits, given: Logits, bounds: Bounds) -> Check:
    """The tapped run's and the other's, bit for bit."""
    n_unlike = int((in_graph.view(np.uint32) != given.view(np.uint32)).sum())
    return bounds.check("selected logits (checkpoint 9), entries of other bits", n_unlike, "checkpoints.selected")


def _highest(reference: Logits, given: Logits, near: float, bounds: Bounds) -> Check:
    """Of every position."""
    wanted, found = reference.argmax(-1), given.argmax(-1)
    places = np.arange(len(reference))
    gaps = reference[places, wanted] - reference[places, found]
    wrong = np.flatnonzero((wanted != found) & (gaps > near))
    n_ties = int((wanted != found).sum()) - len(wrong)
    note = f"first at position {wrong[0]}" if len(wrong) else f"{len(places)} positions, {n_ties} near-ties apart"
    return bounds.check(
        "highest token (checkpoint 10), others than the reference's", len(wrong), "checkpoints.argmax", note=note
    )


def _probabilities(reference: Logits, given: Logits, near: float, bounds: Bounds) -> Iterator[Check]:
    """Of the selected row, as the worker's sampler computes them."""
    what = "probabilities (checkpoint 11)"
    ids = np.argsort(-given, kind="stable")
    probs = np.empty(len(given))
    # An infinite logit becomes NaN here, which holds no bound.
    with np.errstate(invalid="ignore"):
        probs[ids] = softmax(given[ids].astype(np.float64))
        from_same, from_reference = _apart(probs, given), _apart(probs, reference)
    yield bounds.check(f"{what}, against those of the same logits", from_same, "checkpoints.softmax")
    yield bounds.check(f"{what}, against the reference", from_reference, "checkpoints.probabilities")
    yield bounds.check(f"{what}, sum less 1", abs(float(probs.sum()) - 1.0), "checkpoints.sum")
    wanted = np.argsort(-reference, kind="stable")[:N_TOP]
    is_wrong = (wanted != ids[:N_TOP]) & (np.abs(reference[wanted] - reference[ids[:N_TOP]]) > near)
    yield bounds.check(f"{what}, wrong ids among the top {N_TOP}", int(is_wrong.sum()), "checkpoints.top")


def _apart(probs: Logits, logits: Logits) -> float:
    """The largest difference to the softmax of `logits`, which is computed in the widest type there is."""
    weights = np.exp(logits.astype(np.longdouble) - logits.max())
    return float(np.abs(probs - weights / weights.sum()).max())


def _end_to_end(
    wanted: Sequence[int], margins: Sequence[float], runs: Sequence[Sequence[int]], near: float, bounds: Bounds
) -> Iterator[Check]:
    what = f"end to end (checkpoint 12), {len(runs)} runs of {len(wanted)} tokens"
    n_unlike = sum(list(run) != list(runs[0]) for run in runs)
    yield bounds.check(f"{what}, runs unlike the first", n_unlike, "checkpoints.repeated")
    steps = [_divergence(wanted, run) for run in runs]
    wrong = [step for step in steps if step is not None and margins[step] > near]
    ties = [step for step in steps if step is not None and margins[step] <= near]
    note = f"first at token {min(wrong)}" if wrong else f"{len(ties)} end at a near-tie" if ties else ""
    yield bounds.check(f"{what}, unlike the reference", len(wrong), "checkpoints.end_to_end", note=note)


def _divergence(wanted: Sequence[int], run: Sequence[int]) -> int | None:
    """The first step at which they differ; what follows is about another text."""
    return next((step for step, pair in enumerate(zip(wanted, run, strict=True)) if pair[0] != pair[1]), None)
