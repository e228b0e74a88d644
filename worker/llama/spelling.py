"""Texts that a vocabulary cannot spell are refused before llama.cpp ends the process over them, or loses a part.

Owns what becomes of the gaps that model/vocabulary.py finds. Knows nothing of handles: it is given what the library has
loaded. Safe on any thread.
"""

from collections.abc import Callable, Iterable

from worker.model.vocabulary import Gaps, fragments, is_invisible


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
        self._dividers = {parse: _longest_first(dividers(parse)) for parse in (True, False) if gaps.deadly}
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


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: len(name.encode(errors="surrogateescape")), reverse=True)
