"""Texts drawn at random from a grammar: enough of GBNF for what the converter writes (no counts in braces, no tokens).

A grammar is read into nested tuples: ("text", str), ("set", ranges), ("name", str), ("seq", items), ("any", branches),
("many", item, least, most).
"""

import random
import re
from typing import Any

Node = tuple[Any, ...]

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^]\\])*\]|[a-zA-Z0-9-]+|[()|*+?]|\S', re.DOTALL)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_TIMES = {"*": (0, 2), "+": (1, 3), "?": (0, 1)}
SOME_CHARACTERS = (*range(0x80), 0xE9, 0x2028, 0x4E16, 0x1F30D)
"""What a negated set is drawn from."""
_FOR_EVER = 10**6


class GrammarTexts:
    def __init__(self, grammar: str) -> None:
        lines = (line.split(" ::= ", 1) for line in grammar.split("\n"))
        self.rules = {name: _Reader(right).alternatives() for name, right in lines}
        self._heights = dict.fromkeys(self.rules, _FOR_EVER)
        for _ in self.rules:
            heights = {name: 1 + self._height(node) for name, node in self.rules.items()}
            if heights == self._heights:
                break
            self._heights = heights

    def draw(self, chance: random.Random, n_deep: int = 12) -> str:
        """A text; below `n_deep` rules it takes the shortest way to an end."""
        return self._draw(self.rules["root"], chance, n_deep)

    def _draw(self, node: Node, chance: random.Random, left: int) -> str:
        match node:
            case ("text", text):
                return str(text)
            case ("set", ranges):
                low, high = chance.choice(ranges)
                return chr(chance.randint(low, high))
            case ("name", name):
                return self._draw(self.rules[name], chance, left - 1)
            case ("seq", items):
                return "".join(self._draw(item, chance, left) for item in items)
            case ("any", branches):
                ways = branches if left > 0 else [min(branches, key=self._height)]
                return self._draw(chance.choice(ways), chance, left)
            case ("many", item, least, most):
                n_times = chance.randint(least, most) if left > 0 else least
                return "".join(self._draw(item, chance, left) for _ in range(n_times))
        raise AssertionError(node)

    def _height(self, node: Node) -> int:
        """How many rules deep the shallowest text of it is."""
        match node:
            case ("name", name):
                return self._heights[name]
            case ("seq", items):
                return max(map(self._height, items), default=0)
            case ("any", branches):
                return min(map(self._height, branches))
            case ("many", item, least, _):
                return self._height(item) if least else 0
            case _:
                return 0


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._next() == "|":
            self.at += 1
            branches.append(self._sequence())
        return ("any", branches)

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (token := self._next()) not in {"", "|", ")"}:
            self.at += 1
            if token in _TIMES:
                items[-1] = ("many", items[-1], *_TIMES[token])
            elif token == "(":
                items.append(self.alternatives())
                assert self._next() == ")"
                self.at += 1
            elif token.startswith('"'):
                items.append(("text", "".join(map(chr, _characters(token[1:-1])))))
            elif token.startswith("["):
                items.append(("set", _ranges(token[1:-1])))
            else:
                assert re.fullmatch("[a-zA-Z0-9-]+", token), token
                items.append(("name", token))
        return ("seq", items)


def _characters(text: str) -> list[int]:
    return [_code(found) for found in _CHARACTER.finditer(text)]


def _code(found: re.Match[str]) -> int:
    number = found[1] or found[2] or found[3]
    return int(number, 16) if number else ord(_ESCAPES[found[4]] if found[4] else found[5])


def _ranges(text: str) -> list[tuple[int, int]]:
    if text.startswith("^"):
        taken = {code for low, high in _ranges(text[1:]) for code in range(low, high + 1)}
        return [(code, code) for code in SOME_CHARACTERS if code not in taken]
    members = list(_CHARACTER.finditer(text))
    ranges: list[tuple[int, int]] = []
    while members:
        first = last = members.pop(0)
        if len(members) > 1 and members[0][0] == "-":
            last = members[1]
            del members[:2]
        ranges.append((_code(first), _code(last)))
    return ranges
