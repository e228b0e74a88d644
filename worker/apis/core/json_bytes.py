"""Bodies before they are decoded as JSON: a byte order mark is skipped, and an unreadable body gets a clear error.

RFC 8259 8.1 requires UTF-8 and lets a reader skip the mark. Pure.
"""

import re

_MARK = b"\xef\xbb\xbf"

_WIDE = re.compile(rb"\xff\xfe|\xfe\xff|\x00|[^\x00]\x00")
"""The start of UTF-16 and UTF-32: their marks, or a zero byte next to the first character, which is ASCII in JSON."""

_PAIRED = re.compile(
    rb"(?:[^\\\xed]+|\\[^u]|\\u(?!d[89a-f]).{4}|\\ud[89ab]..\\ud[c-f]..|\xed(?![\xa0-\xbf]))*+",
    re.DOTALL | re.IGNORECASE,
)
"""The longest beginning without half of a surrogate pair, written as an escape or as bytes."""

_HALF = re.compile(rb"\\ud[89a-f]|\xed[\xa0-\xbf]", re.IGNORECASE)


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
