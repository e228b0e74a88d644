"""The numbers of the reference for the evaluation text: windows of tokens, and rows of logits at their positions.

This is the seam between making a reference and comparing with it. There are two sources of rows: FullLogits here (all
of every row in a float32 file for each window, mapped rather than read, made in the same run) and logits_file.py (one
file that needs neither torch nor the checkpoint).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from parity.compare import Positions, compare_full

Kind = Literal["short", "long", "continuation"]
Row = NDArray[np.float32]

N_FULL_ROWS = 16
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed together from an empty memory.

    `short`: SHORT tokens of the text, `long`: LONG tokens of it; `continuation`: a prompt of `n_prompt` tokens and what
    the reference greedily goes on with. `tokens[0]` is BOS where the model wants one.
    """

    kind: Kind
    tokens: tuple[int, ...]
    n_prompt: int = 0

    @property
    def targets(self) -> tuple[int, ...]:
        """The token after each position but the last."""
        return self.tokens[1:]


SHORT, LONG = 64, 512
"""There are two: llama.cpp's RoPE angles are float32 and their error grows with the position, so float32 is proved on
short windows; everything else is measured where models are used."""


def longest(windows: Iterable[Window]) -> int:
    """Tokens of the longest window: what a context must hold."""
    return max(len(window.tokens) for window in windows)


class ReferenceLogits(Protocol):
    """The rows of the reference. Implementations: FullLogits and LogitsFile."""

    @property
    def windows(self) -> Sequence[Window]: ...

    def positions(self, window: int, logits: NDArray[np.float32]) -> Positions:
        """A candidate's logits [n_tokens, n_vocab] of window number `window` against the reference's.

        Raises: ValueError for another shape.
        """
        ...

    def gap(self, window: int, position: int, token: int) -> float:
        """The difference between the reference's highest logit at the position and the token's. If the row is known in
        part and lacks the token, the smallest possible difference."""
        ...

    def full_rows(self) -> Sequence[tuple[int, int, NDArray[np.float32]]]:
        """(window, position, row[n_vocab]) of at least 16 positions spread over the long windows."""
        ...


class FullLogits:
    """Made by `make`; a ReferenceLogits. The files stay in their folder, which the caller removes."""

    def __init__(self, windows: Sequence[Window], paths: Sequence[Path]) -> None:
        self._windows = tuple(windows)
        self._paths = tuple(paths)

    @classmethod
    def make(cls, folder: Path, windows: Sequence[Window], rows: Callable[[Window], NDArray[np.floating]]) -> Self:
        """Write `rows(window)`, [n_tokens, n_vocab], of every window into `folder`, one window at a time.

        float32 keeps a logit to 1e-6, a hundredth of the closest bound. Raises: ValueError for rows that are not one a
        token, or not finite.
        """
        paths = []
        for number, window in enumerate(windows):
            logits = rows(window)
            if logits.ndim != 2 or len(logits) != len(window.tokens) or not np.isfinite(logits).all():
                raise ValueError(f"window {number}: no finite row of logits for each of {len(window.tokens)} tokens")
            path = folder / f"window-{number}.npy"
            np.save(path, logits.astype(np.float32, copy=False))
            paths.append(path)
        return cls(windows, paths)

    @property
    def windows(self) -> Sequence[Window]:
        return self._windows

    @property
    def n_vocab(self) -> int:
        return int(self.rows(0).shape[1])

    def rows(self, window: int) -> Row:
        """float32[n_tokens, n_vocab], mapped and not writeable."""
        mapped: Row = np.load(self._paths[window], mmap_mode="r")
        return mapped

    def positions(self, window: int, logits: Row) -> Positions:
        """See ReferenceLogits."""
        return compare_full(self.rows(window), logits, self._windows[window].targets)

    def gap(self, window: int, position: int, token: int) -> float:
        """See ReferenceLogits."""
        row = self.rows(window)[position]
        return float(row.max()) - float(row[token])

    def full_rows(self) -> Sequence[tuple[int, int, Row]]:
        """See ReferenceLogits: those of `spread`."""
        return [(window, position, self.rows(window)[position].copy()) for window, position in spread(self._windows)]


def spread(windows: Sequence[Window]) -> list[tuple[int, int]]:
    """(window, position) of the N_FULL_ROWS positions of long windows that stand for the text; all, if there are fewer.

    One in each of as many equal parts of the text, at another place in each (by golden ratio), so that early and late
    positions of windows are among them.
    """
    places = [
        (number, position)
        for number, window in enumerate(windows)
        if window.kind == "long"
        for position in range(len(window.tokens))
    ]
    if len(places) <= N_FULL_ROWS:
        return places
    edges = [part * len(places) // N_FULL_ROWS for part in range(N_FULL_ROWS + 1)]
    return [
        places[start + int(part * _GOLDEN % 1.0 * (end - start))] for part, (start, end) in enumerate(pairwise(edges))
    ]


# ── what is compared with it ─────────────────────────────────────────────────────────────────────


Greedy = Callable[[Sequence[int], int], list[int]]
"""Prompt and number of tokens → the most probable continuation, ends not respected."""


class Judged(Protocol):
    """A file whose whole rows need not be known. Implementations: Candidate, and outside.Served."""

    @property
    def name(self) -> str:
        """The name in reports: `F32 copy`."""
        ...

    @property
    def greedy(self) -> Greedy: ...

    def keys(self, level: str, what: str) -> tuple[str, str]:
        """The bounds' keys: see `keys_of`."""
        ...

    def allowances(self, level: str, what: str) -> tuple[str, ...]:
        """The keys of the bounds that are added to those."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """`llama.scoring.Scorer` has both functions."""

    name: str
    """The name in reports: `F32 copy`."""
    file_type: str
    """The type of the weights, spelled as in the bounds' keys: `Q4_1`."""
    logits: Callable[[Sequence[int]], NDArray[np.float32]]
    """Tokens → float32[n_tokens, n_vocab], from an empty memory."""
    greedy: Greedy
    is_source: bool = False
    """True if the reference's weights were made from this file, so that its weights have no error."""
    allowed_for: tuple[str, ...] = ()
    """The parts of the computation with an error of their own, spelled as in the bounds' keys: `q4`, `vulkan`."""

    def keys(self, level: str, what: str) -> tuple[str, str]:
        """See `keys_of`."""
        return keys_of(self.file_type, level, what, is_source=self.is_source)

    def allowances(self, level: str, what: str) -> tuple[str, ...]:
        """The bounds that are added to those: `logits.allowance.q4.kl_mean`."""
        return tuple(f"{level}.allowance.{each}.{what}" for each in self.allowed_for)


def keys_of(file_type: str, level: str, what: str, *, is_source: bool) -> tuple[str, str]:
    """The bounds of a quantised file, special before general: `logits.file.Q4_1.kl_mean`, then `…other…`.

    `own` in place of `file` where the weights are the reference's own.
    """
    group = "own" if is_source else "file"
    return f"{level}.{group}.{file_type}.{what}", f"{level}.{group}.other.{what}"
