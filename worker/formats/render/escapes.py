"""Separates the words of a conversation from the words of a template in the rendered text.

Before a template renders a conversation, each character in it that a control token's name begins or ends with is
replaced by a character of a private use area. Afterwards the characters are restored. A control token's name in the
escaped text was written by the template. Lengths and places do not change, so trimming, cutting, joining and JSON have
no influence.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

_FIRST_ESCAPE = 0xF0000
"""Supplementary Private Use Area-A: conversations contain its characters only on purpose."""
_WORD, _SIGNS = re.compile(r"\w+"), re.compile(r"[^\s'\"\\]+")

_MAX_WORD_CHARS = 64
_CORE = re.compile(r"\w.*\w|\w", re.DOTALL)
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Templates deliberately put signs around these words."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Span = tuple[int, int]


class ControlNames:
    """The names of a vocabulary's control tokens, and the search for them in a text."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(filter(None, names))
        # The library searches in this order: the longest name first.
        longest_first = sorted(self.all, key=lambda name: (-len(name), name))
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def spans(self, text: str) -> list[Span]:
        """The places of names in the text, in order and without overlap."""
        return [found.span() for found in self._any.finditer(text)]

    def has_one(self, text: str) -> bool:
        return self._any.search(text) is not None

    @cached_property
    def edges(self) -> frozenset[str]:
        """The characters that names begin or end with."""
        return frozenset(edge for name in self.all for word in (name.strip() or name,) for edge in (word[0], word[-1]))

    @cached_property
    def beginnings(self) -> frozenset[str]:
        return frozenset(name[:n] for name in self.all for n in range(1, len(name) + 1))

    @cached_property
    def ends(self) -> frozenset[str]:
        return frozenset(name[n:] for name in self.all for n in range(len(name)))

    @cached_property
    def cores(self) -> frozenset[str]:
        """The names without the signs around them: a template may put signs around a word of the conversation."""
        cores = {name: core[0] for name in self.all if (core := _CORE.search(name))}
        return frozenset(core for name, core in cores.items() if core != name)


class Escaper:
    """Escapes conversations for one template and one vocabulary."""

    def __init__(self, source: str, names: ControlNames) -> None:
        """`source`: the template's. Its own words are not escaped if they cannot become part of a name."""
        self.names = names
        self.words = frozenset(_WORD.findall(source))
        """The template's own words."""
        self._taken = frozenset(source)
        left = sorted(filter(self._is_harmless, frozenset(_SIGNS.findall(source))), key=len, reverse=True)
        edges = "".join(map(re.escape, sorted(names.edges)))
        self.pattern = re.compile("|".join([*map(re.escape, left), f"[{edges}]"])) if edges else None
        self.characters = names.edges | {core[0] for core in names.cores}

    def _is_harmless(self, word: str) -> bool:
        """True if the word has signs, and no name can begin, end or be in it, or contain it."""
        names = self.names
        is_part = any(word in name for name in names.all)
        if is_part or len(word) > _MAX_WORD_CHARS or names.edges.isdisjoint(word) or names.has_one(word):
            return False
        begins_one = any(word[at:] in names.beginnings for at in range(len(word)))
        return not begins_one and not any(word[:end] in names.ends for end in range(1, len(word) + 1))

    def unused_in(self, conversation: Json) -> Iterator[str]:
        """The free characters: neither this conversation nor the template contains them."""
        taken = self._taken.union(*(text for text in texts(conversation) if not text.isascii()))
        return (chr(code) for code in range(_FIRST_ESCAPE, 0x10FFFE) if chr(code) not in taken)


class Escapes:
    """The characters that replace others in one conversation, which contains none of them itself."""

    def __init__(self, escaper: Escaper, conversation: Json) -> None:
        free = escaper.unused_in(conversation)
        self._escaper = escaper
        self._escapes = dict(zip(sorted(escaper.characters), free, strict=False))
        self._plain = str.maketrans({escape: char for char, escape in self._escapes.items()})
        self.cut = next(free)
        """One more character that is not in the conversation."""

    def escape(self, value: Json, key: str = "") -> Json:
        """The value with its texts escaped, also the keys of its objects."""
        if isinstance(value, str):
            return value if key == "role" and value in ROLES else self._text(value)
        if isinstance(value, list):
            return [self.escape(item) for item in value]
        if isinstance(value, dict):
            words = self._escaper.words  # a key that the template reads by name stays as it is
            return {
                name if name in words else self._text(name): self.escape(each, name) for name, each in value.items()
            }
        return value

    def _text(self, text: str) -> str:
        core, escaper = text.strip(), self._escaper
        if core in escaper.names.cores and text not in escaper.words:
            return text.replace(core[0], self._escapes[core[0]], 1)
        pattern = escaper.pattern
        return pattern.sub(lambda found: self._escapes.get(found[0], found[0]), text) if pattern else text

    def restore(self, text: str) -> str:
        """The text with its escapes replaced by the original characters, all at the same places."""
        return text.translate(self._plain)


def texts(value: Json) -> Iterable[str]:
    """All texts in a value, also the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts(item)
