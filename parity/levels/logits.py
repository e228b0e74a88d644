"""Level `logits`: a candidate's rows against the reference's at every position of the evaluation text.

The F32 copy, which has the reference's weights, proves the arithmetic: tight bounds, on short windows and, for what
grows with the position, on long ones. The model file as it is served is measured on the long windows against what its
type of weights costs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parity.bounds import Bounds
from parity.compare import Positions, Summary, second_half, side_by_side, summarise
from parity.evidence import Candidate, Judged, Kind, ReferenceLogits
from parity.report import Check, Level, judged

_ORDER: tuple[Kind, ...] = ("short", "long")


@dataclass(frozen=True, slots=True)
class _Measured:
    """A candidate on all windows of one kind."""

    numbers: tuple[int, ...]
    """The numbers of the windows."""
    positions: tuple[Positions, ...]
    summary: Summary

    def worst(self, values: list[NDArray[np.float64]]) -> str:
        """The place of the highest value; the values are one array per window."""
        window = max(range(len(values)), key=lambda number: values[number].max())
        return f"window {self.numbers[window]}, position {int(values[window].argmax())}"


def run(reference: ReferenceLogits, bounds: Bounds, *, file: Candidate, f32_copy: Candidate | None = None) -> Level:
    """`file`: the model as it is served, on the longest windows there are. `f32_copy`: an F32 GGUF of the reference's
    weights with F32 caches and without flash attention, on all; None: left out, and the summary says so."""
    kinds = [kind for kind in _ORDER if any(window.kind == kind for window in reference.windows)]
    checks: list[Check] = []
    summaries: dict[str, Summary] = {}
    if f32_copy is not None:
        for kind in kinds:
            exact = _measure(reference, f32_copy, kind)
            checks += _of_f32_copy(exact, f32_copy, kind, bounds)
            summaries[f"{f32_copy.name}, {kind} windows"] = exact.summary
    if not kinds:
        return judged("logits", "", checks)
    served = _measure(reference, file, kinds[-1])
    checks += of_file(served.summary, file, bounds)
    summaries[f"{file.name}, {kinds[-1]} windows"] = served.summary
    halves = summarise([second_half(window) for window in served.positions])
    return judged(
        "logits",
        _says(summaries, has_f32_copy=f32_copy is not None),
        checks,
        tables=[side_by_side("Logits against the reference", {**summaries, "its second halves": halves}, _NOTE)],
    )


_NOTE = (
    "KL divergence in nats, reference before candidate. In brackets: 95 % intervals; what windows of text differ by is "
    "the measure of chance. Where the reference is known in part, KL is a lower bound and errors are those of its 256 "
    "highest logits. Second halves are what `llama-perplexity --kl-divergence` counts."
)


def _measure(reference: ReferenceLogits, candidate: Candidate, kind: Kind) -> _Measured:
    numbers = tuple(number for number, window in enumerate(reference.windows) if window.kind == kind)
    positions = tuple(
        reference.positions(number, candidate.logits(reference.windows[number].tokens)) for number in numbers
    )
    return _Measured(numbers, positions, summarise(positions))


def _of_f32_copy(measured: _Measured, f32_copy: Candidate, kind: Kind, bounds: Bounds) -> Iterator[Check]:
    name, summary = f"{f32_copy.name}, {kind} windows", measured.summary

    def check(what: str, value: float, key: str, note: str = "") -> Check:
        allowances = f32_copy.allowances("logits", key)
        return bounds.check(f"{name}: {what}", value, f"logits.twin.{kind}.{key}", note=note, allowances=allowances)

    error = check(
        "largest error of a logit",
        summary.max_error,
        "max_error",
        measured.worst([window.max_error for window in measured.positions]),
    )
    yield error
    yield check("largest KL", summary.kl_max, "kl_max", measured.worst([window.kl for window in measured.positions]))
    yield check("mean KL", summary.kl_mean.value, "kl_mean")
    # Two logits that are off by the bound each can change places where they are twice as far apart.
    margin = 2.0 * error.bound
    flips = [window.margin * (~window.top1 & (window.margin > margin)) for window in measured.positions]
    n_flips = sum(int(np.count_nonzero(flip)) for flip in flips)
    what = f"positions with another most probable token and a margin above {margin:.3g}"
    yield check(what, n_flips, "flips", measured.worst(flips) if n_flips else "")


def of_file(summary: Summary, file: Judged, bounds: Bounds) -> Iterator[Check]:
    """The checks of a model file as it is served."""

    def check(what: str, value: float, key: str, note: str = "") -> Check:
        allowances = file.allowances("logits", key)
        return bounds.check(f"{file.name}: {what}", value, *file.keys("logits", key), note=note, allowances=allowances)

    ratio = summary.perplexity_ratio
    yield check("mean KL", summary.kl_mean.value, "kl_mean", summary.kl_mean.text())
    yield check("99 % of KL", summary.kl_p99, "kl_p99")
    yield check("same most probable token", summary.top1.value, "top1", summary.top1.text(".4f"))
    yield check("overlap of the five most probable", summary.top5.value, "top5", summary.top5.text(".4f"))
    yield check("|ln| of the ratio of perplexities", summary.perplexity_distance, "perplexity", ratio.text(".5f"))


def _says(summaries: dict[str, Summary], *, has_f32_copy: bool) -> str:
    said = [
        f"{name}: |Δ| ≤ {summary.max_error:.2g}, KL {summary.kl_mean.value:.2g}, "
        f"top-1 {summary.top1.value:.2%}, perplexity × {summary.perplexity_ratio.value:.4f}"
        for name, summary in summaries.items()
    ]
    if not has_f32_copy:
        said.append("the F32 copy was left out, which needs the reference checkpoint")
    return "; ".join(said)
