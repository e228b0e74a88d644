"""A client reads a stream of `/execute`, however its bytes were cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from client.execute import END, Failed, answer_of, events
from client.sse import Frames, data_in
from worker.apis.core.events import EndEvent, MetricsEvent, Piece, StartedEvent
from worker.apis.pool.execute import choose_dialect
from worker.wire.jobs import Finished, JobKey, Logprob, TokenId, TopToken

SSE = choose_dialect(None, sse_event_names=False)


def stream() -> bytes:
    logprob = Logprob(TopToken("a", TokenId(5), -0.5), (TopToken("a", TokenId(5), -0.5),))
    started = SSE.started(StartedEvent(job_id="j", model="m", started_at="", seed=9, prompt_tokens=1, cached_tokens=0))
    metrics = SSE.metrics(MetricsEvent(tokens_per_sec=1.0, vram_bytes=0, job_id="j", tokens_out=1, decode_time_ms=1))
    event = EndEvent(
        tokens_out=2,
        decode_time_ms=1,
        stop_reason="EOS",
        tokens_sampled=3,
        prompt_tokens=1,
        time_to_first_token_ms=1,
    )
    end = SSE.end(event, Finished(JobKey(1), "EOS"))
    tokens = SSE.token(Piece("a\u2028", 0, [logprob])), SSE.token(Piece("é", 1, [logprob, logprob]))
    return b"".join((started, tokens[0], metrics, tokens[1], end))


def test_any_cut_of_the_bytes_gives_the_same_answer() -> None:
    data = stream()
    whole = answer_of("j", list(events([data])))
    assert (whole.seed, whole.tokens, whole.text) == (9, (5, 5, 5), "a\u2028é")
    assert (whole.choices, whole.n_sampled, whole.n_terminal, whole.error) == ((5, 5, 5, END), 3, 1, "")
    for size in range(1, len(data)):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert answer_of("j", list(events(chunks))) == whole


def test_a_stream_without_an_end_and_one_with_two_are_distinguished() -> None:
    data = stream()
    assert answer_of("j", list(events([data[: data.index(b'{"type":"end"')]]))).n_terminal == 0
    twice = answer_of("j", [*events([data]), Failed("CANCELLED", "why")])
    assert (twice.n_terminal, twice.error) == (2, "CANCELLED: why")


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
