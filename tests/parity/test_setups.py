"""Which windows of the text are measured, and that one file's rows under one set-up are the same rows again."""

from pathlib import Path

import numpy as np
import pytest

from tests.parity.made_logits import made_reference
from worker.parity.evidence import Window
from worker.parity.setups import EXACT, as_served, compute, cpu, evaluated


def test_the_longest_windows_are_taken_until_there_are_enough_tokens(tmp_path: Path) -> None:
    reference = made_reference(tmp_path, ["short", "long", "long", "continuation", "long"], length=24)
    assert evaluated(reference, 1) == (1,)
    assert evaluated(reference, 25) == (1, 2)
    assert evaluated(reference, 10_000) == (1, 2, 4)


def test_a_reference_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no windows"):
        evaluated(made_reference(tmp_path, ["continuation"]), 1)


@pytest.mark.model
def test_rows_of_the_served_file_are_the_same_bits_in_any_chunks(default_model: Path, tmp_path: Path) -> None:
    """Rows of Q4_1 are computed one by one; another K cache is another set-up and gives other rows."""
    windows = [Window("short", tuple(range(1, 41)))]
    setups = {"chunks": as_served(cpu()), "single": as_served(cpu(), n_rows=1), "exact": EXACT}
    rows = {
        name: compute(default_model, setup, windows, folder=tmp_path / name, n_threads=1)
        for name, setup in setups.items()
    }
    assert np.array_equal(rows["chunks"].logits.rows(0), rows["single"].logits.rows(0))
    assert rows["exact"].against(rows["chunks"].logits).max_error > 0.0
