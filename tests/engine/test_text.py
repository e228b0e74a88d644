"""TextStream and ThoughtfulStream against references that read the whole text again (text_reference.py)."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import first_stop
from tests.engine.text_reference import (
    any_cuts,
    check_against_the_reference,
    chunked,
    finished_text,
    stops_cut_from,
)
from worker.engine.channels import TextStream, ThoughtfulStream

LAW = settings(max_examples=500)
LAW_WITH_DRAWN_STOPS = settings(LAW, max_examples=200)


def pushes(stream: TextStream, pieces: Sequence[bytes]) -> list[str]:
    return [stream.push(piece) for piece in pieces]


awkward_bytes = st.lists(
    st.sampled_from(b"A\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xe0\xe4\xed\xef\xf0\xf4\xf5\xff"), max_size=12
).map(bytes)
any_bytes = st.one_of(st.binary(max_size=24), awkward_bytes, st.text(max_size=8).map(str.encode))
overlapping_stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@pytest.mark.long
@LAW
@given(any_bytes, any_cuts)
@example(b"\xed\xa0", [1])
@example(b"\xed\xa0\x80", [1, 2])
@example(b"\xf0\x9f\x91A\xe4\xb8", [1, 2, 3, 4, 5])
def test_any_chunking_of_any_bytes_gives_the_decoded_text(data: bytes, cuts: list[int]) -> None:
    check_against_the_reference(chunked(data, cuts), [])


@LAW
@given(st.text("ab", max_size=40), any_cuts, overlapping_stops)
@example("ab", [1], ["b", "ab"])
@example("ab", [1], ["ab", "b"])
@example("aaab", [1, 2, 3], ["aab"])
@example("abaab", [2], ["abaa", "ba"])
@example("abaabab", [], ["ababab", "baabaa", "abab"])
def test_overlapping_stops_never_leak_and_hold_back_no_more_than_they_must(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    check_against_the_reference(chunked(text.encode(), cuts), stops)


@LAW
@given(any_bytes, any_cuts, st.lists(st.text("A\ufffd", min_size=1, max_size=3), max_size=4))
@example(b"\xed\xa0", [1], ["\ufffd\ufffd"])
@example(b"A\xe4\xb8", [1, 2], ["A\ufffd"])
@example(b"A\xe4\xb8A", [1, 2, 3], ["\ufffdA"])
@example(b"\xf0\x9f\xf0\x9f\x91\x8b", [1, 2, 3, 4, 5], ["\ufffd👋"])
@example(b"\xed\xa0\x80", [1, 2], ["\ufffd\ufffd\ufffd"])
def test_stops_are_matched_on_the_replaced_text(data: bytes, cuts: list[int], stops: list[str]) -> None:
    check_against_the_reference(chunked(data, cuts), stops)


@pytest.mark.long
@LAW_WITH_DRAWN_STOPS
@given(st.one_of(any_bytes, st.text(max_size=60).map(str.encode)), any_cuts, st.data())
def test_stops_cut_from_any_text_end_it(data: bytes, cuts: list[int], draw: st.DataObject) -> None:
    check_against_the_reference(chunked(data, cuts), draw.draw(stops_cut_from(finished_text(data)), label="stops"))


@pytest.mark.long
@LAW_WITH_DRAWN_STOPS
@given(st.one_of(st.text("aé👋", max_size=40), st.text(max_size=40)), any_cuts, st.data())
def test_nothing_of_a_stop_leaks_and_nothing_before_it_is_lost(text: str, cuts: list[int], draw: st.DataObject) -> None:
    """The rule in its own words, without the reference."""
    stops = draw.draw(stops_cut_from(text), label="stops")
    stream = TextStream(stops)
    shown = "".join(pushes(stream, chunked(text.encode(), cuts))) + stream.flush()
    if stream.matched is None:
        assert shown == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(shown + stream.matched)
        assert not any(stop in (shown + stream.matched)[:-1] for stop in stops)
        assert next(stop for stop in stops if (shown + stream.matched).endswith(stop)) == stream.matched


VECTORS = [
    pytest.param([b"Hello, world!"], ["Hello, world!"], id="TV-251"),
    pytest.param(["Hello 👋".encode()], ["Hello 👋"], id="TV-252"),
    pytest.param([b"\xc3", b"\xb1"], ["", "ñ"], id="TV-253"),
    pytest.param([b"\xe4\xb8", b"\x96"], ["", "世"], id="TV-254"),
    pytest.param([b"\xf0\x9f", b"\x91\x8b"], ["", "👋"], id="TV-255"),
    pytest.param([b"Hello ", b"\xf0\x9f", b"\x91\x8b", " 世界".encode()], ["Hello ", "", "👋", " 世界"], id="TV-256"),
    pytest.param([], [], id="TV-257"),
    pytest.param([b"\xf0\x9f"], [""], id="TV-258"),
    pytest.param([b""], [""], id="TV-259"),
    pytest.param(["Hello 世界 👋 Test".encode()], ["Hello 世界 👋 Test"], id="TV-260-mixed"),
    pytest.param(["👋🌍🎉".encode()], ["👋🌍🎉"], id="TV-260-emoji"),
]


@pytest.mark.parametrize(("pieces", "shown"), VECTORS)
def test_utf8_vectors(pieces: list[bytes], shown: list[str]) -> None:
    """Each row also ends with nothing pending: the flush adds no text (for 258: no U+FFFD)."""
    stream = TextStream([])
    assert pushes(stream, pieces) == shown
    assert stream.flush() == ""


def test_a_long_repetitive_stop_is_found_in_a_long_repetitive_text() -> None:
    stop = "a" * 99 + "b"
    stream = TextStream([stop, "a" * 98 + "c"])
    assert "".join(pushes(stream, [b"a"] * 5000 + [b"b"])) == "a" * 4901
    assert stream.matched == stop


LAW_OF_MARKERS = settings(max_examples=500, deadline=None)
MARKERS = ("<t>", "</t>")
TEXTS = st.lists(st.sampled_from((*MARKERS, *MARKERS, "<", "t>", "</", "a", "b", "ab", "é", "\n", " ")), max_size=12)
STOPS = st.lists(st.sampled_from(("a", "ab", "ba", "<", ">", "\n", "\n\n", " b", "t", "</t>", "b<t>")), max_size=3)


def expected(text: str, stops: list[str], *, is_thought: bool) -> tuple[str, str | None]:
    """Read the whole text: return the part that is shown, and the stop that ends it."""
    shown, skips_space = "", False
    while True:
        before, found, text = text.partition(MARKERS[is_thought])
        if not is_thought:
            words = before.lstrip() if skips_space else before
            skips_space = skips_space and not words
            if (stopped := first_stop(words, stops)) is not None:
                return shown + before[: len(before) - len(words)] + stopped[0], stopped[1]
        shown += before + found
        if not found:
            return shown, None
        skips_space = skips_space or is_thought
        is_thought = not is_thought


@LAW_OF_MARKERS
@given(TEXTS, any_cuts, STOPS, st.booleans())
@example(["<t>", "a", "</t>", "\n", "\n", "b", "\n"], [], ["\n"], False)
@example(["a", "</t>", "\n", "ab"], [1], ["ab"], True)
@example(["<"], [], ["<"], False)
@example(["b", "<t>", "</t>"], [2], ["b<t>"], False)
def test_stops_are_found_outside_the_reasoning_only(
    parts: list[str], cuts: list[int], stops: list[str], is_thought: bool
) -> None:
    text = "".join(parts)
    stream = ThoughtfulStream(stops, ("\n" + MARKERS[0], MARKERS[1] + "\n\n"), is_thought=is_thought)
    shown = "".join(stream.push(piece) for piece in chunked(text.encode(), cuts)) + stream.flush()
    assert (shown, stream.matched) == expected(text, stops, is_thought=is_thought)


@pytest.mark.parametrize("text", ["a", "a <t", "x</t>y"])
def test_without_stops_nothing_waits(text: str) -> None:
    assert ThoughtfulStream((), MARKERS).push(text.encode()) == text


def test_no_more_waits_than_what_may_become_a_marker_or_a_stop() -> None:
    stream = ThoughtfulStream(["stop"], MARKERS)
    assert [stream.push(piece) for piece in (b"ab", b"<", b"t", b"x st", b"<t>o", b"p<", b"/t>st", b"op.")] == [
        *("ab", "", "", "<tx ", "st<t>o", "p", "</t>", "")
    ]
    assert stream.matched == "stop"
