"""Arguments in Python's notation (LFM2) and in Gemma 4's become JSON text.

Each function reads one value at an offset and returns its JSON text and the offset after it; a text that is no value
raises NotACallError.

A text that `ast.literal_eval` reads has the value that it has there. JSON has no bytes, sets and complex numbers, so
they are no values. Two more things are read, because models write them: JSON's words, and quotes in a text that are not
escaped.
"""

import ast
import json
import re
import warnings
from typing import Final, Literal, cast

from worker.formats.read.scan import MAX_ELEMENTS, NotACallError, Scan, Steps
from worker.formats.read.values import PYTHON_WORDS, is_value, loaded, quoted
from worker.wire.chat_format import GEMMA_QUOTE

Notation = Literal["python", "gemma"]

_BEGIN: Final = re.compile(r"""(?i:[bru]?|br|rb)('''|\"""|'|")""")
"""The beginning of a string in Python."""
_MAY_BEGIN: Final = re.compile(r"""(?i:[bru]{0,2}(?:''?|""?)?)\Z""")
_ESCAPE: Final = re.compile(r"\\(?:x.{2}|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)", re.DOTALL)
_SPACE: Final = re.compile(r"(?:[ \t\f\r\n]|\\\r?\n|#[^\n]*\n)*")
"""The text between two of Python's tokens."""
_NAME: Final = re.compile(r"[\w.-]")
_MAX_WORD: Final = 400


def python_json(text: str) -> str | None:
    """Return the JSON text of a value in Python's notation, or None if the text is none."""

    def whole(scan: Scan) -> Steps[str | None]:
        value, end = yield from literal(scan, 0, "python")
        return value if (yield from gap(scan, end)) == scan.n_ahead else None

    try:
        next(whole(Scan(text + "\n", is_final=True)))
    except StopIteration as done:
        return cast(str | None, done.value)
    except NotACallError:
        pass
    return None


def gap(scan: Scan, k: int, notation: Notation = "python") -> Steps[int]:
    """Return the offset of the first token at or after offset k. Python has comments between its tokens."""
    if notation == "gemma":
        return (yield from scan.after_space(k))
    while True:
        k = yield from scan.after_space(k, _SPACE)
        char = yield from scan.char_at(k)
        if scan.is_final or char not in "#\\" or (char == "\\" and scan.n_ahead > k + 2):
            return k
        yield


def literal(
    scan: Scan, k: int, notation: Notation, *, is_argument: bool = False, depth: int = 0
) -> Steps[tuple[str, int]]:
    """Read a value. `is_argument` says that it is a whole keyword argument, so the next one or `)` follows it."""
    if depth > MAX_ELEMENTS:
        raise NotACallError
    k = yield from gap(scan, k, notation)
    text, end = yield from _text(scan, k, notation, is_argument=is_argument)
    if text is not None:
        return text, end
    char = yield from scan.char_at(k)
    if char in "[(" and char:
        values, has_comma, k = yield from _items(scan, k + 1, notation, "]" if char == "[" else ")", depth)
        return (f"[{', '.join(values)}]" if char == "[" or has_comma or not values else values[0]), k
    if char == "{":
        return (yield from mapping(scan, k, notation, depth))
    return (yield from _word(scan, k, notation))


def mapping(scan: Scan, k: int, notation: Notation, depth: int = 0) -> Steps[tuple[str, int]]:
    """Read an object whose opening brace is at offset k."""
    members, _, k = yield from _items(scan, k + 1, notation, "}", depth)
    return "{" + ", ".join(members) + "}", k


def _items(scan: Scan, k: int, notation: Notation, end: str, depth: int) -> Steps[tuple[list[str], bool, int]]:
    """Read the values, or an object's members, up to the end. Return them, whether a comma is among them, and the
    offset after the end."""
    items: list[str] = []
    has_comma = False
    while True:
        k = yield from gap(scan, k, notation)
        char = yield from scan.char_at(k)
        if items and char == ",":
            has_comma, k = True, (yield from gap(scan, k + 1, notation))
            char = yield from scan.char_at(k)
        elif items and char != end:
            raise NotACallError
        if char == end:
            return items, has_comma, k + 1
        if end != "}":
            item, k = yield from literal(scan, k, notation, depth=depth + 1)
        else:
            item, k = yield from _member(scan, k, notation, depth + 1)
        items.append(item)


def _member(scan: Scan, k: int, notation: Notation, depth: int) -> Steps[tuple[str, int]]:
    key, k = yield from (_key(scan, k) if notation == "gemma" else literal(scan, k, notation, depth=depth))
    k = yield from gap(scan, k, notation)
    if (yield from scan.char_at(k)) != ":" or key[0] in "[{":
        raise NotACallError
    value, k = yield from literal(scan, k + 1, notation, depth=depth)
    key = key if key[0] == '"' else quoted(json.dumps(loaded(key)))
    return f"{key}: {value}", k


def _key(scan: Scan, k: int) -> Steps[tuple[str, int]]:
    """Read a key of Gemma's notation, which may have no quotes."""
    text, end = yield from _text(scan, k, "gemma", is_argument=False)
    if text is not None:
        return text, end
    start = k
    while (char := (yield from scan.char_at(k))) != ":":
        if not char or char in "{}[]," or k - start > _MAX_WORD:
            raise NotACallError
        k += 1
    return quoted(scan.ahead(start, k).strip()), k


def _word(scan: Scan, k: int, notation: Notation) -> Steps[tuple[str, int]]:
    start = k
    if (yield from scan.char_at(k)) in ("+", "-"):
        k = yield from gap(scan, k + 1, notation)
    while (char := (yield from scan.char_at(k))) and char not in ",:)]}# \t\f\r\n\\":
        k += 1
        if k - start > _MAX_WORD:
            raise NotACallError
    word = scan.ahead(start, k)
    word = PYTHON_WORDS.get(word, word)
    if is_value(loaded(word)) and not word.startswith('"'):
        return word, k
    value = _evaluated(word)
    if type(value) not in (int, float) or not is_value(loaded(json.dumps(value))):
        raise NotACallError
    return json.dumps(value), k


def _text(scan: Scan, k: int, notation: Notation, *, is_argument: bool) -> Steps[tuple[str | None, int]]:
    """Read a string; None if none begins here."""
    if notation == "gemma":
        begin = yield from scan.after_token(k, GEMMA_QUOTE)
        if begin < 0:
            return None, k
        end = yield from _find(scan, begin, GEMMA_QUOTE, has_escapes=False)
        return quoted(scan.ahead(begin, end)), end + len(GEMMA_QUOTE)
    if not (yield from _begin(scan, k)):
        return None, k
    try:
        text, end = yield from _strings(scan, k, is_argument=is_argument)
    except NotACallError:
        text, end = yield from _loose_string(scan, k, is_argument=is_argument)
    # A surrogate has no UTF-8, but JSON can escape it.
    return quoted(text) if text.encode(errors="ignore").decode() == text else json.dumps(text), end


def _begin(scan: Scan, k: int) -> Steps[re.Match[str] | None]:
    while not scan.is_final and _MAY_BEGIN.match(scan.text, scan.at + k):
        yield
    return _BEGIN.match(scan.text, scan.at + k)


def _strings(scan: Scan, k: int, *, is_argument: bool) -> Steps[tuple[str, int]]:
    """Read a string as Python does, with those that follow it and belong to it."""
    start = end = k
    while begin := (yield from _begin(scan, k)):
        end = k + len(begin[0])
        while (yield from scan.char_at(end := (yield from _find(scan, end, begin[1])))) == "\\":
            end += 2
        end += len(begin[1])
        k = yield from gap(scan, end)
    value = _evaluated(scan.ahead(start, end)) if (yield from _is_end(scan, end, is_argument=is_argument)) else None
    if not isinstance(value, str):
        raise NotACallError
    return value, end


def _loose_string(scan: Scan, k: int, *, is_argument: bool) -> Steps[tuple[str, int]]:
    """Read a string in which quotes may stand that are not escaped. An escape that Python refuses is text."""
    quote, end = scan.ahead(k, k + 1), k + 1
    if quote not in ("'", '"'):
        raise NotACallError
    while True:
        end = yield from _find(scan, end, quote)
        if (yield from scan.char_at(end)) == "\\":
            end += 2
        elif (yield from _is_end(scan, end + 1, is_argument=is_argument)):
            break
        else:
            end += 1
    return _ESCAPE.sub(lambda found: str(_evaluated(f"'{found[0]}'", found[0])), scan.ahead(k + 1, end)), end + 1


def _evaluated(text: str, otherwise: object = None) -> object:
    """Return the value of a text in Python, or the other value if it has none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(f"({text}\n)")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return otherwise


def _find(scan: Scan, k: int, quote: str, *, has_escapes: bool = True) -> Steps[int]:
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


def _is_end(scan: Scan, k: int, *, is_argument: bool) -> Steps[bool]:
    """Return True if the quote before offset k ends its string: models do not escape the quotes in a text.

    A whole argument ends before `)` and the end or the next call, or before the next keyword.
    """
    k = yield from gap(scan, k)
    char = yield from scan.char_at(k)
    if not is_argument:
        return char in ",]}):"
    follower = "="
    if char == "," and (yield from scan.char_at(last := (yield from gap(scan, k + 1)))) == ")":
        k, char = last, ")"
    if char == ")":
        k = yield from gap(scan, k + 1)
        char, follower = (yield from scan.char_at(k)), "("
    if char != ",":
        return char in ("]", "")
    k = yield from gap(scan, k + 1)
    start = k
    while _NAME.match((yield from scan.char_at(k))):
        k += 1
    after = yield from gap(scan, k)
    return k > start and (yield from scan.char_at(after)) == follower
