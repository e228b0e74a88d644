"""Level `generation`: greedy continuations of the prompts, step by step against the reference's.

After the first step that differs the two go on from different texts, so only that step is judged: by how much the
reference preferred its own token. A difference where two tokens are all but level is chance; any other is an error.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parity.bounds import Bounds
from parity.evidence import Judged, ReferenceLogits, Window
from parity.report import Check, Level, Table, judged

_MAX_SHOWN = 48

NEAR_TIE = math.log(2)
"""Nats: the reference gives the other token at least half the probability of its own."""

Piece = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class _Step:
    """The first step of a continuation that differs."""

    index: int
    """The number of equal tokens before the difference."""
    expected: int
    found: int
    gap: float
    """The reference's logit of `expected` minus that of `found`."""


@dataclass(frozen=True, slots=True)
class _Continued:
    """One prompt, continued by a candidate; `step`: None where all tokens are the reference's."""

    number: int
    """The number of the prompt, from 1."""
    window: Window
    step: _Step | None

    @property
    def n_expected(self) -> int:
        return len(self.window.tokens) - self.window.n_prompt

    @property
    def n_same(self) -> int:
        return self.step.index if self.step else self.n_expected


def run(
    reference: ReferenceLogits,
    bounds: Bounds,
    *,
    file: Judged,
    f32_copy: Judged | None = None,
    piece: Piece = lambda _: "",
) -> Level:
    """`f32_copy`: an F32 GGUF of the reference's weights with F32 caches and without flash attention. `piece`: a
    token's text, for the table."""
    checks: list[Check] = []
    tables: list[Table] = []
    said: list[str] = []
    for candidate in filter(None, (f32_copy, file)):
        continued = list(_continue(reference, candidate))
        if continued:
            keys = ("generation.twin.gap",) if candidate is f32_copy else candidate.keys("generation", "gap")
            checks.append(_check(candidate, continued, bounds, keys))
            tables.append(_table(candidate, continued, piece))
            said.append(_says(candidate, continued))
    return judged("generation", "; ".join(said), checks, tables=tables)


def _continue(reference: ReferenceLogits, candidate: Judged) -> Iterator[_Continued]:
    windows = [(at, window) for at, window in enumerate(reference.windows) if window.kind == "continuation"]
    for number, (at, window) in enumerate(windows, start=1):
        expected = window.tokens[window.n_prompt :]
        found = candidate.greedy(window.tokens[: window.n_prompt], len(expected))
        pairs = enumerate(zip(expected, found, strict=True))
        step = None
        if (first := next(((index, pair) for index, pair in pairs if pair[0] != pair[1]), None)) is not None:
            index, (own, other) = first
            step = _Step(index, own, other, reference.gap(at, window.n_prompt + index - 1, other))
        yield _Continued(number, window, step)


def _check(candidate: Judged, continued: list[_Continued], bounds: Bounds, keys: tuple[str, ...]) -> Check:
    steps = {one.number: one.step for one in continued if one.step is not None}
    worst = max(steps, key=lambda number: steps[number].gap, default=None)
    return bounds.check(
        f"{candidate.name}: the reference's preference at the first step that differs",
        steps[worst].gap if worst is not None else 0.0,
        *keys,
        note=f"prompt {worst}, token {steps[worst].index}" if worst is not None else "no step differs",
        allowances=candidate.allowances("generation", "gap"),
    )


def _table(candidate: Judged, continued: list[_Continued], piece: Piece) -> Table:
    rows = tuple(
        (
            str(one.number),
            _shortened("".join(map(piece, one.window.tokens[: one.window.n_prompt]))),
            f"{one.n_same} of {one.n_expected}",
            _token(one.step.expected, piece) if one.step else "",
            _token(one.step.found, piece) if one.step else "",
            f"{one.step.gap:.3g}" if one.step else "",
            ("yes" if one.step.gap <= NEAR_TIE else "no") if one.step else "",
        )
        for one in continued
    )
    columns = (">prompt", "text", ">same tokens", "reference's next", "candidate's next", ">gap", "near-tie")
    return Table(f"Greedy continuations, {candidate.name}", columns, rows, _NOTE)


_NOTE = (
    "Gap: by how much the reference's highest logit exceeds that of the candidate's token, at the step that differs. "
    "A near-tie: the reference gives that token at least half the probability of its own (gap ≤ ln 2)."
)


def _token(token: int, piece: Piece) -> str:
    text = piece(token)
    return f"{token} {text!r}" if text else str(token)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else line[: _MAX_SHOWN - 1] + "…"


def _says(candidate: Judged, continued: list[_Continued]) -> str:
    n_equal = sum(one.step is None for one in continued)
    gaps = [one.step.gap for one in continued if one.step is not None]
    said = f"{candidate.name}: {n_equal} of {len(continued)} continuations are the reference's"
    if not gaps:
        return said
    n_near = sum(gap <= NEAR_TIE for gap in gaps)
    return f"{said}; {n_near} of {len(gaps)} others part at a near-tie, the largest gap is {max(gaps):.2g}"
