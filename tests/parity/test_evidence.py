"""Rows on disk are the rows that were made, and the positions that stand for a text are spread over it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parity.evidence import N_FULL_ROWS, FullLogits, Window, spread


@pytest.mark.parametrize("rows", [np.zeros((3, 9)), np.zeros(4), np.full((4, 9), np.nan)])
def test_rows_that_are_not_one_a_token_or_not_finite_are_refused(tmp_path: Path, rows: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="window 0"):
        FullLogits.make(tmp_path, [Window("short", (1, 2, 3, 4))], lambda _: rows)


@pytest.mark.parametrize(("n_windows", "length"), [(1, 512), (8, 512), (3, 513), (40, 512), (1, 17)])
def test_places_are_spread_over_the_long_windows_alone(n_windows: int, length: int) -> None:
    windows = [Window("short", (0,) * 64), *[Window("long", (0,) * length)] * n_windows]
    places = spread(windows)
    flat = [(window - 1) * length + position for window, position in places]
    assert len(set(places)) == N_FULL_ROWS
    assert all(window >= 1 and 0 <= position < length for window, position in places)
    part = n_windows * length / N_FULL_ROWS
    assert all(number * part - 1 < place < (number + 1) * part for number, place in enumerate(flat))
    if n_windows == 8:
        assert len({position for _, position in places}) == N_FULL_ROWS
