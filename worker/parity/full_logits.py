"""The reference's rows in full, on disk: a float32 file for each window, mapped rather than read.

Owns these files, and which positions stand for the text where only a few can be looked at. Knows nothing of who
computes the rows.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worker.parity.compare import compare_full
from worker.parity.evidence import Positions, Window

N_FULL_ROWS = 16
_GOLDEN = 0.6180339887498949

Row = NDArray[np.float32]


class FullLogits:
    """Made by `make`; a ReferenceLogits. The files stay in their folder, which is the caller's to remove."""

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
