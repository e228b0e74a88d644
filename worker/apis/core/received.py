"""A request as it arrives: the headers that have a meaning in the protocol (docs/protocol.md#http), and a body that may
be JSON. RFC 8259 8.1 requires UTF-8 and lets a reader skip a byte order mark.
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

_MARK = b"\xef\xbb\xbf"

_WIDE = re.compile(rb"\xff\xfe|\xfe\xff|\x00|[^\x00]\x00")
"""The start of UTF-16 and UTF-32: their marks, or a zero byte next to the first character, which is ASCII in JSON."""

_PAIRED = re.compile(
    rb"(?:[^\\\xed]+|\\[^u]|\\u(?!d[89a-f]).{4}|\\ud[89ab]..\\ud[c-f]..|\xed(?![\xa0-\xbf]))*+",
    re.DOTALL | re.IGNORECASE,
)
"""The longest beginning without half of a surrogate pair, written as an escape or as bytes."""

_HALF = re.compile(rb"\\ud[89a-f]|\xed[\xa0-\xbf]", re.IGNORECASE)


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


def without_mark(body: bytes | bytearray) -> bytes | bytearray:
    return body[len(_MARK) :] if body.startswith(_MARK) else body


def fault_of(body: bytes | bytearray, error: Exception) -> str:
    """The reason why the body is not JSON. The text of `error` is used unless it would mislead."""
    if _WIDE.match(body):
        return "it is in UTF-16 or UTF-32; send it in UTF-8"
    if (paired := _PAIRED.match(body)) and _HALF.match(body, paired.end()):
        return (
            f"half of a surrogate pair stands alone at byte {paired.end()}; write a character beyond U+FFFF as two "
            "escapes, or as it is in UTF-8"
        )
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(error)
