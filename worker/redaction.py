"""What must not be in a log line: recognises secrets by key and by form, and makes every value plain on the way.

Knows nothing of lines, streams or structlog. Pure.
"""

import re
from typing import Final

MASK: Final = "[REDACTED]"

_SECRET_KEY = re.compile(
    r"(^|[_-])(api[_-]?key|token|secret|password|passwd|authorization|cookie|credentials?)$", re.IGNORECASE
)

_NAMED_SECRET = r"(?<![a-z0-9])(?:api[_-]?key|token|secret|password|passwd|authorization)"  # noqa: S105 - a pattern
_ASSIGNED = r"[\"']?\s*[=:]\s*[\"']?(?:(?:basic|bearer)\s+)?"

_SECRETS_IN_TEXT = (
    (re.compile(rf"({_NAMED_SECRET}{_ASSIGNED})[^\s\"'&,;]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(bearer\s+)(?!\[REDACTED)[^\s\"',]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"://[^/\s@]+@"), f"://{MASK}@"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),
)
"""name=value and name: value, bearer tokens, user:password of a URL, Hugging Face tokens: nothing else."""

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def redact(key: str, value: object) -> Plain:
    """`value` as JSON can carry it, masked where `key`, a key inside it or the form of its text says "secret".

    Numbers stay even under a secret's name: a token may be a number of the vocabulary.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, dict):
        return {redact_text(str(name)): redact(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(key, inner) for inner in value]
    return redact_text(str(value))


def redact_text(text: str) -> str:
    for pattern, replacement in _SECRETS_IN_TEXT:
        text = pattern.sub(replacement, text)
    # Lone surrogates, as in a file name that is not UTF-8, cannot be encoded.
    return text.encode(errors="backslashreplace").decode()
