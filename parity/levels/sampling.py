"""Level `sampling`: the probabilities after the sampling steps, and the tokens drawn from them, against the formula.

On the reference's own rows the worker's sampler must give the formula's candidates, probabilities and tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from parity import formula
from parity.bounds import Bounds
from parity.evidence import ReferenceLogits
from parity.report import Check, Level, Table, judged
from worker.engine.sampling.sample import candidates, sample, uniform
from worker.wire.jobs import SamplingParams

Row = NDArray[np.float32]
Distribution = tuple[NDArray[np.intp], NDArray[np.float64]]
"""Token ids, most probable first, and their probabilities."""
Candidates = Callable[[Row, SamplingParams, Sequence[int]], Distribution]
Draw = Callable[[Row, SamplingParams, Sequence[int]], int]


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler under test; it takes the row, the settings and the tokens generated before."""

    candidates: Candidates
    sample: Draw


WORKER = Sampler(candidates, sample)

GRID: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(seed=0),
    "temperature 0.6": SamplingParams(seed=0, temperature=0.6),
    "temperature 1.4": SamplingParams(seed=0, temperature=1.4),
    "repetition_penalty 1.3": SamplingParams(seed=0, repetition_penalty=1.3),
    "temperature 0.8, repetition_penalty 0.7": SamplingParams(seed=0, temperature=0.8, repetition_penalty=0.7),
    "greedy": SamplingParams(seed=0, temperature=0.0),
    "greedy, repetition_penalty 1.5": SamplingParams(seed=0, temperature=0.0, repetition_penalty=1.5),
    "top_p 0.9": SamplingParams(seed=0, top_p=0.9),
    "temperature 0.7, top_p 0.9": SamplingParams(seed=0, temperature=0.7, top_p=0.9),
    "top_k 40": SamplingParams(seed=0, top_k=40),
    "min_p 0.05": SamplingParams(seed=0, min_p=0.05),
    "all": SamplingParams(seed=0, temperature=0.7, top_p=0.95, top_k=50, repetition_penalty=1.2, min_p=0.02),
}
N_SEEDS = 12
"""Draws for each row and setting."""
_MAX_GENERATED = 40


@dataclass(frozen=True, slots=True)
class _RowCase:
    """A row of the reference, and the tokens before it that count as generated."""

    window: int
    position: int
    row: Row
    generated: tuple[int, ...]

    def __str__(self) -> str:
        return f"window {self.window}, position {self.position}"


@dataclass(frozen=True, slots=True)
class _AgainstFormula:
    """The sampler against the formula, for one case and setting."""

    where: str
    n_candidates: int
    is_same_tokens: bool
    error: float
    """Largest |Δp|."""
    sum_error: float
    n_other_draws: int


def run(reference: ReferenceLogits, bounds: Bounds, *, sampler: Sampler = WORKER) -> Level:
    """Judge the sampler on the reference's own rows."""
    cases = [_row_case(reference, number, *full) for number, full in enumerate(reference.full_rows())]
    if not cases:
        return judged("sampling", "", ())
    found = {
        name: [_against_formula(case, name, settings, sampler) for case in cases] for name, settings in GRID.items()
    }
    checks = list(_checks([one for ones in found.values() for one in ones], bounds))
    n_drawn = len(GRID) * len(cases) * N_SEEDS
    worst = max(one.error for ones in found.values() for one in ones)
    said = f"{len(GRID)} settings on {len(cases)} rows: |Δp| ≤ {worst:.1g}, {n_drawn} tokens drawn as the formula does"
    return judged("sampling", said, checks, tables=[_table(found)])


def _row_case(reference: ReferenceLogits, number: int, window: int, position: int, row: Row) -> _RowCase:
    """The number of tokens that count as generated, which is the draw's position too, differs from row to row."""
    before = reference.windows[window].tokens[: position + 1]
    n_generated = min(len(before), 7 * number % _MAX_GENERATED)
    return _RowCase(window, position, row, before[len(before) - n_generated :])


def _against_formula(case: _RowCase, name: str, settings: SamplingParams, sampler: Sampler) -> _AgainstFormula:
    expected = formula.candidates(case.row, settings, case.generated)
    ids, probs = sampler.candidates(case.row, settings, case.generated)
    n_other = 0
    for seed in range(N_SEEDS):
        token = formula.drawn(*expected, uniform(seed, len(case.generated)))
        n_other += sampler.sample(case.row, replace(settings, seed=seed), case.generated) != token
    difference = _dense((ids, probs), len(case.row)) - _dense(expected, len(case.row))
    return _AgainstFormula(
        where=f"{name}, {case}",
        n_candidates=len(expected[0]),
        is_same_tokens=bool(np.array_equal(ids, expected[0])),
        error=float(np.abs(difference).max()),
        sum_error=abs(float(probs.sum()) - 1.0),
        n_other_draws=n_other,
    )


def _dense(distribution: Distribution, n_vocab: int) -> NDArray[np.float64]:
    dense = np.zeros(n_vocab)
    dense[distribution[0]] = distribution[1]
    return dense


def _checks(found: list[_AgainstFormula], bounds: Bounds) -> Iterator[Check]:
    def check(what: str, values: list[float], key: str, *, is_count: bool = False) -> Check:
        worst = max(range(len(found)), key=lambda index: values[index])
        value = sum(values) if is_count else values[worst]
        return bounds.check(what, value, f"sampling.{key}", note=found[worst].where if value else "")

    others = [float(not one.is_same_tokens) for one in found]
    yield check("rows and settings with other candidates than the formula", others, "candidates", is_count=True)
    yield check("largest error of a probability", [one.error for one in found], "probability")
    yield check("largest |sum of probabilities - 1|", [one.sum_error for one in found], "sum")
    draws = [float(one.n_other_draws) for one in found]
    yield check("draws of another token than the formula", draws, "draws", is_count=True)


def _table(found: dict[str, list[_AgainstFormula]]) -> Table:
    rows = tuple(
        (
            name,
            f"{np.median([one.n_candidates for one in ones]):.0f}",
            f"{max(one.error for one in ones):.1e}",
            str(sum(one.n_other_draws for one in ones)),
        )
        for name, ones in found.items()
    )
    columns = ("settings", ">candidates", ">largest |Δp|", ">other draws")
    return Table("Sampling against the formula, on the reference's rows", columns, rows, _NOTE)


_NOTE = "Candidates: the median over rows."
