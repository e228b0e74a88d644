"""A stream's events as bytes: server-sent events or JSON lines (docs/protocol.md 4).

Owns: keys and their order, framing, which framing a client gets. Refuses to know: when an event is due, sockets.
Pure; runs on the front's event loop. `token` is the hot one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from worker.engine.contract import Logprob, StopReason

EVENT_TYPES: Final = ("started", "token", "metrics", "end", "error")
SSE_TYPE: Final = "text/event-stream"
JSON_LINES_TYPES: Final = ("application/jsonl", "application/x-ndjson")

_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE | re.ASCII)
"""RFC 9110, 12.4.2."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every event; the tag comes first."""


class _Started(_Event, frozen=True, kw_only=True, tag="started"):
    job_id: str
    model: str
    started_at: str
    seed: int
    prompt_tokens: int
    cached_tokens: int


class _TopToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    id: int
    logprob: float


class _SampledToken(_TopToken, frozen=True, kw_only=True):
    top: list[_TopToken]


class _Token(_Event, frozen=True, kw_only=True, tag="token"):
    t: str
    i: int
    logprobs: list[_SampledToken]


class _Metrics(_Event, frozen=True, kw_only=True, tag="metrics"):
    tokens_per_sec: float
    vram_bytes: int
    job_id: str
    tokens_out: int
    decode_time_ms: int


class _End(_Event, frozen=True, kw_only=True, tag="end"):
    tokens_out: int
    decode_time_ms: int
    stop_reason: StopReason
    stop_sequence_matched: str | None = None
    tokens_sampled: int
    prompt_tokens: int
    time_to_first_token_ms: int
    context_full: bool = False


class _Error(_Event, frozen=True, kw_only=True, tag="error"):
    code: str
    message: str
    retriable: bool


_encoder = msgspec.json.Encoder()


def _sampled(entry: Logprob) -> _SampledToken:
    top = [_TopToken(token=other.text, id=other.id, logprob=other.logprob) for other in entry.top]
    token = entry.token
    return _SampledToken(token=token.text, id=token.id, logprob=token.logprob, top=top)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One framing. Each method gives the bytes of one event, complete with its framing."""

    media_type: str
    leads: Mapping[str, bytes]
    """What precedes the JSON, by event type."""
    tail: bytes

    def started(
        self, *, job_id: str, model: str, started_at: str, seed: int, prompt_tokens: int, cached_tokens: int
    ) -> bytes:
        """The first event. `started_at` is RFC 3339."""
        event = _Started(
            job_id=job_id,
            model=model,
            started_at=started_at,
            seed=seed,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
        return self._frame("started", event)

    def token(self, text: str, index: int, logprobs: Sequence[Logprob] = ()) -> bytes:
        """Some text, not empty and without lone surrogates; `index` counts 0, 1, 2, …; `logprobs` where asked for: of
        each sampled token that no event before this one covers.
        """
        if logprobs:
            return self._frame("token", _Token(t=text, i=index, logprobs=[_sampled(entry) for entry in logprobs]))
        return b'%b{"type":"token","t":%b,"i":%d}%b' % (self.leads["token"], _encoder.encode(text), index, self.tail)

    def metrics(
        self, *, tokens_per_sec: float, vram_bytes: int, job_id: str, tokens_out: int, decode_time_ms: int
    ) -> bytes:
        event = _Metrics(
            tokens_per_sec=tokens_per_sec,
            vram_bytes=vram_bytes,
            job_id=job_id,
            tokens_out=tokens_out,
            decode_time_ms=decode_time_ms,
        )
        return self._frame("metrics", event)

    def end(
        self,
        *,
        tokens_out: int,
        decode_time_ms: int,
        stop_reason: StopReason,
        stop_sequence_matched: str | None,
        tokens_sampled: int,
        prompt_tokens: int,
        time_to_first_token_ms: int,
        context_full: bool,
    ) -> bytes:
        """Terminal: the job ran to an ordinary end. A stop of None and a context_full of False are left out."""
        event = _End(
            tokens_out=tokens_out,
            decode_time_ms=decode_time_ms,
            stop_reason=stop_reason,
            stop_sequence_matched=stop_sequence_matched,
            tokens_sampled=tokens_sampled,
            prompt_tokens=prompt_tokens,
            time_to_first_token_ms=time_to_first_token_ms,
            context_full=context_full,
        )
        return self._frame("end", event)

    def error(self, *, code: str, message: str, retriable: bool) -> bytes:
        """Terminal: the job did not come to its end."""
        return self._frame("error", _Error(code=code, message=message, retriable=retriable))

    def _frame(self, event_type: str, event: _Event) -> bytes:
        return self.leads[event_type] + _encoder.encode(event) + self.tail


_SSE = Dialect(SSE_TYPE, dict.fromkeys(EVENT_TYPES, b"data: "), b"\n\n")
_NAMED_SSE = Dialect(SSE_TYPE, {name: b"event: %b\ndata: " % name.encode() for name in EVENT_TYPES}, b"\n\n")
_JSON_LINES = {name: Dialect(name, dict.fromkeys(EVENT_TYPES, b""), b"\n") for name in JSON_LINES_TYPES}


def choose_dialect(accept: str | None, *, sse_event_names: bool) -> Dialect:
    """The framing for an Accept header: the one of ours it names with the most weight, the first among equals.

    Wildcards ask for nothing in particular and nothing is refused, so everything else gets server-sent events.
    """
    best, best_weight = SSE_TYPE, 0.0
    for entry in (accept or "").split(","):
        media_type, *parameters = entry.split(";")
        name = media_type.strip().lower()
        weight = _weight(parameters)
        if (name == SSE_TYPE or name in _JSON_LINES) and weight > best_weight:
            best, best_weight = name, weight
    if best in _JSON_LINES:
        return _JSON_LINES[best]
    return _NAMED_SSE if sse_event_names else _SSE


def _weight(parameters: list[str]) -> float:
    matches = filter(None, map(_WEIGHT.fullmatch, parameters))
    return next((float(match[1]) for match in matches), 1.0)
