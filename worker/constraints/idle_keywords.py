"""Keywords of a JSON schema that say nothing: every instance that can stand there satisfies them.

Owns that judgement, and takes such keywords out before the library, which refuses some by their names, sees the schema.
It is careful: a keyword that it cannot judge counts as one that says something. Pure functions over a parsed schema.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]
Kinds = frozenset[str]
"""The kinds that an instance may have. "number" is a number that is no integer."""

ALL_KINDS: Kinds = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_NUMBERS: Kinds = frozenset({"integer", "number"})
_STRING, _ARRAY, _OBJECT = frozenset({"string"}), frozenset({"array"}), frozenset({"object"})

_SPEAKS_OF: dict[str, Kinds] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), _STRING),
    **dict.fromkeys(("minItems", "maxItems", "uniqueItems", "items", "prefixItems", "additionalItems"), _ARRAY),
    **dict.fromkeys(("contains", "minContains", "maxContains", "unevaluatedItems"), _ARRAY),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required"), _OBJECT),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties"), _OBJECT),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _OBJECT),
}
"""The kinds of instances that a keyword may turn down."""

_OF_ANY_KIND = frozenset({"type", "enum", "const", "not", "if", "then", "else", "allOf", "anyOf", "oneOf"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_ANCHORS = frozenset({"$dynamicAnchor", "$recursiveAnchor"})
_KEEPING_ORDER = frozenset({"properties", "patternProperties", "required", "items", "prefixItems"})
"""Keywords that say more than which instances are valid, such as the order of names. The library refuses none."""
_ASSERTIONS = frozenset({*_SPEAKS_OF, *_OF_ANY_KIND, *_REFERENCES, *_ANCHORS})
_STAYING = frozenset({"type", "enum", "const", "allOf", "anyOf", "oneOf", "additionalProperties"})
_NAMES_OF_PLACES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
_WITHIN_REFERENCES = frozenset({"$id", "id", "$anchor", "$schema", "$defs", "definitions", "$comment"})

ENFORCED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""The formats that the library knows; it enforces them beside constants, too."""

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalItems", "additionalProperties")


def without_idle_keywords(schema: Any) -> Any:
    """The same schema without keywords that say nothing, down to the parts that the library reads."""
    members = list(_members(schema))
    drafts = frozenset(value for name, value in members if name == "$schema" and isinstance(value, str))
    return _Judge(
        references="\n".join(value for name, value in members if name == "$ref" and isinstance(value, str)),
        words=frozenset(name for name, _ in members),
        is_old=_has_draft(schema) and all("draft-0" in each or "2019-09" in each for each in drafts),
        is_recent=not any("draft-0" in each for each in drafts),
    ).cleaned(schema)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges the parts of one document, each of them once."""

    references: str
    """Every reference in the document, a line each."""
    words: frozenset[str]
    """Every name of a member in the document."""
    is_old: bool
    """True if the document is surely of a draft before 2020-12, in which tuples were lists of `items`."""
    is_recent: bool
    """True if it is surely of 2019-09 or later, which have minContains."""
    _known: dict[tuple[str, int, Kinds], bool] = field(default_factory=dict)

    def cleaned(self, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        kinds = _kinds_of(part)
        made: dict[str, Any] = {}
        for key, value in part.items():
            if self._is_idle(part, key, kinds) and not self._is_a_place(key, value):
                continue
            if key in _MAPS and isinstance(value, dict):
                made[key] = {name: self.cleaned(each) for name, each in value.items()}
            elif key in _LISTS and isinstance(value, list):
                made[key] = [self.cleaned(each) for each in value]
            else:
                made[key] = self.cleaned(value) if key in _SINGLE else value
        return made

    def _is_idle(self, part: Schema, key: str, kinds: Kinds) -> bool:
        """True if the keyword can go. Notes and unknown words beside a reference can: if the library takes such a word
        to mean something, it does not follow a reference that leads back to itself.
        """
        if key in _STAYING or key in _REFERENCES or key in _WITHIN_REFERENCES:
            return False
        if key in _KEEPING_ORDER and not (key == "prefixItems" and self.is_old):
            return False
        if key not in _ASSERTIONS:
            return "$ref" in part and key != "x-guidance"
        return self._says_nothing(part, key, kinds)

    def _is_a_place(self, key: str, value: Any) -> bool:
        """True if a reference may lead into the keyword's value."""
        if not isinstance(value, dict | list):
            return key == "$dynamicAnchor" and f"#{value}" in self.references
        names = {name for name, inside in _members(value) if isinstance(inside, str)}
        return f"/{key}" in self.references or not _NAMES_OF_PLACES.isdisjoint(names)

    # ── keywords ─────────────────────────────────────────────────────────────────────────────────

    def _says_nothing(self, part: Schema, key: str, kinds: Kinds) -> bool:
        """True if every instance of these kinds that satisfies the part's other keywords satisfies this one."""
        if key in _SPEAKS_OF and not _SPEAKS_OF[key] & kinds:
            return True
        return _JUDGEMENTS[key](self, part, key, kinds) if key in _JUDGEMENTS else key not in _ASSERTIONS

    def _is_wide(self, part: Schema, key: str, kinds: Kinds) -> bool:
        """`not` and `anyOf`."""
        if key == "not":
            return self.never(part[key], kinds)
        return any(self.always(each, kinds) for each in _list(part[key]))

    def _allows_all(self, part: Schema, key: str, _: Kinds) -> bool:
        """Keywords of names, and of what no other keyword has looked at."""
        value = part[key]
        if key == "propertyNames":
            return self.always(value, _STRING)
        is_all_seen = {
            "additionalItems": not isinstance(part.get("items"), list),
            "unevaluatedItems": _is_schema(part.get("items")),
            "unevaluatedProperties": _is_schema(part.get("additionalProperties")),
        }[key]
        return _is_schema(value) and (is_all_seen or self.always(value, ALL_KINDS))

    def _is_unused(self, _part: Schema, key: str, _: Kinds) -> bool:
        """An anchor that no reference of its kind looks for."""
        return key.replace("Anchor", "Ref") not in self.words

    def _depends_on_nothing(self, part: Schema, key: str, _: Kinds) -> bool:
        value = part[key]
        return isinstance(value, dict) and all(self._asks_nothing(part, *each) for each in value.items())

    def _is_empty(self, part: Schema, key: str, kinds: Kinds) -> bool:
        """True if all schemas of the keyword allow everything."""
        value = part[key]
        if key == "prefixItems" and self.is_old:
            return True
        if key in _MAPS:
            return isinstance(value, dict) and all(self.always(each, ALL_KINDS) for each in value.values())
        if isinstance(value, list):
            return all(self.always(each, kinds if key == "allOf" else ALL_KINDS) for each in value)
        return self.always(value, ALL_KINDS)

    def _asks_nothing(self, part: Schema, name: str, value: Any) -> bool:
        """True if the presence of that name requires nothing that the object does not have anyway."""
        if isinstance(value, list):
            return all(each == name or each in _required(part) for each in value)
        return self.always(value, _OBJECT)

    def _is_idle_count(self, part: Schema, key: str, _: Kinds) -> bool:
        """`contains` and what bounds how many items it counts, which say something only together."""
        if "contains" not in part:
            return key != "contains" and _is_count(part[key])
        counted = part["contains"]
        is_bounded = "maxContains" in part and self.is_recent
        has_no_most = (
            not is_bounded
            or self.never(counted, ALL_KINDS)
            or ("maxItems" in part and _count(part, "maxItems", 0) <= _count(part, "maxContains", -1))
        )
        least = _count(part, "minContains", 1) if self.is_recent else 1
        has_no_least = least == 0 or (self.always(counted, ALL_KINDS) and _count(part, "minItems", 0) >= least)
        return _is_schema(counted) and has_no_least and has_no_most

    def _is_idle_condition(self, part: Schema, key: str, kinds: Kinds) -> bool:
        """`then` and `else` say nothing without `if`, and `if` nothing without one of them that does."""
        if "if" not in part:
            return _is_schema(part[key])
        condition = part["if"]
        is_idle = {
            "then": "then" not in part or self.always(part["then"], kinds) or self.never(condition, kinds),
            "else": "else" not in part or self.always(part["else"], kinds) or self.always(condition, kinds),
        }
        return _is_schema(condition) and (all(is_idle.values()) if key == "if" else is_idle[key])

    # ── schemas ──────────────────────────────────────────────────────────────────────────────────

    def always(self, schema: Any, kinds: Kinds) -> bool:
        """True if every instance of these kinds satisfies the schema."""
        if not isinstance(schema, dict):
            return schema is True
        return self._once(
            "always", schema, kinds, lambda: all(self._says_nothing(schema, key, kinds) for key in schema)
        )

    def never(self, schema: Any, kinds: Kinds) -> bool:
        """True if no instance of these kinds satisfies the schema."""
        if not isinstance(schema, dict):
            return schema is False
        return self._once("never", schema, kinds, lambda: self._is_unsatisfiable(schema, kinds))

    def _is_unsatisfiable(self, schema: Schema, kinds: Kinds) -> bool:
        if not _REFERENCES.isdisjoint(schema):
            return False  # drafts up to 7 ignore what stands beside one
        all_of, any_of, one_of = (_list(schema.get(key)) for key in ("allOf", "anyOf", "oneOf"))
        own = kinds & _kinds_of(schema)
        for each in all_of:
            if isinstance(each, dict) and _REFERENCES.isdisjoint(each):
                own &= _kinds_of(each)
        return (
            not own
            or any(self.never(each, own) for each in all_of)
            or any(branches and all(self.never(each, own) for each in branches) for branches in (any_of, one_of))
            or ("not" in schema and self.always(schema["not"], own))
        )

    def _once(self, question: str, schema: Schema, kinds: Kinds, answer: Callable[[], bool]) -> bool:
        key = question, id(schema), kinds
        if key not in self._known:
            self._known[key] = answer()
        return self._known[key]


def _is_idle_value(part: Schema, key: str) -> bool:
    """Keywords that are judged by their value and their neighbours' alone."""
    value = part[key]
    match key:
        case "required":
            return bool(value == [])
        case "uniqueItems":
            return value is False or (value is True and _count(part, "maxItems", 2) <= 1)
        case "format":
            is_known = value in ENFORCED_FORMATS if isinstance(value, str) else True
            return not is_known and ("enum" in part or "const" in part)
        case "maxProperties":
            return _is_count(value) and _n_most_properties(part) <= value
        case _:
            least = len(_required(part)) if key == "minProperties" else 0
            return _is_count(value) and bool(value <= least)


_JUDGEMENTS: dict[str, Callable[[_Judge, Schema, str, Kinds], bool]] = {
    "type": lambda _, part, key, kinds: kinds <= _named_kinds(part[key]),
    **dict.fromkeys(
        ("required", "uniqueItems", "format", "maxProperties", "minProperties", "minItems", "minLength"),
        lambda _, part, key, __: _is_idle_value(part, key),
    ),
    **dict.fromkeys(
        ("items", "prefixItems", "allOf", "properties", "patternProperties", "additionalProperties"), _Judge._is_empty
    ),
    **dict.fromkeys(
        ("additionalItems", "propertyNames", "unevaluatedItems", "unevaluatedProperties"), _Judge._allows_all
    ),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _Judge._depends_on_nothing),
    **dict.fromkeys(("contains", "minContains", "maxContains"), _Judge._is_idle_count),
    **dict.fromkeys(("if", "then", "else"), _Judge._is_idle_condition),
    **dict.fromkeys(("not", "anyOf"), _Judge._is_wide),
    **dict.fromkeys(_ANCHORS, _Judge._is_unused),
}

# ── kinds ────────────────────────────────────────────────────────────────────────────────────────


def _kinds_of(part: Schema) -> Kinds:
    """The kinds that `type`, `enum` and `const` allow."""
    kinds = ALL_KINDS
    if "type" in part:
        kinds &= _named_kinds(part["type"])
    if isinstance(part.get("enum"), list):
        kinds &= frozenset().union(*map(_kinds_of_value, part["enum"]))
    if "const" in part:
        kinds &= _kinds_of_value(part["const"])
    return kinds


def _named_kinds(names: Any) -> Kinds:
    """The kinds that `type` allows; none where its value is none of JSON schema."""
    named = [names] if isinstance(names, str) else _list(names)
    return frozenset(
        kind for name in named if isinstance(name, str) for kind in (_NUMBERS if name == "number" else {name})
    )


def _kinds_of_value(value: Any) -> Kinds:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return _NUMBERS  # draft 4 and the others differ about 1.0
        case str():
            return _STRING
    return _ARRAY if isinstance(value, list) else _OBJECT


# ── values of keywords ───────────────────────────────────────────────────────────────────────────


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(part: Schema, key: str, otherwise: int) -> int:
    return part[key] if _is_count(part.get(key)) else otherwise


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _required(part: Schema) -> set[str]:
    return {name for name in _list(part.get("required")) if isinstance(name, str)}


def _n_most_properties(part: Schema) -> float:
    """The most properties that an object can have, from the names that are declared."""
    is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
    declared = part.get("properties", {})
    return len(declared) if is_closed and isinstance(declared, dict) else float("inf")


# ── the whole document ───────────────────────────────────────────────────────────────────────────


def _has_draft(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("$schema"), str)


def _members(document: Any) -> Iterator[tuple[str, Any]]:
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
