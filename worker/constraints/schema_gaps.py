"""Schema features that llguidance silently ignores, and that we refuse; and its own refusals in plain words.

Pure functions over a parsed schema, which know nothing of grammars. tests/constraints/test_json_schema.py has a text
for each gap that the library would let through, so that a release which closes one shows there.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from math import inf, lcm
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

MAX_EXACT = 2**53
"""The library keeps numbers as 64-bit floats, of which neighbours beyond this are one."""

MAX_REMAINDERS = 20_000
"""The most remainders of the numbers of `multipleOf`."""

_WIDEST = {"minimum": (-(2**63),), "maximum": (2**63 - 1, 2**64 - 1)}
"""Common bounds beyond it, which the library at most makes narrower: its integers have 64 bits."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_MAX_PLACE = 100
_MAX_QUOTED = 1000

_CLASS = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]?", re.DOTALL)
"""An escape, or a set of characters. One that is never closed goes to the end, so that it is read once."""
_CLASS_OR_DOT = re.compile(rf"{_CLASS.pattern}|\.", re.DOTALL)
_CLASS_IN_SET = re.compile(r"(?P<before>(?<!\[)(?<!\[\^)-)?\\(?P<name>[sS])(?P<after>-(?!\]))?|\\.", re.DOTALL)
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""ECMA-262's white space and line ends: with U+FEFF, without U+0085."""
_NO_SPACE = (
    r"\u0000-\u0008\u000e-\u001f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\ufefe\uff00-\u{10ffff}"
)
_IN_SET = {"s": _SPACE, "S": _NO_SPACE}
_ALONE = {r"\s": f"[{_SPACE}]", r"\S": f"[^{_SPACE}]", ".": r"[^\n\r\u2028\u2029]"}
_SET_SYNTAX = re.compile(r"\[|&&|--|~~|^$")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""The characters that JSON writes only as `\\u` and four digits, and DEL, which the library counts among them."""
_CONTROL_ESCAPE = re.compile(r"\\(?:[av0c]|(?:x|u00)(?:0[0-7bBeEfF]|1|7[fF])|[xu]\{)")


def gap(schema: object) -> str | None:
    """The first thing that would not be enforced, with its JSON pointer; None where the library can be believed."""
    if not isinstance(schema, dict):
        return "a schema must be a JSON object; {} allows any JSON"
    if "x-guidance" in schema:
        return '"x-guidance" is no keyword of JSON schema (at #)'
    is_open = has_open_names(schema)
    for part, place in _parts(schema):
        if fault := next(_faults(part, is_open=is_open), None):
            return f"{fault} (at {place})"
    if (endless := _endless(schema)) is not None:
        return f'at {endless} a "$ref" that leads back to itself is required, so that nothing can satisfy it'
    multiples = {Decimal(str(part["multipleOf"])) for part, _ in _parts(schema) if _is_number(part.get("multipleOf"))}
    if not _are_small(multiples):
        return '"multipleOf" has too large a number, or several numbers with too large a common multiple'
    return None


def has_open_names(schema: Schema) -> bool:
    r"""Return whether an object has names with schemas of their own and also names that the text may choose.

    The library takes the spelling "\u0061" for another name than "a" there, so that `\u` must not be allowed.
    """
    return any(
        part.get("additionalProperties") is not False
        and (part.get("properties") or part.get("patternProperties") or part.get("required"))
        for part, _ in _parts(schema)
    )


def _is_idle(part: Schema, key: str) -> bool:
    """True for a keyword that turns nothing down and that the library refuses by its name. Of 318 published schemas
    that it enforces, 20 have one of these."""
    if key == "uniqueItems":
        return part[key] is False or (part[key] is True and part.get("maxItems") in (0, 1))
    return key == "propertyNames" and part[key] in (True, {}, {"type": "string"})


def readable(schema: Any) -> Any:
    """The same schema in words that the library understands, without idle keywords.

    It compares the branches of "oneOf" without following references, unless a keyword beside one makes it follow; here
    that is a "type" that allows everything. And some words of a pattern mean something else to it.
    """
    if not isinstance(schema, dict):
        return schema
    made = {key: _changed(key, value, readable) for key, value in schema.items() if not _is_idle(schema, key)}
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = ecma(pattern)
    if isinstance(patterns := made.get("patternProperties"), dict):
        spelled = {ecma(pattern): part for pattern, part in patterns.items()}
        made["patternProperties"] = spelled if len(spelled) == len(patterns) else patterns
    if isinstance(branches := made.get("oneOf"), list):
        made["oneOf"] = [{"type": _TYPES, **part} if _is_reference(part) else part for part in branches]
    return made


def _changed(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of a schema's keyword, with the schemas that stand directly inside it changed."""
    if key in _MAPS and isinstance(value, dict):
        return {name: change(part) for name, part in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [change(part) for part in value]
    return change(value) if key in _SINGLE else value


def ecma(pattern: str) -> str:
    r"""The pattern with ECMA-262's white space and line ends spelled out; the library has Unicode's. Its own \d and \w
    are ECMA-262's.
    """
    return _CLASS_OR_DOT.sub(
        lambda found: _set(found[0]) if found[0][0] == "[" else _ALONE.get(found[0], found[0]), pattern
    )


def _set(text: str) -> str:
    """A set of characters; a hyphen beside a class of them stands for itself, as browsers have it."""
    return _CLASS_IN_SET.sub(
        lambda found: (
            found[0]
            if found["name"] is None
            else (r"\-" if found["before"] else "") + _IN_SET[found["name"]] + (r"\-" if found["after"] else "")
        ),
        text,
    )


def _parts(schema: object) -> Iterator[tuple[Schema, str]]:
    """Every schema inside, itself first, with its JSON pointer, which is cut off where it is long."""
    waiting: list[tuple[object, str]] = [(schema, "#")]
    while waiting:
        part, place = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part, place
        inside = [(part.get(key), key) for key in _SINGLE]
        inside += [(each, f"{key}/{i}") for key in _LISTS for i, each in enumerate(_as(list, part.get(key)))]
        inside += [(each, f"{key}/{_step(name)}") for key in _MAPS for name, each in _as(dict, part.get(key)).items()]
        waiting += [(each, _further(place, step)) for each, step in reversed(inside)]


def _further(place: str, step: str) -> str:
    """Cut off at once where it is long: thousands of places may begin with one long name."""
    further = place if place.endswith("…") else f"{place}/{step}"
    return further if len(further) <= _MAX_PLACE else f"{further[:_MAX_PLACE]}…"


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _as(kind: type[Any], value: object) -> Any:
    """The value if it is of that kind, else an empty one."""
    return value if isinstance(value, kind) else kind()


def _is_reference(part: object) -> bool:
    return isinstance(part, dict) and "$ref" in part and "type" not in part


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf


def _is_inexact(value: Any) -> bool:
    return _is_number(value) and abs(value) > MAX_EXACT


def _endless(schema: Schema) -> str | None:
    """A place whose texts must contain a text of the same place, so that none of them ends; None where there is none.

    The library lets such a text begin. Choices are not followed: a way around may be among them. An `$id` further
    inside changes what references mean, which is not looked into.
    """
    places = {id(part): place for part, place in _parts(schema)}
    if any("$id" in part for part, place in _parts(schema) if place != "#"):
        return None
    done: set[int] = set()
    for start, _ in _parts(schema):
        open_parts: dict[int, None] = {}
        waiting = [(start, False)]
        while waiting:
            part, is_left = waiting.pop()
            if is_left:
                del open_parts[id(part)]
                done.add(id(part))
            elif id(part) in open_parts:
                return places.get(id(part), "#")
            elif id(part) not in done:
                open_parts[id(part)] = None
                waiting.append((part, True))
                waiting += [(each, False) for each in _musts(part, schema)]
    return None


def _musts(part: Schema, root: Schema) -> Iterator[Schema]:
    """The schemas that a text of this part cannot do without, as far as this is plain."""
    musts: list[object] = [_referred(part.get("$ref"), root), *_as(list, part.get("allOf"))]
    for key in ("anyOf", "oneOf"):
        musts += choices if len(choices := _as(list, part.get(key))) == 1 else []
    if part.get("type") in ("object", ["object"]):
        properties = _as(dict, part.get("properties"))
        musts += [properties[name] for name in _as(list, part.get("required")) if name in properties]
    least = part.get("minItems")
    if part.get("type") in ("array", ["array"]) and isinstance(least, int) and least > 0:
        first = _as(list, part.get("prefixItems"))
        musts += first[:least]
        musts += [part.get("items")] if least > len(first) else []
    return (each for each in musts if isinstance(each, dict))


def _referred(reference: object, root: Schema) -> object:
    """The schema that a reference inside the document names; None for another one."""
    if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = _as(dict, found).get(name)
    return found


def _faults(part: Schema, *, is_open: bool) -> Iterator[str]:
    if part.get("format") == "unknown":
        yield 'this "format" is not supported'
    if "prefixItems" in part and isinstance(part.get("items"), list):
        yield '"prefixItems" is not supported beside a list of "items"'
    if not isinstance(part.get("required", []), list):
        yield '"required" must be a list of names'
    if _as(int, part.get("minProperties")) - len(_as(list, part.get("required"))) > 1:
        yield '"minProperties" is supported only where at most one property beyond the required ones is needed'
    for bound in _BOUNDS:
        value = part.get(bound)
        if value is True and bound.removeprefix("exclusive").lower() not in part:
            yield f'"{bound}" must be a number, or stand beside a bound'
        if isinstance(value, int) and _is_inexact(value) and value not in _WIDEST.get(bound, ()):
            yield f'"{bound}" is beyond 2^53'
    for keyword in ("const", "enum"):
        yield from (f'"{keyword}" has {what}' for what in _unwritable(part.get(keyword), is_open=is_open))
    for pattern in (part.get("pattern"), *_as(dict, part.get("patternProperties"))):
        yield from (f"a pattern has {what}" for what in _misread(_as(str, pattern), is_open=is_open))


def _unwritable(value: object, *, is_open: bool) -> Iterator[str]:
    """Yield what the library would write otherwise in a constant."""
    if _is_inexact(value):
        yield "a number beyond 2^53"
    elif isinstance(value, str) and is_open and _CONTROL.search(value):
        yield "a control character"
    elif isinstance(value, list | dict):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _unwritable(inside, is_open=is_open)


def _misread(pattern: str, *, is_open: bool) -> Iterator[str]:
    """Yield what in a regular expression means something else to the library than to ECMA-262."""
    sets = [found[0] for found in _CLASS.finditer(pattern) if found[0].startswith("[")]
    if any(_SET_SYNTAX.search(re.sub(r"\\.", ".", each[1:].removesuffix("]").removeprefix("^"))) for each in sets):
        yield 'a set of characters that is empty or has "[", "&&", "--" or "~~" inside'
    # A set of several characters loses those that cannot be written; alone they are left out of the text.
    alone = _CLASS.sub(
        lambda found: "" if found[0] in sets and ("-" in found[0] or "^" in found[0]) else found[0], pattern
    )
    if is_open and (_CONTROL.search(alone) or _CONTROL_ESCAPE.search(alone)):
        yield "a control character"


def _are_small(multiples: set[Decimal]) -> bool:
    """Return whether the library finds the multiples of these, and of several at once: in 32-bit arithmetic, and fast.

    Its automaton has a state for each remainder, but few for a power of ten: 0.3 s at the limits, minutes at 2^24.
    """
    digits = max((-int(each.normalize().as_tuple().exponent) for each in multiples), default=0)
    whole = [int(abs(each).scaleb(max(digits, 0))) for each in multiples]
    common = lcm(*whole)
    for _ in range(digits):
        common //= 10 if common % 10 == 0 else 1
    significant = common
    while significant and significant % 10 == 0:
        significant //= 10
    is_fast = significant <= 1 or (significant <= MAX_REMAINDERS and common <= 5 * MAX_REMAINDERS)
    return is_fast and all(lcm(*set(whole) - {each}) * each < 2**32 for each in whole)


_REFUSALS = {
    r"Unimplemented keys: \[(.*?)\]": "{0} cannot be enforced",
    r"Unknown format": 'this "format" is not supported',
    r"oneOf constraints": '"oneOf" is supported only where its branches plainly exclude one another',
    r"circular references": 'a "$ref" that leads back to itself may have no other keyword beside it',
    r"retrieving it failed": 'a "$ref" or "$schema" names another document',
    r"^Pointer|resolve|Invalid URI|[Aa]nchor": 'a "$ref" or "$id" cannot be resolved',
    r"Invalid type": '"type" names no type of JSON',
    r"Expected .* for '(\w+)'": '"{0}" has a value of the wrong kind',
    r"^(\$?\w+) must be": '"{0}" has a value of the wrong kind',
    r"regex parse error.*error: ([^\n]*)": "a pattern cannot be read: {0}",
    r"lookarounds": "a pattern has an anchor or a word boundary where it cannot be enforced",
    r"min/maxProperties": '"minProperties" and "maxProperties" are supported only without optional properties',
    r"disjoint": 'a name could match two of the "patternProperties"',
    r"Unsatisfiable schema.*Regex is empty": 'no text matches a "pattern" or "format" and what stands beside it',
    r"Unsatisfiable schema.*((?:min|max)(?:Length|Items|Properties|imum))": 'no JSON satisfies "{0}"',
    r"Unsatisfiable schema": "no JSON satisfies it",
    r"range: min=": "a bound of a number is too large",
    r"multiple ?[oO]f": '"multipleOf" must be above 0 and of at most nine digits',
    r"(at line \d+ column \d+)$": "it is not JSON ({0})",
    r"large|exceed|exhausted|limit|Unable to determine|fuel": "it is too large or too complex",
}


def plain(error: str, schema: object) -> str:
    """llguidance's refusal of a schema as the end of a sentence, with the place where it is known. Quotes no value."""
    # The library quotes; what it says itself stands at the beginning or at the end.
    ends = error if len(error) <= 2 * _MAX_QUOTED else f"{error[:_MAX_QUOTED]}\n{error[-_MAX_QUOTED:]}"
    for pattern, words in _REFUSALS.items():
        if found := re.search(pattern, ends, re.DOTALL):
            return words.format(*found.groups()) + _place(error, schema)
    return "it cannot be compiled"


def _place(error: str, schema: object) -> str:
    """Return the first place of the keywords, the format or the pattern that the error names."""
    keywords = set(re.findall(r'"([^"]+)"', error)) if error.startswith("Unimplemented") else set()
    for part, place in _parts(schema):
        patterns = [part.get("pattern"), *_as(dict, part.get("patternProperties"))] if "regex" in error else []
        if (
            (keywords and keywords <= {key for key in part if not _is_idle(part, key)})
            or error.startswith(f"Unknown format: {part.get('format')}")
            or any(isinstance(pattern, str) and pattern and ecma(pattern) in error for pattern in patterns)
        ):
            return f" (at {place})"
    return ""
