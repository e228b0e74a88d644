"""Rows on disk are the rows that were made, and the positions that stand for a text are spread over it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parity.evidence import N_FULL_ROWS, FullLogits, Window, spread
from tests.parity.made_logits import N_VOCAB, MadeModel, made_reference, made_windows


def test_rows_are_those_that_were_made_and_cannot_be_written(tmp_path: Path) -> None:
    full, model = made_reference(tmp_path, ["short", "long"]), MadeModel()
    for number, window in enumerate(full.windows):
        np.testing.assert_array_equal(full.rows(number), model.logits(window.tokens))
        assert full.rows(number).dtype == np.float32
        assert not full.rows(number).flags.writeable
    assert full.n_vocab == N_VOCAB


def test_one_window_is_computed_and_written_at_a_time(tmp_path: Path) -> None:
    model = MadeModel()
    written = []

    def rows(window: Window) -> NDArray[np.float64]:
        written.append(len(list(tmp_path.iterdir())))
        return model.logits(window.tokens).astype(np.float64)

    FullLogits.make(tmp_path, made_windows(model, ["short", "long", "short"]), rows)
    assert written == [0, 1, 2]


def test_a_gap_is_how_far_a_token_lies_below_the_highest(tmp_path: Path) -> None:
    full = made_reference(tmp_path, ["short"])
    row = full.rows(0)[3]
    assert full.gap(0, 3, int(row.argmax())) == 0.0
    assert full.gap(0, 3, 7) == float(row.max()) - float(row[7])


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


def test_a_short_text_is_kept_in_full(tmp_path: Path) -> None:
    full = made_reference(tmp_path, ["long"], length=5)
    found = full.full_rows()
    assert [(window, position) for window, position, _ in found] == [(0, position) for position in range(5)]
    for window, position, row in found:
        np.testing.assert_array_equal(row, full.rows(window)[position])
