"""A schema's regular expression, written so that the text it allows can stand inside a JSON string as it is.

The converter copies a pattern nearly letter by letter into the grammar: it knows no `\\d` or `\\.`, lets `.` and `[^a]`
break out of the string, and takes `a|b` apart at the quotes. So every pattern is read here and written again with
nothing in it but letters, sets of characters by their numbers, groups and repetitions. It allows at most what the
original does: characters that JSON escapes are left out of sets. Pure; runs on the front's event loop.
"""

import re
from collections.abc import Iterable, Iterator

MAX_GROUPS_DEEP = 64

Ranges = list[tuple[int, int]]
"""Code points, both ends included."""

_ALLOWED: Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, 0x10FFFF)]
"""What may stand in a JSON string as it is."""
_LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES: Ranges = [
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E)),
    *((0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
"""All that ECMA 262 or Python calls white space."""

_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_PLAIN = re.compile(r"[a-zA-Z0-9 _:,/@-]")
"""Single characters that mean themselves to the converter and to llama.cpp."""
_REPEAT = re.compile(r"[*+?]|\{(\d{1,9})(,)?(\d{1,9})?\}")


class PatternRefused(ValueError):
    """Why a pattern cannot be honoured; the message never quotes it."""


def plain_pattern(pattern: str) -> tuple[str, int]:
    """The pattern as the converter can honour it, and the number of its groups and repetitions, counted to the most
    that each allows. Raises: PatternRefused.
    """
    if not pattern.startswith("^") or not pattern.endswith("$"):
        raise PatternRefused("must begin with ^ and end with $")
    reader = _Reader(pattern)
    text = reader.alternatives(0)
    if reader.at < reader.end:
        raise PatternRefused(f"has an unbalanced ) at character {reader.at}")
    # Without its own group the converter takes a|b apart at the quotes around the string.
    return f"^({text})$", reader.n_repeats


class _Reader:
    """Reads from `at`, behind the ^, to `end`, the $."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 1
        self.end = len(pattern) - 1
        self.n_repeats = 1

    def alternatives(self, depth: int) -> str:
        """Up to the end or to a closing parenthesis."""
        if depth > MAX_GROUPS_DEEP:
            raise PatternRefused(f"has groups nested deeper than {MAX_GROUPS_DEEP}")
        written = []
        while self.at < self.end and self.pattern[self.at] != ")":
            if self._take("|"):
                written.append("|")
            else:
                written += (self._item(depth), self._repeat())
        return "".join(written)

    def _item(self, depth: int) -> str:
        char = self.pattern[self.at]
        if char == "(":
            return self._group(depth)
        self.at += 1
        match char:
            case "[":
                return self._write(self._set())
            case ".":
                return self._write(_without(_ALLOWED, _LINE_ENDS))
            case "\\":
                return self._write(self._escape())
            case "^" | "$" | "*" | "+" | "?" | "{" | "}" | "]":
                raise self._refused(f"has {char} where it means nothing we know; \\{char} is the character")
            case _:
                return char if _PLAIN.fullmatch(char) else self._write(_one(char))

    def _group(self, depth: int) -> str:
        self.at += 1
        if self._take("?") and not self._take(":"):
            raise self._refused("has a group of a kind that is not supported; (…) and (?:…) are")
        self.n_repeats += 1
        inside = self.alternatives(depth + 1)
        if self.at >= self.end:
            raise PatternRefused("has a parenthesis that is never closed")
        self.at += 1
        return f"({inside})"

    def _repeat(self) -> str:
        found = _REPEAT.match(self.pattern, self.at, self.end)
        if found is None:
            return ""
        self.at = found.end()
        low, comma, high = found.groups()
        if high is not None and (not comma or int(high) < int(low)):
            raise self._refused("has a repetition whose limits contradict each other")
        if self.at < self.end and self.pattern[self.at] in "*+?{":
            raise self._refused("repeats a repetition; that and non-greedy matching are not supported")
        self.n_repeats += max(1, int(high or low or 1))
        return found[0]

    def _set(self) -> Ranges:
        """Behind the opening bracket."""
        is_negated = self._take("^")
        ranges: Ranges = []
        while self.at < self.end and self.pattern[self.at] != "]":
            ranges += self._set_member(is_negated=is_negated)
        if not ranges or not self._take("]"):
            raise self._refused("has a set [ that is empty or never closed; \\] is the character")
        return _without(_ALLOWED, ranges) if is_negated else ranges

    def _set_member(self, *, is_negated: bool) -> Ranges:
        """A character, a range or an escape like \\d."""
        first = self._set_character(is_negated=is_negated)
        if not self._take("-"):
            return first
        if self.at < self.end and self.pattern[self.at] == "]":
            return [*first, *_one("-")]
        last = self._set_character(is_negated=is_negated)
        if len(first) > 1 or len(last) > 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
            raise self._refused("has a range in a set that does not go from character to character")
        if last[0][0] < first[0][0]:
            raise self._refused("has a range in a set that ends before it begins")
        return [(first[0][0], last[0][0])]

    def _set_character(self, *, is_negated: bool) -> Ranges:
        if self.at >= self.end:
            raise self._refused("has a set [ that is never closed")
        char = self.pattern[self.at]
        self.at += 1
        if char == "[":
            raise self._refused("has [ inside a set; \\[ is the character")
        return self._escape(in_negated_set=is_negated) if char == "\\" else _one(char)

    def _escape(self, *, in_negated_set: bool = False) -> Ranges:
        """Behind the backslash."""
        if self.at >= self.end:
            raise PatternRefused("must end with a $ that is not escaped")
        char = self.pattern[self.at]
        if numbered := _HEX.match(self.pattern, self.at, self.end):
            self.at = numbered.end()
            code = int(numbered[1] or numbered[2], 16)
            return [(code, code)]
        self.at += 1
        if char in "dw" and not in_negated_set:
            return _DIGITS if char == "d" else _WORD
        if char == "s":
            return _SPACES if in_negated_set else _one(" ")
        if char == "S" and not in_negated_set:
            return _without(_ALLOWED, _SPACES)
        if char in _CONTROLS:
            return [(_CONTROLS[char], _CONTROLS[char])]
        if char.isalnum() or char == "_":
            # What \D, [^\d] or \W leave depends on the reader: some know the digits and letters of all scripts.
            raise self._refused("has an escape that is not supported here")
        return _one(char)

    def _write(self, ranges: Ranges) -> str:
        """A set by the numbers of its characters, in the spelling of llama.cpp's grammars."""
        usable = list(_common(_merged(ranges), _ALLOWED))
        if not usable:
            raise self._refused("asks for a character that JSON must escape, which is not supported")
        return "[" + "".join(map(_range_text, usable)) + "]"

    def _take(self, char: str) -> bool:
        is_next = self.at < self.end and self.pattern[self.at] == char
        self.at += is_next
        return is_next

    def _refused(self, why: str) -> PatternRefused:
        return PatternRefused(f"{why} (before character {self.at})")


# ── sets of characters ───────────────────────────────────────────────────────────────────────────


def _one(char: str) -> Ranges:
    return [(ord(char), ord(char))]


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _common(one: Ranges, other: Ranges) -> Iterator[tuple[int, int]]:
    for low, high in one:
        for other_low, other_high in other:
            if max(low, other_low) <= min(high, other_high):
                yield max(low, other_low), min(high, other_high)


def _without(ranges: Ranges, taken: Ranges) -> Ranges:
    edges = _merged(taken)
    gaps = zip([-1, *(high for _, high in edges)], [*(low for low, _ in edges), 0x110000], strict=True)
    return list(_common(ranges, [(after + 1, before - 1) for after, before in gaps]))


def _range_text(ends: tuple[int, int]) -> str:
    low, high = (f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}" for code in ends)
    return low if low == high else f"{low}-{high}"
