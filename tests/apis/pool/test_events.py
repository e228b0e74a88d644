"""A stream's bytes (vectors of the protocol notes, B.2; those of order and timing are tested with the jobs)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tests.tables import cases
from worker.apis.core.events import EndEvent, ErrorEvent, MetricsEvent, Piece, StartedEvent
from worker.apis.pool.execute import TEXT_ONLY, Framing, choose_dialect
from worker.wire.jobs import Finished, JobKey, Logprob, StopReason, TokenId, TopToken

SSE = choose_dialect(None, sse_event_names=False)
NAMED_SSE = choose_dialect(None, sse_event_names=True)
JSON_LINES = choose_dialect("application/jsonl", sse_event_names=False)


def started(dialect: Framing) -> bytes:
    event = StartedEvent(
        job_id="test-123",
        model="Qwen2.5-0.5B",
        started_at="2025-10-04T12:00:00Z",
        seed=2**64 - 1,
        prompt_tokens=7,
        cached_tokens=0,
    )
    return dialect.started(event)


def metrics(dialect: Framing) -> bytes:
    event = MetricsEvent(
        tokens_per_sec=42.5, vram_bytes=536_870_912, job_id="test-123", tokens_out=9, decode_time_ms=211
    )
    return dialect.metrics(event)


def end(
    tokens_out: int,
    decode_time_ms: int,
    reason: StopReason,
    stop: str | None = None,
    *,
    dialect: Framing = SSE,
    context_full: bool = False,
) -> bytes:
    event = EndEvent(
        tokens_out=tokens_out,
        decode_time_ms=decode_time_ms,
        stop_reason=reason,
        stop_sequence_matched=UNSET if stop is None else stop,
        tokens_sampled=101,
        prompt_tokens=7,
        time_to_first_token_ms=12,
        context_full=context_full,
    )
    return dialect.end(event, Finished(JobKey(1), reason, stop))


def error(dialect: Framing) -> bytes:
    return dialect.error(ErrorEvent(code="VRAM_OOM", message="Out of VRAM", retriable=False))


def one_of_each(dialect: Framing) -> dict[str, bytes]:
    return {
        "started": started(dialect),
        "token": dialect.token(Piece("Hello", 5)),
        "metrics": metrics(dialect),
        "end": end(100, 5000, "MAX_TOKENS", dialect=dialect),
        "error": error(dialect),
    }


END_TAIL = ',"tokens_sampled":101,"prompt_tokens":7,"time_to_first_token_ms":12'


@pytest.mark.parametrize(
    ("frame", "legacy", "ours"),
    [
        pytest.param(
            started(SSE),
            '{"type":"started","job_id":"test-123","model":"Qwen2.5-0.5B","started_at":"2025-10-04T12:00:00Z"',
            ',"seed":18446744073709551615,"prompt_tokens":7,"cached_tokens":0',
            id="TV-101",
        ),
        pytest.param(SSE.token(Piece("Hello", 5)), '{"type":"token","t":"Hello","i":5', "", id="TV-102"),
        pytest.param(
            metrics(SSE),
            '{"type":"metrics","tokens_per_sec":42.5,"vram_bytes":536870912',
            ',"job_id":"test-123","tokens_out":9,"decode_time_ms":211',
            id="TV-103",
        ),
        pytest.param(
            end(100, 5000, "MAX_TOKENS"),
            '{"type":"end","tokens_out":100,"decode_time_ms":5000,"stop_reason":"MAX_TOKENS"',
            END_TAIL,
            id="TV-104",
        ),
        pytest.param(
            error(SSE), '{"type":"error","code":"VRAM_OOM","message":"Out of VRAM"', ',"retriable":false', id="TV-105"
        ),
        pytest.param(
            end(25, 750, "STOP_SEQUENCE", "\n\n"),
            '{"type":"end","tokens_out":25,"decode_time_ms":750,"stop_reason":"STOP_SEQUENCE"'
            ',"stop_sequence_matched":"\\n\\n"',
            END_TAIL,
            id="TV-106",
        ),
        pytest.param(
            end(100, 2000, "MAX_TOKENS", context_full=True),
            '{"type":"end","tokens_out":100,"decode_time_ms":2000,"stop_reason":"MAX_TOKENS"',
            END_TAIL + ',"context_full":true',
            id="TV-107-context-full",
        ),
        pytest.param(
            end(0, 0, "EOS"), '{"type":"end","tokens_out":0,"decode_time_ms":0,"stop_reason":"EOS"', END_TAIL, id="eos"
        ),
        pytest.param(SSE.token(Piece("👋🌍", 0)), '{"type":"token","t":"👋🌍","i":0', "", id="TV-108"),
        pytest.param(SSE.token(Piece("世界", 0)), '{"type":"token","t":"世界","i":0', "", id="TV-109"),
        pytest.param(SSE.token(Piece("x" * 1000, 0)), f'{{"type":"token","t":"{"x" * 1000}","i":0', "", id="TV-125"),
        pytest.param(SSE.token(Piece("a\r\nb\n", 0)), '{"type":"token","t":"a\\r\\nb\\n","i":0', "", id="TV-132"),
        pytest.param(
            SSE.token(Piece("a\u2028\u0085b", 0)), '{"type":"token","t":"a\u2028\u0085b","i":0', "", id="separators"
        ),
    ],
)
def test_events_are_the_legacy_ones_with_our_keys_appended(frame: bytes, legacy: str, ours: str) -> None:
    assert frame == f"data: {legacy}{ours}}}\n\n".encode()


def top(text: str, token: int, logprob: float) -> TopToken:
    return TopToken(text, TokenId(token), logprob)


def test_a_token_event_ends_in_the_logprobs_of_the_tokens_it_covers() -> None:
    hidden = Logprob(top("", 2, -3.5), ())
    shown = Logprob(top("Hé", 7, -0.25), (top("Hé", 7, -0.25), top("\ufffd", 9, -1.5)))
    assert (
        SSE.token(Piece("Hé", 5, [hidden, shown]))
        == (
            'data: {"type":"token","t":"Hé","i":5,"logprobs":['
            '{"token":"","id":2,"logprob":-3.5,"top":[]},'
            '{"token":"Hé","id":7,"logprob":-0.25,"top":['
            '{"token":"Hé","id":7,"logprob":-0.25},{"token":"\ufffd","id":9,"logprob":-1.5}]}]}\n\n'
        ).encode()
    )


def test_a_token_event_without_logprobs_has_no_such_key() -> None:
    assert SSE.token(Piece("a", 0, [])) == SSE.token(Piece("a", 0)) == b'data: {"type":"token","t":"a","i":0}\n\n'


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("started", id="TV-112a"),
        pytest.param("token", id="TV-112b"),
        pytest.param("end", id="TV-112c"),
        pytest.param("metrics", id="TV-112d"),
        pytest.param("error", id="TV-112e"),
    ],
)
def test_framings_differ_in_nothing_but_the_frame(name: str) -> None:
    line = one_of_each(JSON_LINES)[name]
    payload = line.removesuffix(b"\n")
    assert line == payload + b"\n"
    assert json.loads(payload)["type"] == name
    assert one_of_each(SSE)[name] == b"data: " + payload + b"\n\n"
    assert one_of_each(NAMED_SSE)[name] == b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


@cases
@pytest.mark.parametrize("sse_event_names", [False, True])
def test_accept_chooses_the_framing(accept: str | None, media_type: str, sse_event_names: bool) -> None:
    dialect = choose_dialect(accept, sse_event_names=sse_event_names)
    assert dialect.media_type == media_type
    is_named = sse_event_names and media_type == "text/event-stream"
    assert dialect.token(Piece("a", 0)).startswith(b"event: token\n") is is_named


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

texts = st.text(min_size=1)


@given(texts, st.integers(0, 2**32 - 1), st.sampled_from([SSE, NAMED_SSE, JSON_LINES]))
def test_any_text_survives_a_token_frame_which_stays_one_line(text: str, index: int, dialect: Framing) -> None:
    frame = dialect.token(Piece(text, index))
    body = frame.removesuffix(dialect.tail).removeprefix(dialect.leads["token"])
    assert b"\n" not in body
    assert b"\r" not in body
    assert json.loads(body) == {"type": "token", "t": text, "i": index}


top_tokens = st.builds(
    TopToken, st.text(), st.integers(0, 2**31).map(TokenId), st.floats(max_value=0, allow_infinity=False)
)


@given(texts, st.lists(st.builds(Logprob, top_tokens, st.lists(top_tokens).map(tuple)), min_size=1))
def test_logprobs_read_back_as_they_are_in_their_order(text: str, entries: list[Logprob]) -> None:
    event = json.loads(JSON_LINES.token(Piece(text, 0, entries)))
    assert list(event) == ["type", "t", "i", "logprobs"]
    for said, entry in zip(event["logprobs"], entries, strict=True):
        assert list(said) == ["token", "id", "logprob", "top"]
        assert (said["token"], said["id"], said["logprob"]) == (entry.token.text, entry.token.id, entry.token.logprob)
        assert [(other["token"], other["id"], other["logprob"]) for other in said["top"]] == [
            (other.text, other.id, other.logprob) for other in entry.top
        ]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\')))
def test_what_json_need_not_escape_is_sent_as_raw_utf8(text: str) -> None:
    assert f'"t":"{text}"'.encode() in SSE.token(Piece(text, 0))


@given(st.text())
def test_any_accept_header_gets_a_framing(accept: str) -> None:
    assert choose_dialect(accept, sse_event_names=False).media_type


# ── the terminal's dialect ───────────────────────────────────────────────────────────────────────


def test_the_terminal_gets_the_text_of_tokens_and_of_no_other_event() -> None:
    assert TEXT_ONLY.token(Piece("é\n", 3)) == "é\n".encode()
    assert {name for name, event in one_of_each(TEXT_ONLY).items() if event} == {"token"}


def test_no_client_can_ask_for_the_terminals_dialect() -> None:
    assert choose_dialect(TEXT_ONLY.media_type, sse_event_names=False) is SSE
