"""The text of an answer that is not read yet, and the steps of reading it.

Owns the held text and the primitive steps: all that reads an answer is a generator, which yields when it needs more
text and goes on when there is more or the answer has ended. A decision is made when no further text can change it. So
it does not depend on how the text is cut into pieces. Places are offsets from `at`; they stay valid while text arrives.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_IN_TEXT: Final = re.compile(r'["\\]')
_IN_JSON: Final = re.compile(r'["{}\[\]]')
_TOKEN_BREAKS: Final = re.compile(r"\s*\n\s*|(?=\[$)|(?<=^\])(?=<[|/]|```)|(?<=>)(?=<)")
_GAP: Final = re.compile(r'((?<=\w)\s+(?=\w))|\s+|(?<=[</｜=])(?=[\w"｜])|(?<=[\w"])(?=[=>])')
"""The places in a tag where models write other white space than the template, or none if it is in no group."""
_MAX_GAP: Final = 4
_MIN_SIZE: Final = 4096
"""Read text is cut off the buffer at this size. Smaller would copy more often than needed."""
MAX_DEPTH: Final = 200
"""The most brackets in each other. Deeper text is no call."""
MAX_ELEMENTS: Final = 60
"""The same for values that are read by functions that call themselves."""


def complete(steps: Steps[T]) -> T:
    """Return the result of reading a text that has ended."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


class NotACallError(Exception):
    """The text at this place is no call."""


class Scan:
    """The text from `at` on is not read yet."""

    __slots__ = ("at", "is_final", "text")

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.at = 0
        self.is_final = False
        """True if no more text comes."""

    def push(self, text: str) -> None:
        """Add a piece of the answer."""
        if self.at >= _MIN_SIZE or self.at == len(self.text):
            self.text = self.text[self.at :] + text
            self.at = 0
        else:
            self.text += text

    def ahead(self, k: int, end: int | None = None) -> str:
        """Return the text from offset k to offset end."""
        return self.text[self.at + k : None if end is None else self.at + end]

    def find(self, token: str, k: int) -> int:
        """Return the offset of a token at or after offset k, or -1."""
        found = self.text.find(token, self.at + k)
        return found - self.at if found >= 0 else -1

    @property
    def n_ahead(self) -> int:
        """The number of characters that are not read."""
        return len(self.text) - self.at

    def take(self, k: int) -> str:
        """Read k characters."""
        taken = self.text[self.at : self.at + k]
        self.at += len(taken)
        return taken


class Tag(str):
    """A token that counts with other white space, too, and closed in itself: `<invoke = `, `</ invoke >`, `<x/>`."""

    __slots__ = ()


def tokens_of(marker: str) -> tuple[str, ...]:
    """Return the parts of a marker between which any white space may stand."""
    return tuple(Tag(token) for token in _TOKEN_BREAKS.split(marker.strip()) if token)


@lru_cache(maxsize=1024, typed=True)
def _spelled(token: str) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """Return the patterns of a token and of its beginning at the end of a text, and the most characters it has."""
    atoms, n_gaps = list(map(re.escape, token)), 0
    if isinstance(token, Tag):
        atoms.clear()
        for n, part in enumerate(_GAP.split(token)):
            atoms += [f"[ \t\r\n]{{{1 if part else 0},{_MAX_GAP}}}"] if n % 2 else map(re.escape, part)
            n_gaps += n % 2
        if token.endswith(">") and "</" not in token:
            atoms.insert(-1, "(?:/ ?)?")
    begun = r"(?!)"
    for atom in reversed(atoms[:-1]):
        begun = rf"{atom}(?:\Z|{begun})"
    return re.compile("".join(atoms)), re.compile(begun), len(atoms) + n_gaps * _MAX_GAP


class Markers:
    """Markers that are looked for together."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(tokens, key=len, reverse=True)
        spelled = list(map(_spelled, self._tokens))
        self._whole = re.compile("|".join(f"({whole.pattern})" for whole, _, _ in spelled) or r"(?!)")
        self._begun = re.compile("|".join(begun.pattern for _, begun, _ in spelled) or r"(?!)")
        self._longest = max((size for _, _, size in spelled), default=0)

    def next(self, scan: Scan, k: int = 0) -> tuple[int, str]:
        """Return the offset of the next marker at or after offset k, and the marker: the longest that stands there.

        The marker is empty if there is none yet; then the text from the offset on may begin one.
        """
        text, start = scan.text, scan.at + k
        match = self._whole.search(text, start)
        begun = None if scan.is_final else self._begun.search(text, max(start, len(text) - self._longest))
        if match and not (begun and begun.start() <= match.start()):
            return match.start() - scan.at, self._tokens[(match.lastindex or 1) - 1]
        return (begun.start() - scan.at if begun else scan.n_ahead), ""

    def up_to(self, scan: Scan, give: Callable[[str], None]) -> Steps[str]:
        """Give out the text up to a marker, and return the marker; nothing at the end of the answer."""
        while True:
            k, marker = self.next(scan)
            give(scan.take(k))
            if marker or scan.is_final:
                return marker
            yield


def char_at(scan: Scan, k: int) -> Steps[str]:
    """Return the character at offset k, or nothing at the end of the answer."""
    while scan.n_ahead <= k:
        if scan.is_final:
            return ""
        yield
    return scan.text[scan.at + k]


def after_space(scan: Scan, k: int, space: re.Pattern[str] = _SPACE) -> Steps[int]:
    """Return the offset of the first character at or after offset k that is no white space."""
    while True:
        match = space.match(scan.text, scan.at + k)
        k = match.end() - scan.at if match else k
        if k < scan.n_ahead or scan.is_final:
            return k
        yield


def after_token(scan: Scan, k: int, token: str) -> Steps[int]:
    """Return the offset after a token that stands at offset k, or -1."""
    whole, begun, _ = _spelled(token)
    while True:
        if match := whole.match(scan.text, scan.at + k):
            return match.end() - scan.at
        if scan.is_final or (scan.n_ahead > k and not begun.match(scan.text, scan.at + k)):
            return -1
        yield


def after_tokens(scan: Scan, k: int, tokens: tuple[str, ...]) -> Steps[int]:
    """Return the offset after tokens that stand at offset k, white space between them, or -1."""
    for token in tokens:
        k = yield from after_space(scan, k)
        k = yield from after_token(scan, k, token)
        if k < 0:
            return -1
    return k


def after_present(scan: Scan, k: int, tokens: tuple[str, ...]) -> Steps[int]:
    """Return the offset after those of the tokens that stand at offset k; some may be missing."""
    for token in tokens:
        start = yield from after_space(scan, k)
        end = yield from after_token(scan, start, token)
        k = end if end >= 0 else k
    return k


def after_string(scan: Scan, k: int) -> Steps[int]:
    """Return the offset after the JSON string whose opening quote is at offset k."""
    k += 1
    while True:
        match = _IN_TEXT.search(scan.text, scan.at + k)
        if match is None:
            k = scan.n_ahead
        elif match[0] == '"':
            return match.end() - scan.at
        elif match.end() < len(scan.text):
            k = match.end() + 1 - scan.at
            continue
        else:
            k = match.start() - scan.at
        if scan.is_final:
            raise NotACallError
        yield


def after_value(scan: Scan, k: int) -> Steps[int]:
    """Return the offset after the JSON value at offset k."""
    first = yield from char_at(scan, k)
    if first == '"':
        return (yield from after_string(scan, k))
    if first in "{[" and first:
        return (yield from _after_brackets(scan, k))
    start = k
    while (char := (yield from char_at(scan, k))) and char not in ",}] \t\r\n":
        k += 1
        if k - start > MAX_DEPTH:
            raise NotACallError
    if k == start:
        raise NotACallError
    return k


def _after_brackets(scan: Scan, k: int) -> Steps[int]:
    open_brackets = ""
    while True:
        match = _IN_JSON.search(scan.text, scan.at + k)
        if match is None:
            if scan.is_final:
                raise NotACallError
            k = scan.n_ahead
            yield
            continue
        k = match.start() - scan.at
        if match[0] == '"':
            k = yield from after_string(scan, k)
            continue
        open_brackets = nested(open_brackets, match[0])
        k += 1
        if not open_brackets:
            return k


def nested(open_brackets: str, bracket: str) -> str:
    """Return the brackets that are open after one more."""
    if bracket in "{[":
        if len(open_brackets) >= MAX_DEPTH:
            raise NotACallError
        return open_brackets + bracket
    if open_brackets[-1:] != ("{" if bracket == "}" else "["):
        raise NotACallError
    return open_brackets[:-1]
