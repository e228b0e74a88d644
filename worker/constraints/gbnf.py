"""GBNF, llama.cpp's notation of grammars, rewritten in llguidance's dialect of Lark: every error with its place.

llguidance reads lexemes, the longest at each place, and GBNF knows characters alone. A grammar without recursion is
one regular expression and becomes one lexeme, which is the whole text: its masks take microseconds. In any other each
character of a literal and each class is a lexeme. No character's bytes begin another's, so no lexeme hides another, and
the library's Earley parser takes exactly the texts that GBNF means, however ambiguous. Its own converter
(llguidance.gbnf_to_lark) makes lexemes of whatever rules have no recursion, which are then matched greedily: behind
`[a-z]*` no letter can follow. Nor does it keep the zeros of `\\u0041`, know tokens, or say where a mistake is.

Takes what llama.cpp's parser takes (llama-grammar.cpp), and left recursion. The result is at most 16 times as long.
Knows no model. Intake thread; pure.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.wire.jobs import TokenId

MAX_DEPTH = 64
"""Parentheses inside each other."""
MAX_CHAIN = 1000
"""Rules, groups and repeated repetitions that llguidance goes into before it comes out of one. It does so by recursion,
of about 5 KiB each, and a stack of 8 MiB ends between 1,500 and 1,800 of them: the process with it."""
MAX_LARK_LEVELS = 2000
"""The same of a grammar in Lark, where a rule or a parenthesis takes about 2.5 KiB."""
MAX_RULES = 5000
"""Rules and groups, the different characters and classes, and the items that may be left out. llguidance's work for one
mask can grow with the square of each: 20,000 groups took 1.3 s, 12,000 characters 0.5 s and 115 MiB, 15,000 optional
letters 1.9 s."""
MAX_TERMINALS = 8000
"""Characters of Lark that may become one regular expression: to begin one of n parts can take n² steps of work."""
MAX_REPEATS = 2000
"""The most repetitions of one item: MAX_REPETITION_THRESHOLD, above which llama.cpp reads {0,3000} as any number."""

TokenOf = Callable[[str], TokenId | None]
"""The token written as `<think>` or `<[12]>`; None: the vocabulary has none, or it has no text."""

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
_IN_LITERAL = re.compile(rf'{_ESCAPE}|[^"\\]')
_IN_CLASS = re.compile(rf"{_ESCAPE}|[^\]\\]")
# Possessive where two readings of one text are possible: a failing match then takes linear time.
_ITEM = re.compile(
    rf"""
    (?P<literal> "(?:{_ESCAPE}|[^"\\])*+" )
  | (?P<class>   \[\^?(?:(?:{_ESCAPE}|[^\]\\])(?:-(?!\])(?:{_ESCAPE}|[^\]\\]))?+)*+\] )
  | (?P<token>   !?<[^>]+> )
  | (?P<name>    [a-zA-Z0-9-]+ )
  | (?P<any>     \. )
  | (?P<open>    \( )
  | (?P<close>   \) )
  | (?P<bar>     \| )
  | (?P<repeat>  [*+?] | \{{[ \t]*(?P<low>\d+)[ \t]*(?P<comma>,)?[ \t]*(?P<high>\d+)?[ \t]*\}} )
    """,
    re.VERBOSE | re.ASCII,
)
_CONTROLS = {r"\t": "\t", r"\r": "\r", r"\n": "\n"}
_LAST_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]++|#[^\r\n]*+)*+")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]++|#[^\r\n]*+)*+")
_LINE_END = re.compile(r"\r\n|\r|\n|\Z")
_USE = re.compile(r"\b(?:start|[rg]\d+)\b")
"""A rule's name in a Lark right side of ours, whose literals are single characters."""
_LARK_LEVEL = re.compile(r"^[ \t]*[?!_a-zA-Z]|[(\[]|%lark", re.MULTILINE)
_LEXEME = re.compile(r'"(?:[^"\\]|\\.)+"|/\S+/')

_OPTIONAL = re.compile(r"\)(?:[?*]|\{0,)")
"""A repetition of ours that may be none; no literal of ours has two characters side by side."""


class BadGrammar(ValueError):
    """The reason why a grammar is refused, and the place; the message never quotes it."""


def is_lark(text: str) -> bool:
    """True if a grammar is in Lark already: it begins with `%llguidance`, as no GBNF does."""
    return text.lstrip().startswith("%llguidance")


def check_lark(text: str) -> None:
    """Check what llguidance does not bound itself of a grammar that is in Lark already. Raises: BadGrammar.

    It goes through rules and parentheses by recursion. Definitions begin lines, and an opening bracket may be one in a
    regular expression: so there are no more levels than these, and most grammars have far fewer.
    """
    if len(_LARK_LEVEL.findall(text)) > MAX_LARK_LEVELS:
        raise BadGrammar(f"more than {MAX_LARK_LEVELS} rules, terminals, parentheses and brackets together")
    if "\0" in text:
        raise BadGrammar("the character NUL cannot be part of a grammar")


def lark_of(text: str, token_of: TokenOf) -> str:
    """A GBNF grammar in Lark. Raises: BadGrammar."""
    return _GbnfReader(text, token_of).lark()


@dataclass(slots=True)
class _Level:
    """A rule's right side, or a group in parentheses, being read."""

    rule: str
    opened_at: int
    alternatives: list[list[str]] = field(default_factory=lambda: [[]])
    can_repeat: bool = False
    is_repeated: bool = False
    """True if the last item can be repeated, and has been repeated."""

    def add(self, item: str) -> None:
        """An empty literal or class is nothing at all, as in llama.cpp."""
        self.can_repeat, self.is_repeated = bool(item), False
        self.alternatives[-1] += [item] if item else []

    def lark(self) -> str:
        return " | ".join(" ".join(sequence) or '""' for sequence in self.alternatives)


class _GbnfReader:
    def __init__(self, text: str, token_of: TokenOf) -> None:
        self._text, self._token_of = text, token_of
        self._rules: dict[str, str] = {}
        """Right sides by the rules' Lark names, which are numbers: GBNF's may begin with a digit or a capital."""
        self._names: dict[str, tuple[str, int]] = {}
        """The Lark name for each of GBNF's, and where in the text it was first met."""
        self._n_unnamed = 0

    def lark(self) -> str:
        for unwritable in re.finditer("[\0\ud800-\udfff]", self._text):
            raise self._error(unwritable.start(), "this character cannot be part of a grammar")
        at = self._skip(0, lines=True)
        while at < len(self._text):
            at = self._read_rule(at)
        for name, place in self._names.values():
            if name not in self._rules:
                raise self._error(place, "this rule is not defined")
        if "start" not in self._rules:
            raise BadGrammar("the grammar has no rule named root")
        is_recursive = self._is_recursive()
        lark = "".join(f"{name}: {right}\n" for name, right in self._rules.items())
        if max(len(self._rules), len(set(_LEXEME.findall(lark))), len(_OPTIONAL.findall(lark))) > MAX_RULES:
            raise BadGrammar(
                f"more than {MAX_RULES} rules and groups, different characters and classes, or optional items"
            )
        if is_recursive or "<[" in lark or len(lark) > MAX_TERMINALS:
            return lark
        return "start: START\n" + _USE.sub(lambda use: use[0].upper(), lark)

    def _error(self, place: int, why: str) -> BadGrammar:
        line = self._text.count("\n", 0, place) + 1
        column = place - self._text.rfind("\n", 0, place)
        return BadGrammar(f"line {line}, column {column}: {why}")

    def _skip(self, at: int, *, lines: bool) -> int:
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self._text, at)
        assert found is not None, "both match nothing too"
        return found.end()

    def _named(self, name: str, place: int) -> str:
        lark = "start" if name == "root" else f"r{len(self._names)}"
        return self._names.setdefault(name, (lark, place))[0]

    def _unnamed(self) -> str:
        """A rule for a group, of which llguidance's Lark takes no more than 30 inside each other."""
        self._n_unnamed += 1
        return f"g{self._n_unnamed}"

    def _read_rule(self, at: int) -> int:
        """One `name ::= …` up to the next rule's name. Of two rules with one name the later counts."""
        name = _NAME.match(self._text, at)
        if name is None:
            raise self._error(at, "a rule's name is expected")
        rule = self._named(name[0], at)
        at = self._skip(name.end(), lines=False)
        if not self._text.startswith("::=", at):
            raise self._error(at, "::= is expected")
        at = self._skip(at + 3, lines=True)
        levels = [_Level(rule, at)]
        while item := _ITEM.match(self._text, at):
            self._take(levels, item)
            # Inside parentheses and after a bar a line may end.
            at = self._skip(item.end(), lines=len(levels) > 1 or item.lastgroup == "bar")
        if len(levels) > 1 and at == len(self._text):
            raise self._error(levels[-1].opened_at, "this parenthesis is never closed")
        end = _LINE_END.match(self._text, at)
        if end is None:
            raise self._error(at, "this cannot be read")
        self._rules[rule] = levels[0].lark()
        return self._skip(end.end(), lines=True)

    def _take(self, levels: list[_Level], item: re.Match[str]) -> None:
        level, place = levels[-1], item.start()
        match item.lastgroup:
            case "literal":
                level.add(" ".join(json.dumps(chr(point)) for _, point in self._characters(_IN_LITERAL, item, 1)))
            case "class":
                level.add(self._class(item))
            case "token":
                level.add(self._token(item[0], place))
            case "any":
                level.add("/(?s:.)/")
            case "name":
                level.add(self._named(item[0], place))
            case "bar":
                level.add("")
                level.alternatives.append([])
            case "open":
                if len(levels) > MAX_DEPTH:
                    raise self._error(place, f"parentheses are nested deeper than {MAX_DEPTH}")
                levels.append(_Level(self._unnamed(), place))
            case "close":
                if len(levels) == 1:
                    raise self._error(place, "this parenthesis was never opened")
                self._rules[level.rule] = levels.pop().lark()
                levels[-1].add(level.rule)
            case _:
                self._repeat(level, item)

    def _characters(self, one: re.Pattern[str], item: re.Match[str], begin: int) -> list[tuple[str, int]]:
        """Return the characters between `begin` and the closing quote or bracket, as written and as code points.

        Raises: BadGrammar for an escape that is no character: no text could have it.
        """
        written = one.findall(item[0], begin, len(item[0]) - 1)
        points = [int(c[2:], 16) if len(c) > 2 else ord(_CONTROLS.get(c, c[-1])) for c in written]
        if any(point > _LAST_POINT or point in _SURROGATES for point in points):
            raise self._error(item.start(), "an escape in here is no Unicode character")
        return list(zip(written, points, strict=True))

    def _class(self, item: re.Match[str]) -> str:
        """The class as a regular expression. A `-` at either end of a class, or after a range, is itself."""
        sign = "^" if item[0].startswith("[^") else ""
        left = self._characters(_IN_CLASS, item, 1 + len(sign))[::-1]
        ranges = ""
        while left:
            _, low = left.pop()
            is_range = len(left) > 1 and left[-1][0] == "-"
            high = left[-2][1] if is_range else low
            del left[len(left) - 2 * is_range :]
            if high < low:
                raise self._error(item.start(), "a range in here ends before it begins")
            ranges += rf"\x{{{low:x}}}-\x{{{high:x}}}"
        return f"/[{sign}{ranges}]/" if ranges else ""

    def _token(self, written: str, place: int) -> str:
        token = self._token_of(written.removeprefix("!"))
        if token is None:
            raise self._error(place, "this is no token of the model's vocabulary that has text")
        return f"<[^{token}]>" if written.startswith("!") else f"<[{token}]>"

    def _repeat(self, level: _Level, item: re.Match[str]) -> None:
        if not level.can_repeat:
            raise self._error(item.start(), "there is nothing before this to repeat")
        times, once = self._times(item), level.alternatives[-1].pop()
        if level.is_repeated:
            name = self._unnamed()
            self._rules[name], once = once, name
        # Lark has no {0}. Nothing is left of it, not even something to repeat.
        level.add("" if times == "{0,0}" else f"({once}){times}")
        level.is_repeated = True

    def _times(self, item: re.Match[str]) -> str:
        if item[0] in "*+?":
            return item[0]
        if item["high"] and not item["comma"]:
            raise self._error(item.start(), "a comma is missing between the two numbers")
        low, high = item["low"], item["high"] if item["comma"] else item["low"]
        if any(len(number.lstrip("0")) > 4 or int(number) > MAX_REPEATS for number in (low, high or "0")):
            raise self._error(item.start(), f"more than {MAX_REPEATS} repetitions")
        if high and int(high) < int(low):
            raise self._error(item.start(), "the least number of repetitions is above the greatest")
        return f"{{{int(low)},{int(high) if high else ''}}}"

    def _is_recursive(self) -> bool:
        """Return whether a rule uses itself, by llguidance's own search. Raises: BadGrammar if that is deep."""
        is_recursive, met, path = False, {"start"}, {"start": _USE.finditer(self._rules["start"])}
        while path:
            use = next(path[next(reversed(path))], None)
            if use is None:
                path.popitem()
            elif use[0] in path:
                is_recursive = True
            elif use[0] not in met:
                met.add(use[0])
                path[use[0]] = _USE.finditer(self._rules[use[0]])
            if len(path) > MAX_CHAIN:
                raise BadGrammar(f"more than {MAX_CHAIN} rules, groups and repetitions are used by each other in a row")
        return is_recursive
