"""No stop is found in a reasoning whose markers are text, nor in the markers, and every stop outside of it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.text_reference import any_cuts, chunked, first_stop
from worker.engine.channels import ThoughtfulStream

LAW = settings(max_examples=500, deadline=None)
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


@LAW
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
