"""The text of an answer that is not read yet, and the steps of reading it.

All that reads an answer is a generator, which yields when it needs more text and goes on when there is more or the
answer has ended. A decision is made when no further text can change it. So it does not depend on how the text is cut
into pieces. Places are offsets from `at`; they stay valid while text arrives.
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
_MAX_DEPTH: Final = 200
"""The most brackets in each other. Deeper text is no call."""
MAX_ELEMENTS: Final = 60
"""The same for values that are read by functions that call themselves."""


class NotACallError(Exception):
    """The text at this place is no call."""


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


class Brackets:
    """The brackets that are open in a JSON text, as far as it has been read."""

    def __init__(self) -> None:
        self.at = 0
        """The place in the text up to which it has been read."""
        self._open = ""
        self._is_text = False

    def is_closed_in(self, text: str, at: int) -> bool:
        """Read the text from `at` to its end, or to the bracket that closes the first one. Return True if it is there.

        Raises: NotACallError at a bracket that does not fit.
        """
        self.at = at
        while match := (_IN_TEXT if self._is_text else _IN_JSON).search(text, self.at):
            self.at, sign = match.start(), match[0]
            if sign == "\\" and match.end() == len(text):
                return False
            if sign == '"':
                self._is_text = not self._is_text
            elif sign != "\\":
                self._take(sign)
            self.at = match.end() + (sign == "\\")
            if not self._open:
                return True
        self.at = len(text)
        return False

    def _take(self, bracket: str) -> None:
        if bracket in "{[":
            self._open += bracket
        elif self._open[-1:] == ("{" if bracket == "}" else "["):
            self._open = self._open[:-1]
        else:
            raise NotACallError
        if len(self._open) > _MAX_DEPTH:
            raise NotACallError


class Scan:
    """The text from `at` on is not read yet."""

    __slots__ = ("at", "is_final", "text")

    def __init__(self, text: str = "", *, is_final: bool = False) -> None:
        self.text = text
        self.at = 0
        self.is_final = is_final
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

    def char_at(self, k: int) -> Steps[str]:
        """Return the character at offset k, or nothing at the end of the answer."""
        while self.n_ahead <= k:
            if self.is_final:
                return ""
            yield
        return self.text[self.at + k]

    def after_space(self, k: int, space: re.Pattern[str] = _SPACE) -> Steps[int]:
        """Return the offset of the first character at or after offset k that is no white space."""
        while True:
            match = space.match(self.text, self.at + k)
            k = match.end() - self.at if match else k
            if k < self.n_ahead or self.is_final:
                return k
            yield

    def after_token(self, k: int, token: str) -> Steps[int]:
        """Return the offset after a token that stands at offset k, or -1."""
        whole, begun, _ = _spelled(token)
        while True:
            if match := whole.match(self.text, self.at + k):
                return match.end() - self.at
            if self.is_final or (self.n_ahead > k and not begun.match(self.text, self.at + k)):
                return -1
            yield

    def after_tokens(self, k: int, tokens: tuple[str, ...]) -> Steps[int]:
        """Return the offset after tokens that stand at offset k, white space between them, or -1."""
        for token in tokens:
            k = yield from self.after_space(k)
            k = yield from self.after_token(k, token)
            if k < 0:
                return -1
        return k

    def after_present(self, k: int, tokens: tuple[str, ...]) -> Steps[int]:
        """Return the offset after those of the tokens that stand at offset k; some may be missing."""
        for token in tokens:
            start = yield from self.after_space(k)
            end = yield from self.after_token(start, token)
            k = end if end >= 0 else k
        return k

    def after_string(self, k: int) -> Steps[int]:
        """Return the offset after the JSON string whose opening quote is at offset k."""
        k += 1
        while True:
            match = _IN_TEXT.search(self.text, self.at + k)
            if match and match[0] == '"':
                return match.end() - self.at
            if match and match.end() < len(self.text):
                k = match.end() + 1 - self.at
                continue
            k = match.start() - self.at if match else self.n_ahead
            if self.is_final:
                raise NotACallError
            yield

    def after_value(self, k: int) -> Steps[int]:
        """Return the offset after the JSON value at offset k."""
        first = yield from self.char_at(k)
        if first == '"':
            return (yield from self.after_string(k))
        if first in ("{", "["):
            return (yield from self._after_brackets(k))
        start = k
        while (char := (yield from self.char_at(k))) and char not in ",}] \t\r\n":
            k += 1
            if k - start > _MAX_DEPTH:
                raise NotACallError
        if k == start:
            raise NotACallError
        return k

    def _after_brackets(self, k: int) -> Steps[int]:
        brackets = Brackets()
        while not brackets.is_closed_in(self.text, self.at + k):
            if self.is_final:
                raise NotACallError
            k = brackets.at - self.at
            yield
        return brackets.at - self.at


class MarkerSearch:
    """The search for the first of several markers."""

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
