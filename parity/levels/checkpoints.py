"""Level `checkpoints`: every point of every layer of the F32 copy against the reference; what becomes of the logits.

Both sides have the same weights and the same tokens, so that what differs is the computation.
"""

import worker.llama  # isort: skip  # noqa: F401 - before numpy, which brings a C++ library that some builds die of
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from parity.bounds import Bounds
from parity.capture import capture
from parity.llama.scoring import Scorer, Setup
from parity.naming import not_comparable
from parity.points import CHECKPOINT, NAMES, Activations, Name, Point
from parity.report import Check, Level, Table, judged, not_run
from parity.setups import opened
from worker.engine.sampling.sample import softmax
from worker.llama.model import Model
from worker.models.facts.info import read_info

NAME = "checkpoints"
N_TOP = 5

N_TOKENS = 24
"""The bounds are meant for a text of this length: llama.cpp's RoPE angles are float32, and their error grows with the
position. Over 24 tokens K of layer 0 is within 6e-6 of the reference, over 32 within 1.2e-5, where 1e-5 is allowed."""

N_RUNS = 3
"""The number of runs of the greedy continuation (checkpoint 12)."""

Values = NDArray[np.floating]

_SHOWN = ("scaled", "spread", "largest")

_STORED: dict[Name, Name] = {"k_cache": "k_rope", "v_cache": "v_proj"}
"""The points in KV memory, and the points that were stored there (checkpoint 3)."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """Numbers of one point; NaN where nothing could be measured, infinite where only the reference is all 0."""

    point: Point
    relative: float
    """max |Δ| / RMS(reference)."""
    scaled: float
    """max |Δ| / max(RMS(reference), |reference|): an entry far above the others rounds as coarsely as it is large."""
    spread: float
    """RMS(Δ) / RMS(reference)."""
    largest: float
    """max |Δ|."""
    mean: float
    """mean |Δ|."""
    where: str
    """The place of the largest, or why nothing was measured."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The reference's numbers for a text. Made by `of`."""

    tokens: tuple[int, ...]
    activations: Activations
    continuation: tuple[int, ...]
    """The greedy continuation of `tokens`."""
    margins: tuple[float, ...]
    """The difference of the reference's two highest logits at each token of the continuation."""

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        activations: Activations,
        continuation: Sequence[int],
        rows: NDArray[np.floating],
    ) -> Self:
        """`rows`: the reference's logits [len(continuation), n_vocab] from which each token of it was chosen."""
        if rows.shape[0] != len(continuation):
            raise ValueError(f"{rows.shape[0]} rows of logits for {len(continuation)} tokens")
        highest = np.partition(rows, -2, axis=-1)
        return cls(tuple(tokens), activations, tuple(continuation), tuple((highest[:, -1] - highest[:, -2]).tolist()))

    @property
    def logits_point(self) -> Point:
        return next(point for point in self.activations if point.name == "logits")

    @property
    def logits(self) -> NDArray[np.floating]:
        """[n_tokens, n_vocab]."""
        return self.activations[self.logits_point]


@dataclass(frozen=True, slots=True)
class Computed:
    """llama.cpp's numbers for the same text."""

    activations: Activations
    logits: NDArray[np.float32]
    """[n_tokens, n_vocab], of a run without capture."""
    continuations: tuple[tuple[int, ...], ...]


def run(f32_copy: Path, reference: Expected, *, bounds: Bounds, n_threads: int) -> Level:
    """Compute the reference's text on `f32_copy`, an F32 GGUF with its weights, with F32 KV memory, no flash attention.

    Not run for other architectures than llama. Raises: ModelLoadFailed, InsufficientMemory.
    """
    why = not_comparable(read_info(f32_copy))
    if why:
        return not_run(NAME, why)
    with opened(f32_copy) as model:
        return judge(_compute(model, reference, n_threads), reference, bounds)


def _compute(model: Model, reference: Expected, n_threads: int) -> Computed:
    tokens, n_new = reference.tokens, len(reference.continuation)
    setup = Setup(n_rows=len(tokens))
    activations = capture(model, tokens, n_threads=n_threads, setup=setup)
    with Scorer(model, setup, n_ctx=len(tokens) + n_new, n_threads=n_threads) as scorer:
        logits = scorer.logits(tokens)
        runs = tuple(tuple(scorer.greedy(tokens, n_new)) for _ in range(N_RUNS))
    return Computed(activations, logits, runs)


def judge(computed: Computed, reference: Expected, bounds: Bounds) -> Level:
    """The verdict. Pure. The first broken check is that of the first deviating point in the order of computation."""
    apart = deviations(reference.activations, computed.activations)
    checks = _foremost([asked for each in apart for asked in _asked(each, computed.activations, bounds)])
    in_graph = computed.activations.get(reference.logits_point)
    # Where the graph's rows lack, have another shape or are no numbers, a check is broken already.
    if in_graph is not None and in_graph.shape == reference.logits.shape and np.isfinite(in_graph).all():
        checks += _outcomes(reference, computed, in_graph, bounds)
    worst = max(apart, key=lambda each: each.relative)
    return judged(
        NAME,
        f"{len(apart)} points over {len(reference.tokens)} tokens, the largest relative error {worst.relative:.1e}"
        f" at {worst.point}; {N_RUNS} runs of {len(reference.continuation)} tokens as the reference's",
        checks,
        tables=[_table(apart)],
    )


# ── how far a point is off ───────────────────────────────────────────────────────────────────────


def deviations(reference: Activations, candidate: Activations) -> list[Deviation]:
    """The deviation of every point of either side, in the order of computation."""
    return [deviation(point, reference, candidate) for point in sorted(reference.keys() | candidate.keys())]


def deviation(point: Point, reference: Activations, candidate: Activations) -> Deviation:
    """The deviation of one point, computed in float64."""
    obstacle = _obstacle(reference.get(point), candidate.get(point))
    if obstacle:
        return Deviation(point, np.nan, np.nan, np.nan, np.nan, np.nan, obstacle)
    wanted = reference[point].astype(np.float64)
    error = np.abs(candidate[point].astype(np.float64) - wanted)
    scale = _rms(wanted)
    largest, spread = float(error.max()), _rms(error)
    return Deviation(
        point,
        _share(largest, scale),
        _scaled(error, wanted, scale),
        _share(spread, scale),
        largest,
        float(error.mean()),
        f"largest at {_place(error)}",
    )


def _obstacle(reference: Values | None, candidate: Values | None) -> str:
    if reference is None:
        return "the reference has no such point"
    if candidate is None:
        return "it was not computed"
    if reference.shape != candidate.shape:
        return f"its shape is {candidate.shape}, the reference's {reference.shape}"
    if not reference.size:
        return "it is empty"
    for side, values in (("reference's", reference), ("candidate's", candidate)):
        is_odd = ~np.isfinite(values)
        if is_odd.any():
            return f"the {side} value at {_place(is_odd)} is not finite"
    return ""


def _rms(values: Values) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _scaled(error: Values, wanted: Values, scale: float) -> float:
    allowed = np.maximum(np.abs(wanted), scale)
    return float((error / allowed).max()) if scale else _share(float(error.max()), scale)


def _share(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole else np.inf


def _place(values: NDArray[np.generic]) -> str:
    """The index of the highest of `values`."""
    return str([int(index) for index in np.unravel_index(int(values.argmax()), values.shape)])


def _asked(each: Deviation, activations: Activations, bounds: Bounds) -> Iterator[tuple[str, Check]]:
    """The checks of one point, each with its kind; every layer has one check of a kind."""
    point, name = each.point, each.point.name
    what = f"{point} (checkpoint {CHECKPOINT[name]})"

    def check(kind: str, value: float, *keys: str) -> tuple[str, Check]:
        keys = tuple(f"checkpoints.{key}" for key in keys)
        return f"{name} {kind}", bounds.check(f"{what}, {kind}", value, *keys, note=each.where)

    yield check("relative error", each.relative, f"relative.{name}", "relative.any")
    yield check("error over RMS or itself", each.scaled, "scaled")
    yield check("RMS of the error", each.spread, "spread")
    if name == "logits":
        yield check("absolute error", each.largest, "logits")
    if name in _STORED:
        n_unlike = _n_unlike(activations, point, Point.of(_STORED[name], point.layer))
        yield check(f"stored numbers other than {_STORED[name]}", n_unlike, "stored")
    elif point.layer == 0:
        yield check("absolute error on layer 0", each.largest, f"layer-0.{CHECKPOINT[name]}")
    if name == "attn_norm" and point.layer == 0:
        yield check("mean absolute error on layer 0", each.mean, "layer-0.1-mean")


def _n_unlike(activations: Activations, stored: Point, computed: Point) -> float:
    """Numbers whose bits differ; NaN where one side lacks."""
    pair = [activations.get(stored), activations.get(computed)]
    if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
        return np.nan
    left, right = (np.ascontiguousarray(values, np.float32).view(np.uint32) for values in pair)
    return float((left != right).sum())


def _foremost(asked: Sequence[tuple[str, Check]]) -> list[Check]:
    """The first that is broken, then the worst of each kind."""
    first = next((check for _, check in asked if not check.holds), None)
    worst: dict[str, Check] = {}
    for kind, check in asked:
        if kind not in worst or _badness(check) > _badness(worst[kind]):
            worst[kind] = check
    return [*([first] if first else []), *(check for check in worst.values() if check is not first)]


def _badness(check: Check) -> float:
    return check.value if np.isfinite(check.value) else np.inf


# ── what becomes of the logits ───────────────────────────────────────────────────────────────────


def _outcomes(reference: Expected, computed: Computed, in_graph: Values, bounds: Bounds) -> Iterator[Check]:
    """Checkpoints 9 to 12: the selected row, its highest token, its probabilities, and whole continuations."""
    near = 2 * bounds.bound("checkpoints.logits").value
    given = computed.logits
    yield _selected(in_graph[-1], given[-1], bounds)
    yield _highest(reference.logits, given, near, bounds)
    yield from _probabilities(reference.logits[-1], given[-1], near, bounds)
    yield from _end_to_end(reference.continuation, reference.margins, computed.continuations, near, bounds)


def _selected(in_graph: Values, given: Values, bounds: Bounds) -> Check:
    """The tapped run's and the other's, bit for bit."""
    n_unlike = int((in_graph.view(np.uint32) != given.view(np.uint32)).sum())
    return bounds.check("selected logits (checkpoint 9), entries of other bits", n_unlike, "checkpoints.selected")


def _highest(reference: Values, given: Values, near: float, bounds: Bounds) -> Check:
    """The highest token of every position."""
    wanted, found = reference.argmax(-1), given.argmax(-1)
    places = np.arange(len(reference))
    gaps = reference[places, wanted] - reference[places, found]
    wrong = np.flatnonzero((wanted != found) & (gaps > near))
    n_ties = int((wanted != found).sum()) - len(wrong)
    note = f"first at position {wrong[0]}" if len(wrong) else f"{len(places)} positions, {n_ties} near-ties apart"
    return bounds.check(
        "highest token (checkpoint 10), others than the reference's", len(wrong), "checkpoints.argmax", note=note
    )


def _probabilities(reference: Values, given: Values, near: float, bounds: Bounds) -> Iterator[Check]:
    """The probabilities of the selected row, computed like the worker's sampler."""
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


def _apart(probs: Values, logits: Values) -> float:
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


# ── for people ───────────────────────────────────────────────────────────────────────────────────


def _table(apart: Sequence[Deviation]) -> Table:
    """The worst of each name."""
    rows = []
    for name in NAMES:
        of_name = [each for each in apart if each.point.name == name]
        if of_name:
            worst = max(of_name, key=lambda each: each.relative if np.isfinite(each.relative) else np.inf)
            numbers = (worst.relative, *(max(getattr(each, what) for each in of_name) for what in _SHOWN))
            rows.append((CHECKPOINT[name], name, str(worst.point), *(f"{number:.1e}" for number in numbers)))
    return Table(
        "Points of the network, llama.cpp against the reference",
        (
            "checkpoint",
            "point",
            "worst at",
            ">max error / RMS",
            ">over RMS or itself",
            ">RMS of error / RMS",
            ">max error",
        ),
        tuple(rows),
        note="Errors are shares of the reference's root mean square at the point; the last column is absolute.",
    )
