"""A client's grammar of a text becomes a part of a call's, as it is or for the text that a JSON string carries.

Lark is read as far as this needs it. Names get a prefix. For a JSON string each literal and each regular expression is
rewritten so that it takes the escaped text. What stands between the quotes is then JSON for exactly the texts that the
client's grammar takes.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<comment>   //[^\n]* )
  | (?P<range>     "(?:[^"\\]|\\.)"\s*\.\.\s*"(?:[^"\\]|\\.)" )
  | (?P<string>    "(?:[^"\\\n]|\\.)*"i? )
  | (?P<regex>     /(?:[^/\\\n]|\\.)+/[imslux]* )
  | (?P<import>    %import\s+common\s*\.\s*(?P<common>\w+)(?:\s*->\s*(?P<as>\w+))?[^\n]* )
  | (?P<directive> %\w+ )
  | (?P<alias>     ->\s*\w+ )
  | (?P<name>      [?!]?[_a-zA-Z]\w* )
  | (?P<priority>  \.-?\d+(?=\s*:) )
  | (?P<other>     [:|()\[\]?*+~,.{}\s]|\d+ )
    """,
    re.VERBOSE,
)
_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "NUMBER": r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}
"""Lark's library of terminals."""

_REGEX_PART: Final = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)"
    r"|\(\?(?:P?<\w+>|[^)]*?[:)])|\{\d*,?\d*\}|.",
    re.DOTALL,
)
_SETS: Final = frozenset("dDwWsS")
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_ESCAPED: Final = '\n\t\r\b\f"\\'
"""The characters that a JSON string has behind a backslash. Other control characters are in no set here."""
_NOT_PLAIN: Final = r'["\\\x00-\x1f]'
_PLAIN: Final = [each for each in map(chr, (*range(0x20, 0x100), 0x2028, 0x4E16, 0x1F600)) if each not in '"\\']


class UnreadableGrammar(ValueError):
    """The grammar has something that cannot be carried over. The message is the end of a sentence."""


def rules_of(lark: str, prefix: str, *, in_json: bool) -> tuple[str, dict[str, str]]:
    """The name of the first rule of a Lark grammar and all its rules, right sides by their names; each name has the
    prefix. `in_json` says that they are to take the text as a JSON string has it between its quotes.

    Raises: UnreadableGrammar.
    """
    spelled = _in_json if in_json else (lambda _, text: text)
    rules: dict[str, str] = {}
    for name, right in _statements(lark, spelled):
        rules[_named(name, prefix)] = re.sub(r"\0(\w+)\0", lambda found: _named(found[1], prefix), right).strip()
    start = _named("start", prefix)
    if start not in rules:
        raise UnreadableGrammar("its grammar has no rule named start")
    return start, rules


def _named(name: str, prefix: str) -> str:
    """A terminal's name is upper case, a rule's is lower case."""
    bare = name.lstrip("_")
    is_terminal = bare[:1].isupper()
    return f"{prefix.upper() if is_terminal else prefix.lower()}_{bare}"


def _statements(lark: str, spelled: Callable[[str, str], str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each definition with its right side, in which names stand between NULs."""
    name, right = "", ""
    tokens = list(_tokens(lark))
    for place, (kind, text) in enumerate(tokens):
        if kind == "import":
            found = _TOKEN.match(text)
            assert found is not None
            if found["common"] not in _COMMON:
                raise UnreadableGrammar("its grammar imports a terminal that is not supported")
            yield found["as"] or found["common"], spelled("regex", f"/{_COMMON[found['common']]}/")
        elif kind == "name" and _begins_definition(tokens, place):
            if name:
                yield name, right
            name, right = text.lstrip("?!"), ""
        elif kind == "name":
            right += f"\0{text}\0"
        elif kind in {"string", "regex", "range"}:
            right += spelled(kind, text)
        elif kind == "other" and not (text == ":" and not right.strip()):
            right += " " if text.isspace() else text
    if name:
        yield name, right


def _begins_definition(tokens: list[tuple[str, str]], place: int) -> bool:
    behind = (kind for kind in tokens[place + 1 :] if kind[0] != "priority" and not kind[1].isspace())
    return next(behind, ("", ""))[1] == ":"


def _tokens(lark: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(lark):
        found = _TOKEN.match(lark, place)
        kind = "" if found is None else str(found.lastgroup)
        if found is not None and found["import"]:
            kind = "import"
        if found is None or kind == "directive":
            line = lark.count("\n", 0, place) + 1
            raise UnreadableGrammar(f"line {line} of its grammar has something that is not supported")
        if kind not in {"comment", "alias"}:
            yield kind, found[0]
        place = found.end()


def _in_json(kind: str, text: str) -> str:
    """A terminal for the text as a JSON string has it.

    Each character becomes a lexeme: no escape begins another one, so no lexeme hides another. A longer lexeme would
    take the backslash of what comes behind it.
    """
    if kind == "string":
        value = _string(text.removesuffix("i"))
        flags = "i" if text.endswith("i") else ""
        return f"({' '.join(_character(each, flags) for each in value)})" if value else '""'
    if kind == "range":
        low, high = (re.escape(_string(each)) for each in re.findall(r'"(?:[^"\\]|\\.)"', text))
        return _set(f"[{low}-{high}]", "")
    pattern, _, flags = text[1:].rpartition("/")
    if set(flags) - set("is"):
        raise UnreadableGrammar("a regular expression of its grammar has a flag that is not supported")
    return f"({_regex(pattern, flags)})"


def _string(text: str) -> str:
    try:
        return str(json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text)))
    except ValueError as error:
        raise UnreadableGrammar("a literal of its grammar cannot be read") from error


def _regex(pattern: str, flags: str) -> str:
    """A regular expression as the right side of a rule. What is repeated lazily or greedily is the same text."""
    made, is_repeated = "", False
    for part in _REGEX_PART.findall(pattern):
        is_repeating = part[0] in "?*+" or (part[0] == "{" and len(part) > 1)
        if not (is_repeating and is_repeated):
            made += ("" if is_repeating else " ") + _regex_part(part, flags)
        is_repeated = is_repeating
    return made


def _regex_part(part: str, flags: str) -> str:
    if part.startswith("["):
        return _set(part, flags)
    if part == ".":
        return _set("[^\\n]" if "s" not in flags else "[\\s\\S]", flags)
    if part.startswith("(?"):
        if part != "(?:" and not re.fullmatch(r"\(\?P?<\w+>?", part):
            raise UnreadableGrammar("a group of its regular expressions is not supported")
        return "("
    if part.startswith("\\"):
        return _escape(part, flags)
    if part in "^$":
        raise UnreadableGrammar("an anchor of its regular expressions is not supported")
    return part if part in "()|?*+" or len(part) > 1 else _character(part, flags)


def _escape(part: str, flags: str) -> str:
    letter = part[1]
    if letter in _SETS:
        return _set(f"[{part}]", flags)
    if letter in "xu" and len(part) > 2:
        return _character(chr(int(part[2:].strip("{}"), 16)), flags)
    if letter.isalnum() and letter not in _CONTROLS:
        raise UnreadableGrammar("an escape of its regular expressions is not supported")
    return _character(_CONTROLS.get(letter, letter), flags)


def _character(character: str, flags: str) -> str:
    if "i" in flags and character.lower() != character.upper():
        return _set(f"[{re.escape(character)}]", flags)
    return json.dumps(json.dumps(character, ensure_ascii=False)[1:-1], ensure_ascii=False)


def _set(text: str, flags: str) -> str:
    """A set of characters: those that JSON has as they are, and each other one as it is escaped."""
    try:
        found = re.compile(text, re.IGNORECASE if "i" in flags else 0)
    except re.error as error:
        raise UnreadableGrammar("a set of its regular expressions cannot be read") from error
    escaped = [coded(json.dumps(each)[1:-1]) for each in _ESCAPED if found.fullmatch(each)]
    case = "(?i)" if "i" in flags else ""
    plain = [f"(?:{case}[{text}--{_NOT_PLAIN}])"] if any(found.fullmatch(each) for each in _PLAIN) else []
    if not plain and not escaped:
        raise UnreadableGrammar("a set of its regular expressions is empty")
    return f"/{'|'.join([*plain, *escaped])}/"


def coded(text: str) -> str:
    """A text in a regular expression, each character by its number."""
    return "".join(rf"\x{{{ord(each):x}}}" for each in text)
