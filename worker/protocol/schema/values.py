"""The parts of a schema that have no schemas inside: strings, integers, values given one by one.

Each function reads the keywords of one part and gives it as the converter honours it, or notes what is wrong with it.
Pure; runs on the front's event loop.
"""

from math import ceil, floor
from typing import Any, TypeGuard

from worker.protocol.schema.faults import MAX_REPEATS, Faults, Tokens
from worker.protocol.schema.loops import Plain
from worker.protocol.schema.pattern import PatternRefused, plain_pattern

MAX_CHOICES = 500
"""Values or schemas to choose from: llama.cpp follows all that are still possible at once."""

FORMATS = ("date", "time", "date-time", "uuid")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

_STRING_WAYS = (("pattern",), ("format",), ("minLength", "maxLength"))
"""The converter looks at the first of them only."""


def string_schema(said: dict[str, Any], at: Tokens, faults: Faults) -> Plain:
    ways = [words for words in _STRING_WAYS if said.keys() & set(words)]
    if len(ways) > 1:
        faults.unsupported((*at, ways[0][0]), "is not supported beside other rules for the text; choose one")
    elif "pattern" in said:
        return {"type": "string", "pattern": _pattern(said["pattern"], (*at, "pattern"), faults)}
    elif "format" in said:
        if said["format"] not in FORMATS:
            faults.unsupported((*at, "format"), f"is not supported but for {', '.join(FORMATS)}")
        return {"type": "string", "format": said["format"]}
    elif ways:
        least, most = limits(said, "minLength", "maxLength", at, faults)
        return {"type": "string", "minLength": least} | ({} if most is None else {"maxLength": most})
    return {"type": "string"}


def _pattern(pattern: object, at: Tokens, faults: Faults) -> str:
    if not isinstance(pattern, str):
        faults.invalid(at, "must be a string")
        return ""
    try:
        plain, n_repeats = plain_pattern(pattern)
    except PatternRefused as refused:
        faults.unsupported(at, str(refused))
        return ""
    faults.count(n_repeats, at)
    return plain


def integer_schema(said: dict[str, Any], at: Tokens, faults: Faults) -> Plain:
    """The converter knows no bounds: integers between two of them are written out."""
    bounds = {word: said[word] for word in BOUNDS if word in said}
    for word, bound in bounds.items():
        if not _is_number(bound):
            faults.invalid((*at, word), "must be a number")
            return {}
    if not bounds:
        return {"type": "integer"}
    lows = [ceil(bounds[word]) for word in bounds if word == "minimum"]
    lows += [floor(bounds[word]) + 1 for word in bounds if word == "exclusiveMinimum"]
    highs = [floor(bounds[word]) for word in bounds if word == "maximum"]
    highs += [ceil(bounds[word]) - 1 for word in bounds if word == "exclusiveMaximum"]
    place = (*at, next(iter(bounds)))
    if not lows or not highs:
        faults.unsupported(place, f"is supported only beside a bound on the other side, {MAX_CHOICES} integers at most")
        return {}
    if (n_between := min(highs) - max(lows) + 1) > MAX_CHOICES:
        faults.unsupported(place, f"leaves {n_between} integers; at most {MAX_CHOICES} are supported")
        return {}
    if min(highs) < max(lows):
        faults.unsatisfiable(place, "contradicts another bound")
    return {"enum": list(range(max(lows), min(highs) + 1))}


def enumeration(values: object, kinds: list[str], at: Tokens, faults: Faults) -> Plain:
    """`kinds`: the types beside it; none: all."""
    if not isinstance(values, list) or not values:
        faults.invalid(at, "must be an array of at least one value")
        return {}
    if len(values) > MAX_CHOICES:
        faults.add(at, f"max_count({MAX_CHOICES})", f"must have at most {MAX_CHOICES} values")
    for i, value in enumerate(values):
        _check_value(value, kinds, (*at, str(i)), faults)
    return {"enum": values}


def constant(value: object, kinds: list[str], at: Tokens, faults: Faults) -> Plain:
    _check_value(value, kinds, at, faults)
    return {"const": value}


def _check_value(value: object, kinds: list[str], at: Tokens, faults: Faults) -> None:
    if kinds and not any(_is_of(kind, value) for kind in kinds):
        faults.unsatisfiable(at, "is not of the type beside it")
    if _has_reference(value):
        faults.unsupported(at, "has a member named $ref, which the converter follows; choose another name")


def limits(said: dict[str, Any], least_word: str, most_word: str, at: Tokens, faults: Faults) -> tuple[int, int | None]:
    """The least and the most of something, None: no limit. The greater of them is counted."""
    least = _limit(said.get(least_word, 0), (*at, least_word), faults)
    most = _limit(said[most_word], (*at, most_word), faults) if most_word in said else None
    if most is not None and most < least:
        faults.unsatisfiable((*at, least_word), f"must not be above {most_word}")
    faults.count(most or least, (*at, most_word if most else least_word))
    return least, most


def _limit(limit: object, at: Tokens, faults: Faults) -> int:
    if not _is_number(limit) or limit != int(limit) or limit < 0:
        faults.invalid(at, "must be a whole number, not negative")
        return 0
    if limit > MAX_REPEATS:
        faults.add(at, f"range(0..={MAX_REPEATS})", f"must be at most {MAX_REPEATS}")
        return 0
    return int(limit)


def _has_reference(value: object) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_has_reference, value.values()))
    return isinstance(value, list) and any(map(_has_reference, value))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_of(kind: str, value: object) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case int() | float():
            return kind == "number" or (kind == "integer" and value == int(value))
        case str():
            return kind == "string"
        case list():
            return kind == "array"
        case dict():
            return kind == "object"
        case _:
            return kind == "null"
