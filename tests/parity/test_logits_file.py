"""Rows on disk are the reference's; the file says the same within what it states, and is refused if it is not whole."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from parity.compare import Positions
from parity.evidence import N_FULL_ROWS, FullLogits, Kind, Window, spread
from parity.logits_file import N_TOP, LogitsFile, write_logits_file
from tests.parity.made_logits import N_VOCAB, PROVENANCE, MadeModel, Rows, made_reference, made_windows, noisy
from worker.errors import UsageError

HARD_IDS = ((1, 2, 3), (), (599,))
KINDS: list[Kind] = ["short", "long", "long", "continuation"]


@pytest.fixture
def full(tmp_path: Path) -> FullLogits:
    folder = tmp_path / "rows"
    folder.mkdir()
    return made_reference(folder, KINDS)


@pytest.fixture
def path(tmp_path: Path, full: FullLogits) -> Path:
    path = tmp_path / "logits.safetensors"
    write_logits_file(path, full, HARD_IDS, PROVENANCE)
    return path


def test_windows_ids_and_provenance_come_back(path: Path, full: FullLogits) -> None:
    file = LogitsFile.open(path)
    assert tuple(file.windows) == tuple(full.windows)
    assert file.hard_ids == HARD_IDS
    assert file.provenance == PROVENANCE


@settings(max_examples=12)
@given(
    n_vocab=st.sampled_from([2, 6, N_TOP - 1, N_TOP, N_TOP + 1, 700]),
    length=st.integers(2, 9),
    kinds=st.lists(st.sampled_from(["short", "long", "continuation"]), min_size=1, max_size=3),
    scale=st.sampled_from([0.0, 1e-4, 1.0]),
)
def test_any_reference_gives_the_same_answers_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, n_vocab: int, length: int, kinds: list[Kind], scale: float
) -> None:
    folder = tmp_path_factory.mktemp("file")
    model, length = MadeModel(n_vocab=n_vocab), length + 5
    windows = made_windows(model, kinds, length, n_vocab)
    full = FullLogits.make(folder, windows, lambda window: model.logits(window.tokens))
    write_logits_file(folder / "file.safetensors", full, (), replace(PROVENANCE, n_vocab=n_vocab))
    file = LogitsFile.open(folder / "file.safetensors")
    for number in range(len(windows)):
        candidate = noisy(scale, number)(np.array(full.rows(number)))
        agrees(full.positions(number, candidate), file.positions(number, candidate))


def agrees(exact: Positions, brief: Positions) -> None:
    """Exact but for KL and errors of the positions that are not known in full."""
    for name in ("top1", "top5", "margin"):
        np.testing.assert_array_equal(getattr(brief, name), getattr(exact, name))
    for name in ("nll", "reference_nll"):
        np.testing.assert_allclose(getattr(brief, name), getattr(exact, name), rtol=1e-12, atol=1e-12)
    assert (brief.kl <= exact.kl + 1e-12).all()
    assert (brief.max_error <= exact.max_error + 1e-12).all()
    for field in fields(Positions):
        known = brief.is_full
        np.testing.assert_array_equal(getattr(brief, field.name)[known], getattr(exact, field.name)[known])


def test_gaps_are_exact_where_the_token_is_known_and_never_too_high_elsewhere(path: Path, full: FullLogits) -> None:
    file = LogitsFile.open(path)
    n_exact = 0
    for window, position in [(0, 5), (3, 10), full.full_rows()[4][:2]]:
        for token in range(N_VOCAB):
            exact, brief = full.gap(window, position, token), file.gap(window, position, token)
            assert 0.0 <= brief <= exact
            n_exact += brief == exact
    assert N_VOCAB + 2 * N_TOP <= n_exact < 3 * N_VOCAB
    following = full.windows[0].tokens[6]
    assert file.gap(0, 5, following) == full.gap(0, 5, following)


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        LogitsFile.open(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "not a complete .safetensors file" in refused(path)


def test_a_changed_byte_anywhere_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for at in np.random.default_rng(8).integers(0, len(data), 60):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        assert refused(path)


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rows: Rows = np.zeros((2, 2), dtype=np.float32)
    save_file({"weight": rows}, path)
    assert "parity reference" in refused(path)
    save_file({"weight": rows}, path, {"format": "pt"})
    assert "parity reference" in refused(path)
    path.write_text("not a model")
    refused(path)


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
