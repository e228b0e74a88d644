"""A grammar's text read before llama.cpp's own parser sees it: every error with its place, every size bounded.

That parser recurses once per parenthesis and dies of 20,000, counts {5,3} down for ever, reads `{0,3000}` as "any
number", stops at a NUL, and prints a text it refuses on stderr. What passes here it compiles as it stands. Knows the
notation and its costs in llama.cpp's terms (llama-grammar.cpp); knows no model. Intake thread; pure.
"""

import re
from dataclasses import dataclass, field

MAX_REPEATS = 2000
"""MAX_REPETITION_THRESHOLD: of one item, and of all rules inside a repeated group."""
MAX_ELEMENTS = 100_000
"""llama.cpp's elements (8 bytes each, in every job's copy) after repetitions are written out, which multiply a text."""

TERMINAL = -1
"""In an alternative: something that takes a character or a token. Everything else there is a rule's number."""

Alternative = list[int]

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
    re.VERBOSE,
)
_CONTROLS = {r"\t": "\t", r"\r": "\r", r"\n": "\n"}
_LAST_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]++|#[^\r\n]*+)*+")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]++|#[^\r\n]*+)*+")
_LINE_END = re.compile(r"\r\n|\r|\n|\Z")


class BadGrammar(ValueError):
    """Why a grammar is not taken, and where; the message never quotes it."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(where + why)
        self.why = why


@dataclass(slots=True)
class Rules:
    """Rules by llama.cpp's numbers, repetitions and groups as rules of their own, as its parser makes them."""

    text: str
    alternatives: dict[int, list[Alternative]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    """Where in the text each number was first met."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Texts like `<think>` and `<[12]>`, each a token of the model's, and where they were first met."""
    loops: set[int] = field(default_factory=set)
    """Rules made from `*` and `+`, which end in themselves."""
    n_elements: int = 0

    def number(self, name: str, place: int) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.new(place)
        return self.numbers[name]

    def new(self, place: int) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def grow(self, n: int, place: int) -> None:
        """Raises: BadGrammar, before anything of that size is made."""
        self.n_elements += n
        if self.n_elements > MAX_ELEMENTS:
            raise self.error(place, f"with repetitions written out the grammar has more than {MAX_ELEMENTS} elements")

    def error(self, place: int, why: str) -> BadGrammar:
        line = self.text.count("\n", 0, place) + 1
        column = place - self.text.rfind("\n", 0, place)
        return BadGrammar(why, f"line {line}, column {column}: ")


@dataclass(slots=True)
class _Level:
    """A rule's right side, or a group in parentheses, being read."""

    rule: int
    opened_at: int
    n_before: int
    """Rules there were before the group: what it adds counts when it is repeated."""
    alternatives: list[Alternative] = field(default_factory=lambda: [[]])
    last: int = 0
    """Where the item begins that a repetition would repeat."""
    n_last: int = 0
    """Its elements; 0: there is none."""
    n_rules: int = 1
    """Rules a repetition of it would repeat."""

    def add(self, item: int | None, n_elements: int, n_rules: int = 1) -> None:
        self.last = len(self.alternatives[-1])
        if item is not None:
            self.alternatives[-1].append(item)
        self.n_last, self.n_rules = n_elements, n_rules

    def begin_alternative(self) -> None:
        self.alternatives.append([])
        self.last = self.n_last = 0
        self.n_rules = 1


def read_gbnf(text: str, *, max_depth: int) -> Rules:
    """The grammar's rules; `max_depth`: parentheses inside each other.

    Raises: BadGrammar for whatever llama.cpp's parser refuses or cannot bear. Whether the rules can be used is
    grammar_cost.py's question.
    """
    rules = Rules(text)
    for unwritable in re.finditer("[\0\ud800-\udfff]", text):
        raise rules.error(unwritable.start(), "this character cannot be part of a grammar")
    at = _skip(text, 0, lines=True)
    while at < len(text):
        at = _read_rule(rules, at, max_depth)
    for number, place in enumerate(rules.places):
        if number not in rules.alternatives:
            raise rules.error(place, "this rule is not defined")
    if "root" not in rules.numbers:
        raise BadGrammar("the grammar has no rule named root")
    return rules


def _read_rule(rules: Rules, at: int, max_depth: int) -> int:
    """One `name ::= …` up to the next rule's name."""
    text = rules.text
    name = _NAME.match(text, at)
    if name is None:
        raise rules.error(at, "a rule's name is expected")
    number = rules.number(name[0], at)
    at = _skip(text, name.end(), lines=False)
    if not text.startswith("::=", at):
        raise rules.error(at, "::= is expected")
    at = _skip(text, at + 3, lines=True)
    levels = [_Level(number, at, len(rules.places))]
    while item := _ITEM.match(text, at):
        _take(rules, levels, item, max_depth)
        # Inside parentheses and after a bar a line may end.
        at = _skip(text, item.end(), lines=len(levels) > 1 or item.lastgroup == "bar")
    if len(levels) > 1 and at == len(text):
        raise rules.error(levels[-1].opened_at, "this parenthesis is never closed")
    end = _LINE_END.match(text, at)
    if end is None:
        raise rules.error(at, "this cannot be read")
    _close(rules, levels.pop())
    return _skip(text, end.end(), lines=True)


def _skip(text: str, at: int, *, lines: bool) -> int:
    found = (_SPACE_AND_LINES if lines else _SPACE).match(text, at)
    assert found is not None, "both match nothing too"
    return found.end()


def _take(rules: Rules, levels: list[_Level], item: re.Match[str], max_depth: int) -> None:
    """Add one item to the innermost level."""
    level, place = levels[-1], item.start()
    match item.lastgroup:
        case "literal":
            characters = _IN_LITERAL.findall(item[0], 1, len(item[0]) - 1)
            _check_characters(rules, place, characters)
            _add_terminal(rules, level, place, len(characters))
        case "class":
            begin = 2 if item[0].startswith("[^") else 1
            characters = _IN_CLASS.findall(item[0], begin, len(item[0]) - 1)
            _check_characters(rules, place, characters)
            _check_ranges(rules, place, characters)
            _add_terminal(rules, level, place, len(characters))
        case "token":
            rules.tokens.setdefault(item[0].removeprefix("!"), place)
            _add_terminal(rules, level, place, 1)
        case "any":
            _add_terminal(rules, level, place, 1)
        case "name":
            rules.grow(1, place)
            level.add(rules.number(item[0], place), 1)
        case "bar":
            level.begin_alternative()
            rules.grow(1, place)
        case "open":
            if len(levels) > max_depth:
                raise rules.error(place, f"parentheses are nested deeper than {max_depth}")
            n_before = len(rules.places)
            levels.append(_Level(rules.new(place), place, n_before))
        case "close":
            if len(levels) == 1:
                raise rules.error(place, "this parenthesis was never opened")
            _close(rules, levels.pop())
            rules.grow(1, place)
            levels[-1].add(level.rule, 1, len(rules.places) - level.n_before)
        case _:
            _repeat(rules, level, item)


def _check_characters(rules: Rules, place: int, characters: list[str]) -> None:
    """Raises: BadGrammar for an escape that is no character: no text could have it."""
    points = map(_code_point, characters)
    if any(point > _LAST_POINT or point in _SURROGATES for point in points):
        raise rules.error(place, "an escape in here is no Unicode character")


def _check_ranges(rules: Rules, place: int, characters: list[str]) -> None:
    """Raises: BadGrammar for a range like z-a. A `-` at either end of a class is itself."""
    at = 1
    while at + 1 < len(characters):
        if characters[at] == "-":
            if _code_point(characters[at - 1]) > _code_point(characters[at + 1]):
                raise rules.error(place, "a range in here ends before it begins")
            at += 2
        at += 1


def _code_point(character: str) -> int:
    """Of one match of _IN_LITERAL or _IN_CLASS."""
    if len(character) > 2:
        return int(character[2:], 16)
    return ord(_CONTROLS.get(character, character[-1]))


def _add_terminal(rules: Rules, level: _Level, place: int, n_elements: int) -> None:
    """An empty literal or class is nothing at all, as in llama.cpp."""
    rules.grow(n_elements, place)
    level.add(TERMINAL if n_elements else None, n_elements)


def _close(rules: Rules, level: _Level) -> None:
    rules.grow(1, level.opened_at)
    rules.alternatives[level.rule] = level.alternatives


def _repeat(rules: Rules, level: _Level, item: re.Match[str]) -> None:
    """x{m,n} becomes x m times and a chain of n-m optional ones, x* a rule that ends in itself."""
    place = item.start()
    low, high = _times(rules, item)
    if level.n_last == 0:
        raise rules.error(place, "there is nothing before this to repeat")
    level.n_rules *= high or low or 1
    if level.n_rules > MAX_REPEATS:
        raise rules.error(place, f"a repeated group has more than {MAX_REPEATS} rules, repetitions multiplied")
    n_optional = 1 if high is None else high - low
    rules.grow((low - 1) * level.n_last + n_optional * (level.n_last + 3) + 1, place)
    sequence = level.alternatives[-1]
    once = sequence[level.last :]
    sequence[level.last :] = once * low
    if n_optional:
        sequence.append(_optional(rules, place, once, None if high is None else n_optional))
    level.n_last = low * level.n_last + min(n_optional, 1)


def _times(rules: Rules, item: re.Match[str]) -> tuple[int, int | None]:
    if item[0] in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[item[0]]
    if item["high"] and not item["comma"]:
        raise rules.error(item.start(), "a comma is missing between the two numbers")
    digits = [number.lstrip("0") or "0" for number in (item["low"], item["high"] or "0")]
    if any(len(number) > len(str(MAX_REPEATS)) or int(number) > MAX_REPEATS for number in digits):
        raise rules.error(item.start(), f"more than {MAX_REPEATS} repetitions")
    low, high = (int(number) for number in digits)
    if not item["comma"]:
        return low, low
    if item["high"] is None:
        return low, None
    if high < low:
        raise rules.error(item.start(), "the least number of repetitions is above the greatest")
    return low, high


def _optional(rules: Rules, place: int, once: Alternative, n: int | None) -> int:
    """The rule for up to `n` of `once`; None: any number."""
    if n is None:
        loop = rules.new(place)
        rules.loops.add(loop)
        rules.alternatives[loop] = [[*once, loop], []]
        return loop
    last: list[int] = []
    for _ in range(n):
        number = rules.new(place)
        rules.alternatives[number] = [[*once, *last], []]
        last = [number]
    return last[0]
