"""Arguments in Python's notation (LFM2) and in Gemma 4's become JSON text.

Owns the two notations of values. Each function reads one value at an offset and returns its JSON text and the offset
after it; a text that is no value raises NotACallError. Pure.
"""

import re
from dataclasses import dataclass
from typing import Final

from worker.chat.scan import MAX_ELEMENTS, NotACallError, Scan, Steps, after_space, after_token, char_at, complete
from worker.chat.values import is_value, loaded, quoted
from worker.wire.chat_format import GEMMA_QUOTE

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "b": "\b",
    "f": "\f",
    "\n": "",
    "/": "/",
}
_HEX_ESCAPES: Final = {"x": 2, "u": 4, "U": 8}
_NAME: Final = re.compile(r"[\w.-]")
_MAX_WORD: Final = 400
_MAX_CODE_POINT: Final = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Notation:
    """The ways in which strings and keys are written."""

    quotes: tuple[str, ...]
    has_escapes: bool
    has_bare_keys: bool


PYTHON: Final = Notation(quotes=('"', "'"), has_escapes=True, has_bare_keys=False)
GEMMA: Final = Notation(quotes=(GEMMA_QUOTE,), has_escapes=False, has_bare_keys=True)


def python_json(text: str) -> str | None:
    """Return the JSON text of a value in Python's notation, or None if the text is none."""
    scan = Scan(text)
    scan.is_final = True
    try:
        value, end = complete(literal(scan, 0, PYTHON))
    except NotACallError:
        return None
    return None if text[end:].strip() else value


def literal(
    scan: Scan, k: int, notation: Notation, *, is_argument: bool = False, depth: int = 0
) -> Steps[tuple[str, int]]:
    """Read a value. `is_argument` says that it is a whole keyword argument, so the next one or `)` follows it."""
    if depth > MAX_ELEMENTS:
        raise NotACallError
    k = yield from after_space(scan, k)
    for quote in notation.quotes:
        end = yield from after_token(scan, k, quote)
        if end >= 0:
            text, end = yield from _string(scan, end, quote, notation, is_argument=is_argument)
            return quoted(text), end
    char = yield from char_at(scan, k)
    if char in "[(" and char:
        return (yield from _sequence(scan, k + 1, notation, "]" if char == "[" else ")", depth))
    if char == "{":
        return (yield from mapping(scan, k, notation, depth))
    return (yield from _word(scan, k))


def mapping(scan: Scan, k: int, notation: Notation, depth: int = 0) -> Steps[tuple[str, int]]:
    """Read an object whose opening brace is at offset k."""
    members: list[str] = []
    k += 1
    while True:
        k = yield from after_space(scan, k)
        char = yield from char_at(scan, k)
        if char == "}":
            return "{" + ", ".join(members) + "}", k + 1
        if char == "," and members:
            k = yield from after_space(scan, k + 1)
        key, k = yield from _key(scan, k, notation)
        value, k = yield from literal(scan, k, notation, depth=depth + 1)
        members.append(f"{quoted(key)}: {value}")
        k = yield from after_space(scan, k)
        if (yield from char_at(scan, k)) not in (",", "}"):
            raise NotACallError


def _sequence(scan: Scan, k: int, notation: Notation, end: str, depth: int) -> Steps[tuple[str, int]]:
    values: list[str] = []
    while True:
        k = yield from after_space(scan, k)
        char = yield from char_at(scan, k)
        if char == end:
            return "[" + ", ".join(values) + "]", k + 1
        if values:
            if char != ",":
                raise NotACallError
            k = yield from after_space(scan, k + 1)
            if (yield from char_at(scan, k)) == end:
                continue
        value, k = yield from literal(scan, k, notation, depth=depth + 1)
        values.append(value)


def _key(scan: Scan, k: int, notation: Notation) -> Steps[tuple[str, int]]:
    for quote in notation.quotes:
        end = yield from after_token(scan, k, quote)
        if end >= 0:
            text, k = yield from _string(scan, end, quote, notation, is_argument=False)
            k = yield from after_space(scan, k)
            if (yield from char_at(scan, k)) != ":":
                raise NotACallError
            return text, k + 1
    if not notation.has_bare_keys:
        raise NotACallError
    start = k
    while (char := (yield from char_at(scan, k))) != ":":
        if not char or char in "{}[]," or k - start > _MAX_WORD:
            raise NotACallError
        k += 1
    return scan.ahead(start, k).strip(), k + 1


def _word(scan: Scan, k: int) -> Steps[tuple[str, int]]:
    start = k
    while (char := (yield from char_at(scan, k))) and char not in ",)]} \t\r\n":
        k += 1
        if k - start > _MAX_WORD:
            raise NotACallError
    word = scan.ahead(start, k)
    word = _WORDS.get(word, word)
    if not is_value(loaded(word)) or word.startswith('"'):
        raise NotACallError
    return word, k


def _string(scan: Scan, k: int, quote: str, notation: Notation, *, is_argument: bool) -> Steps[tuple[str, int]]:
    parts: list[str] = []
    while True:
        end = yield from _find(scan, k, quote, has_escapes=notation.has_escapes)
        parts.append(scan.ahead(k, end))
        if not notation.has_escapes:
            return "".join(parts), end + len(quote)
        if (yield from char_at(scan, end)) == "\\":
            text, k = yield from _escape(scan, end + 1)
            parts.append(text)
        elif (yield from _is_end(scan, end + 1, is_argument=is_argument)):
            return "".join(parts), end + 1
        else:
            parts.append(quote)
            k = end + 1


def _find(scan: Scan, k: int, quote: str, *, has_escapes: bool) -> Steps[int]:
    """Return the offset of the next quote, or of the next backslash if it begins an escape."""
    while True:
        end = scan.find(quote, k)
        escape = scan.find("\\", k) if has_escapes else -1
        if escape >= 0 and (end < 0 or escape < end):
            return escape
        if end >= 0:
            return end
        if scan.is_final:
            raise NotACallError
        k = max(k, scan.n_ahead - len(quote) + 1)
        yield


def _escape(scan: Scan, k: int) -> Steps[tuple[str, int]]:
    char = yield from char_at(scan, k)
    size = _HEX_ESCAPES.get(char)
    if size is None:
        return _ESCAPES.get(char, "\\" + char), k + 1
    for i in range(size):
        yield from char_at(scan, k + size - i)
    digits = scan.ahead(k + 1, k + 1 + size)
    try:
        code = int(digits, 16)
    except ValueError:
        return "\\" + char, k + 1
    is_character = code <= _MAX_CODE_POINT and not 0xD800 <= code <= 0xDFFF  # a surrogate is none
    return (chr(code), k + 1 + size) if is_character else ("\\" + char, k + 1)


def _is_end(scan: Scan, k: int, *, is_argument: bool) -> Steps[bool]:
    """Return True if the quote before offset k ends its string: models do not escape the quotes in a text.

    A whole argument ends before `)` and the end or the next call, or before the next keyword.
    """
    k = yield from after_space(scan, k)
    char = yield from char_at(scan, k)
    if not is_argument:
        return char in ",]}):"
    follower = "="
    if char == ")":
        k = yield from after_space(scan, k + 1)
        char, follower = (yield from char_at(scan, k)), "("
    if char != ",":
        return char in ("]", "")
    k = yield from after_space(scan, k + 1)
    start = k
    while _NAME.match((yield from char_at(scan, k))):
        k += 1
    after = yield from after_space(scan, k)
    return k > start and (yield from char_at(scan, after)) == follower
