"""The text that TextStream must show, found by reading the whole text again after every push. Several rooms use it."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from tests.engine.fake_runner import first_stop
from worker.engine.channels import TextStream

UNFINISHED = frozenset(
    chr(point).encode()[:length]
    for point in range(0x80, 0x110000, 0x40)
    if not 0xD800 <= point < 0xE000
    for length in range(1, len(chr(point).encode()))
)
"""Every proper prefix of every code point's bytes; the last byte spans 0x40 code points."""


def finished_text(data: bytes) -> str:
    """decode(replace) less the U+FFFD of a code point that the data ends inside."""
    text = data.decode("utf-8", "replace")
    return text[:-1] if any(data[-length:] in UNFINISHED for length in (1, 2, 3)) else text


def n_undecided(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of the text that is also a prefix of a stop."""
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


def expected_so_far(data: bytes, stops: Sequence[str]) -> str:
    text = finished_text(data)
    found = first_stop(text, stops)
    return found[0] if found else text[: len(text) - n_undecided(text, stops)]


def check_against_the_reference(pieces: Sequence[bytes], stops: Sequence[str]) -> None:
    """After every push exactly what is certain has been shown; after the flush, all of it."""
    stream, shown, data = TextStream(stops), "", b""
    for piece in pieces:
        shown, data = shown + stream.push(piece), data + piece
        assert shown == expected_so_far(data, stops)
        found = first_stop(finished_text(data), stops)
        assert stream.matched == (found[1] if found else None)
    whole = finished_text(data)
    found = first_stop(whole, stops)
    assert shown + stream.flush() == (found[0] if found else whole)
    assert stream.matched == (found[1] if found else None)


any_cuts = st.lists(st.integers(0, 200), max_size=8)


def chunked(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data in pieces, some of them perhaps empty."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def stops_cut_from(text: str) -> st.SearchStrategy[list[str]]:
    """Up to four stops: pieces of the text, which it completes, and some that it only begins."""
    begins = st.integers(0, max(0, len(text) - 1))
    cut = st.builds(lambda start, n, tail: text[start : start + n] + tail, begins, st.integers(1, 20), st.just(""))
    missed = st.builds(lambda stop, tail: stop + tail, cut, st.sampled_from("\ufffda "))
    return st.lists(st.one_of(cut, missed).filter(bool), max_size=4)
