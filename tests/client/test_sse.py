"""Server-sent events are the same however their bytes were cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from client.sse import Frames, data_in

STREAM = b': ping\n\ndata: {"a":"b\xe2\x80\xa8c"}\n\nevent: token\ndata: {}\n\n: ping\n\ndata: [DONE]\n\n'


@given(edges=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_an_event_is_there_as_soon_as_its_last_byte_is_however_a_stream_was_cut(edges: list[int]) -> None:
    """Also a line separator inside a text, which ends a line for many a reader."""
    frames, seen = Frames(), b""
    found: list[bytes] = []
    chunks = [STREAM[start:end] for start, end in pairwise([0, *sorted(edges), len(STREAM)])]
    for chunk in chunks:
        seen += chunk
        found += frames.feed(chunk)
        assert found == seen.split(b"\n\n")[:-1]
        assert frames.rest == seen.rpartition(b"\n\n")[2]
    assert list(data_in(chunks)) == [b'{"a":"b\xe2\x80\xa8c"}', b"{}", b"[DONE]"]
