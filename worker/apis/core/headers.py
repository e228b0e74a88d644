"""The request headers that have a meaning in the protocol, from text to value (docs/protocol.md#http).

`Accept` is events.py's. Pure except for the fresh UUIDs.
"""

import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

from worker.errors import UnreadableDeadline

_UUID_FORM = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""A UUID of any version: it only has to be safe to log and to echo unchanged."""

_REQUEST_ID = re.compile(r"[!-~]{1,256}")
"""Visible ASCII, which cannot break a header or a log line."""

_EPOCH_MS = re.compile(r"[0-9]{1,15}")
"""Fifteen digits reach the year 33658; more digits are a mistake, e.g. nanoseconds."""

_JSON_TYPE = re.compile(r"application/([^\s/]+\+)?json", re.IGNORECASE)

_TRACE_HEADERS = (b"traceparent", b"tracestate")

_MAX_SHOWN_CHARACTERS = 40


def correlation_id(value: str | None) -> str:
    """The X-Correlation-ID of a request: the client's if it has the form of a UUID, else a fresh UUIDv4."""
    kept = (value or "").strip()
    return kept if _UUID_FORM.fullmatch(kept) else str(uuid.uuid4())


def request_id(value: str | None) -> str | None:
    """The text if it can be sent back unchanged as X-Request-Id; else None."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else None


def parse_deadline(value: str) -> float:
    """X-Deadline in epoch seconds, from epoch milliseconds or ISO-8601, which is UTC if it has no offset.

    Raises: UnreadableDeadline.
    """
    text = value.strip()
    if _EPOCH_MS.fullmatch(text):
        return int(text) / 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        shown = repr(text[:_MAX_SHOWN_CHARACTERS])
        raise UnreadableDeadline(
            f"X-Deadline {shown} is not a time; send epoch milliseconds (at most 15 digits) or ISO-8601"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """W3C's two trace headers, if the request has them. The values of a repeated header are joined with commas."""
    found: dict[str, str] = {}
    for key, value in headers:
        if key in _TRACE_HEADERS:
            name, text = key.decode(), value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if name in found else text
    return found


def foreign_codings(values: Iterable[str]) -> str:
    """The codings of the body that Content-Encoding names, except `identity`; "" if there are none."""
    codings = [coding.strip() for value in values for coding in value.split(",")]
    return ", ".join(coding for coding in codings if coding and coding.lower() != "identity")


def is_json_content_type(value: str | None) -> bool:
    """True for application/json and application/*+json, with any parameters."""
    media_type = (value or "").split(";", 1)[0].strip()
    return _JSON_TYPE.fullmatch(media_type) is not None
