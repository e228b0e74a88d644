"""Plots are PNG files that depend on nothing but their series. One test draws many, as drawing is slow."""

import struct
from collections.abc import Sequence

import pytest

from tests.parity.reports import series_of
from worker.parity.plots import can_draw, draw, file_of
from worker.parity.results import Series

NAMES = tuple(f"blk.{layer}.{name}.weight" for layer in range(30) for name in ("attn_q", "ffn_down"))

PLOTS: Sequence[Series] = (
    series_of(),
    series_of(line="with zeros"),
    Series("kl-histogram", "KL(reference ‖ candidate)", (1e-5, 2e-4, 0.0, float("nan"), 3e-3), unit="nats"),
    Series("weight-error-by-tensor", "Weight error by tensor", tuple(range(60)), NAMES, "relative error"),
    Series("all-zero", "Error per layer", (0.0, 0.0), ("0", "1"), "error"),
    Series("all-equal", "Equal", (2.0, 2.0, 2.0)),
    Series("nothing-finite", "Nothing", (float("inf"),)),
    Series("empty", "Nothing at all", ()),
    Series("strange-words", "$x_1$ \n日本 \ud800", (1.0,), ("$a_b$",), "%", is_log=False),
    *(series_of("many-lines", f"point {n}") for n in range(23)),
)


def drawn() -> dict[str, bytes]:
    pytest.importorskip("matplotlib", reason="plots come with the parity extra")
    return draw(PLOTS)


@pytest.mark.long
def test_each_name_is_one_plot_whatever_its_values_and_words_are() -> None:
    plots = drawn()
    assert list(plots) == [file_of(name) for name in dict.fromkeys(series.name for series in PLOTS)]
    for data in plots.values():
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height) == (900, 500)


def test_the_same_series_are_the_same_bytes_without_a_word_about_who_drew_them() -> None:
    pytest.importorskip("matplotlib", reason="plots come with the parity extra")
    (first,), (second,) = (draw([series_of()]).values() for _ in range(2))
    assert first == second
    assert b"tEXt" not in first


@pytest.mark.parametrize("name", ["", "Error", "a b", "../a", "a/b", "-a", "a--b", "a.png", "ä"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        file_of(name)


def test_nothing_to_draw_is_no_plot() -> None:
    assert draw([]) == {}
    assert isinstance(can_draw(), bool)
