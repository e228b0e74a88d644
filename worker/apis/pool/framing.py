"""A job's events as bytes for `/execute`: server-sent events or JSON lines (docs/protocol.md#post-execute).

Owns: the framings, and the choice of one for a client. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from worker.apis.core.events import (
    EVENT_TYPES,
    SIGN_OF_LIFE,
    SSE_TYPE,
    Dialect,
    EndEvent,
    ErrorEvent,
    Event,
    MetricsEvent,
    Piece,
    SampledLogprob,
    StartedEvent,
    TokenEvent,
    TopLogprob,
)
from worker.wire.encoding import encode_json
from worker.wire.jobs import Finished, Logprob

JSON_LINES_TYPES: Final = ("application/jsonl", "application/x-ndjson")

_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE | re.ASCII)
"""RFC 9110, 12.4.2."""


@dataclass(frozen=True)
class Framing(Dialect):
    """The dialect of `/execute`: each event is its JSON between a lead and a tail. It keeps nothing, so that all jobs
    share it."""

    media_type: str
    leads: Mapping[str, bytes]
    """The bytes before the JSON, by event type."""
    tail: bytes
    comment: bytes = b""
    """The sign of life."""

    def sign_of_life(self) -> bytes:
        return self.comment

    def started(self, event: StartedEvent) -> bytes:
        return self._frame("started", event)

    def token(self, piece: Piece) -> bytes:
        sampled = [_sampled(entry) for entry in piece.logprobs] if piece.logprobs else msgspec.UNSET
        return self._frame("token", TokenEvent(t=piece.text, i=piece.index, logprobs=sampled))

    def metrics(self, event: MetricsEvent) -> bytes:
        return self._frame("metrics", event)

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:  # noqa: ARG002
        return self._frame("end", event)

    def error(self, event: ErrorEvent) -> bytes:
        return self._frame("error", event)

    def _frame(self, event_type: str, event: Event) -> bytes:
        return self.leads[event_type] + encode_json(event) + self.tail


class _TextOnly(Framing):
    """No framing: a token event is its text, and the others are left out."""

    def _frame(self, event_type: str, event: Event) -> bytes:  # noqa: ARG002 - the base class's signature
        return event.t.encode() if isinstance(event, TokenEvent) else b""


TEXT_ONLY: Final = _TextOnly("text/plain", {}, b"")
"""The form that `llorch-worker generate` writes; no client can ask for it."""

_SSE = Framing(SSE_TYPE, dict.fromkeys(EVENT_TYPES, b"data: "), b"\n\n", SIGN_OF_LIFE)
_NAMED_LEADS = {name: b"event: %b\ndata: " % name.encode() for name in EVENT_TYPES}
_NAMED_SSE = Framing(SSE_TYPE, _NAMED_LEADS, b"\n\n", SIGN_OF_LIFE)
_JSON_LINES = {name: Framing(name, dict.fromkeys(EVENT_TYPES, b""), b"\n") for name in JSON_LINES_TYPES}


def choose_dialect(accept: str | None, *, sse_event_names: bool) -> Framing:
    """Return the framing for an Accept header: the one that it names with the most weight, the first among equals.

    Wildcards ask for nothing in particular, and no header is refused: everything else gets server-sent events.
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


def _sampled(entry: Logprob) -> SampledLogprob:
    top = [TopLogprob(token=other.text, id=other.id, logprob=other.logprob) for other in entry.top]
    token = entry.token
    return SampledLogprob(token=token.text, id=token.id, logprob=token.logprob, top=top)
