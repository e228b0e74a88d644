"""Texts that a vocabulary cannot spell are refused before llama.cpp ends the process over them, or loses a part.

This module has a vocabulary's gaps, which vocabulary.py finds, and the check of a text against them. It knows nothing
of handles: it is given what the library has loaded. Safe on any thread.
"""

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
UTF8_BYTES = tuple(byte for byte in range(256) if byte not in _NEVER_IN_UTF8)


@dataclass(frozen=True, slots=True)
class Gaps:
    """The bytes without a token of their own. Characters that need them may be lost, or end the process."""

    missing: frozenset[int]
    """The bytes of UTF-8 that have no token of their own."""
    deadly: frozenset[int]
    """llama.cpp ends its process, or never comes back, when it has to spell one of these; others it leaves out."""
    whole: frozenset[str]
    """Characters that have a token, so that their bytes need none."""
    space: str = " "
    """The vocabulary's spelling of a space."""
    puts_space_before: bool = True
    """True if SentencePiece puts a space before each text."""

    def __str__(self) -> str:
        what = f"{len(self.missing)} of {len(UTF8_BYTES)} bytes have no token"
        if self.deadly:
            return f"{what}; texts with characters that need one are refused"
        return f"{what}; texts with visible characters that need one are refused, invisible ones are left out"

    def is_deadly(self, character: str) -> bool:
        """True if llama.cpp must not see it."""
        return self._lacks(character, self.deadly)

    def loses(self, character: str) -> bool:
        """True if it may be lost, unless a token spells it together with others."""
        return self._lacks(character, self.missing)

    def _lacks(self, character: str, lacking: frozenset[int]) -> bool:
        spelled = self.space if character == " " else character
        return spelled not in self.whole and not lacking.isdisjoint(spelled.encode(errors="surrogateescape"))


def is_invisible(character: str) -> bool:
    """True if a text reads the same without it: a control character, or a code point that is no character."""
    return unicodedata.category(character) in ("Cc", "Cn", "Co")


class Unspellable(ValueError):
    """A text that the vocabulary has no tokens for. The message names a code point and its place, nothing else."""

    def __init__(self, character: str, place: int, *, is_put_before: bool = False) -> None:
        where = f"which it puts before a text (at position {place})" if is_put_before else f"at position {place}"
        super().__init__(f"the vocabulary has no token for U+{ord(character):04X}, {where}")


class Spelling:
    """Texts are checked against the gaps of one vocabulary. `dividers`: the texts of the tokens by which llama.cpp
    divides a text first, if the names of special tokens are parsed, and if they are not."""

    def __init__(self, gaps: Gaps, dividers: Callable[[bool], Iterable[str]]) -> None:
        self._gaps = gaps
        # Nothing is divided where nothing is deadly, and asking takes some tens of milliseconds.
        self._dividers = {
            parse: sorted(dividers(parse), key=lambda name: -len(name.encode(errors="surrogateescape")))
            for parse in (True, False)
            if gaps.deadly
        }
        self._lacks_space_before = gaps.puts_space_before and gaps.is_deadly(" ")

    def check(self, text: str, start: int, *, parse_special: bool) -> None:
        """Raises: Unspellable: llama.cpp would not survive the text, which begins at `start` in what was sent."""
        if not self._gaps.deadly:
            return
        deadly = set(filter(self._gaps.is_deadly, set(text)))
        if not deadly and not self._lacks_space_before:
            return
        for place, part in fragments(text, self._dividers[parse_special]):
            if part and self._lacks_space_before:
                raise Unspellable(" ", start + place, is_put_before=True)
            for at, character in enumerate(part, start=start + place):
                if character in deadly:
                    raise Unspellable(character, at)

    def check_nothing_lost(self, text: str, say: Callable[[], bytes], start: int) -> None:
        """`say` gives what the tokens of the text say. Raises: Unspellable: a visible character is not in it."""
        if self._gaps.deadly:
            return  # nothing that may be lost has come so far
        lost = set(filter(self._gaps.loses, set(text)))
        visible = {character for character in lost if not is_invisible(character)}
        if not visible or say() == "".join(c for c in text if c in visible or c not in lost).encode():
            return
        place = next(place for place, character in enumerate(text) if character in visible)
        raise Unspellable(text[place], start + place)


def fragments(text: str, names: Iterable[str]) -> list[tuple[int, str]]:
    """The pieces of a text between its special tokens, each with its place. Special tokens are found as in llama.cpp:
    each name in turn, the longest first. Source: tokenizer_st_partition."""
    parts = [(0, text)]
    for name in names:
        if name not in text:
            continue
        divided = []
        for start, part in parts:
            at = start
            for piece in part.split(name):
                divided.append((at, piece))
                at += len(piece) + len(name)
        parts = divided
    return parts
