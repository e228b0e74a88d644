"""The constraint on an answer, in the spellings of OpenAI, vLLM and llama-server."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec

from worker.apis.core.bodies import MAX_ERRORS, Problems
from worker.apis.core.errors import NotAnObject
from worker.wire.encoding import doc, encode_json
from worker.wire.jobs import SchemaText

CONSTRAINTS = ("grammar", "json_schema", "regex")
MAX_BYTES = 65_536
"""The most bytes of a constraint in UTF-8, and of a schema as compact JSON."""
MAX_DEPTH = 64
"""The deepest nesting of objects and arrays in a schema. A parser of schemas recurses once for each level."""

_schema_decoder = msgspec.json.Decoder(dict[str, Any] | bool | None)

FORMATS = ("text", "json_object", "json_schema")
_ANY_OBJECT = {"type": "object"}

_LARK_HEADER = "%llguidance"


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that the answer must satisfy; the worker enforces it whether `strict` is true or not."""

    name: str | None = None
    description: str | None = None
    schema: Annotated[dict[str, Any] | None, doc("Same as in /execute.")] = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer that a client asks for."""

    type: Annotated[str, doc("Any text, any JSON object, or JSON that a schema allows.", enum=list(FORMATS))]
    json_schema: Annotated[NamedSchema | None, doc("Only with `json_schema`.")] = None
    schema: Annotated[dict[str, Any] | None, doc("Only with `json_object`, as in llama-server.")] = None


_JSON = dict[str, Any] | str | None
_CHOICES = doc("The answer is one of these texts.", minItems=1)
_GRAMMAR = doc("Same as in /execute; a text without `::=` is Lark.")


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's form of a constraint: at most one of the first five fields. None of the options is supported."""

    json: Annotated[_JSON, doc("A JSON schema as an object or as text.")] = None
    regex: Annotated[str | None, doc("Same as in /execute.")] = None
    choice: Annotated[list[str] | None, _CHOICES] = None
    grammar: Annotated[str | None, _GRAMMAR] = None
    json_object: Annotated[bool | None, doc("Any JSON object.")] = None
    structural_tag: Annotated[dict[str, Any] | str | None, doc("Not supported.", const=None)] = None
    whitespace_pattern: Annotated[str | None, doc("Not supported.", const=None)] = None
    disable_any_whitespace: Annotated[bool | None, doc("Not supported.", enum=[False, None])] = None
    disable_additional_properties: Annotated[bool | None, doc("Not supported.", enum=[False, None])] = None


_OPTIONS = ("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


class ConstrainedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that constrain an answer. `grammar` and `regex` are the same as in `/execute`. A request has at most
    one of all these."""

    response_format: ResponseFormat | None = None
    json_schema: Annotated[dict[str, Any] | bool | None, doc("Same as in /execute.")] = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Annotated[_JSON, doc("Older spelling of structured_outputs.json.")] = None
    guided_regex: Annotated[str | None, doc("Older spelling of structured_outputs.regex.")] = None
    guided_choice: Annotated[list[str] | None, _CHOICES] = None
    guided_grammar: Annotated[str | None, _GRAMMAR] = None


def read_format(
    problems: Problems, place: str, form: Mapping[str, Any] | None, kinds: Sequence[str]
) -> ResponseFormat | None:
    """The form of the answer in another protocol: a type, and the schema beside it. If there is only one kind, a schema
    must be there whatever the type says."""
    if form is None:
        return None
    kind, schema = form.get("type"), form.get("schema")
    if kind not in kinds:
        problems.add(f"{place}.type", "one_of", f"must be {'one of ' if len(kinds) > 1 else ''}{', '.join(kinds)}")
    if (kind == "json_schema" or len(kinds) == 1) and not isinstance(schema, dict):
        problems.add(f"{place}.schema", "required", "is missing; send the schema of the answer")
    elif kind in kinds:
        named = NamedSchema(schema=schema) if kind == "json_schema" else None
        return ResponseFormat(type=str(kind), json_schema=named)
    return None


class Wanted(NamedTuple):
    """The constraint on an answer as a field of `/execute`."""

    field: str
    text: str | None
    """None if the client's field has an error."""
    place: str
    """The client's field."""


def constraint_of(problems: Problems, request: ConstrainedRequest, own: Mapping[str, Any]) -> Wanted | None:
    """The constraint that the request asks for. `own` has the fields of `/execute` that were sent.

    Raises: NotAnObject.
    """
    outputs = request.structured_outputs or StructuredOutputs()
    for name in _OPTIONS:
        if getattr(outputs, name) not in (None, False):
            text = "is not supported by this worker; remove it"
            problems.add(f"structured_outputs.{name}", "unsupported", text)
    given = {
        place: getattr(outputs if "." in place else request, place.rpartition(".")[2], own.get(place))
        for place in _SPELLINGS
    }
    given = {place: value for place, value in given.items() if not _asks_for_nothing(place, value)}
    if not given:
        return None
    exclusive(problems, [*given])
    place, value = next(iter(given.items()))
    field, read = _SPELLINGS[place]
    return Wanted(field, read(problems, place, value), place)


def _asks_for_nothing(place: str, value: object) -> bool:
    is_text = isinstance(value, ResponseFormat) and value.type == "text"
    return value is None or is_text or (value is False and place == "structured_outputs.json_object")


def _text(problems: Problems, place: str, value: str) -> str:  # noqa: ARG001 - a Read
    return value


def _schema(problems: Problems, place: str, value: object) -> SchemaText:  # noqa: ARG001 - a Read
    """Raises: NotAnObject if the schema is nested so deeply that it cannot be encoded again."""
    try:
        return SchemaText(encode_json(value).decode())
    except RecursionError:
        raise NotAnObject("the body is nested too deeply") from None


def _json(problems: Problems, place: str, value: dict[str, Any] | str) -> SchemaText | None:
    """A schema, or the text of one."""
    if not isinstance(value, str):
        return _schema(problems, place, value)
    try:
        msgspec.json.decode(value)
        schema = schema_text(value.encode())
        fault = "is the JSON text null, not a schema; send a schema" if schema is None else ""
    except msgspec.ValidationError as error:
        schema, fault = None, f"is JSON text but not a schema: {error}"
    except (msgspec.DecodeError, RecursionError):
        schema, fault = None, "is text but not JSON; send a schema as an object or as JSON text"
    if fault:
        problems.add(place, "json_schema", fault)
    return schema


def _choice(problems: Problems, place: str, value: list[str]) -> str | None:
    """The regular expression that matches exactly these texts."""
    if not value:
        problems.add(place, "non_empty", "must not be empty")
    for at, text in islice(enumerate(value), MAX_ERRORS):
        if not text:
            problems.add(f"{place}[{at}]", "non_empty", "must not be empty")
    return "|".join(map(re.escape, value)) if value and all(value) else None


def _grammar(problems: Problems, place: str, value: str) -> str:  # noqa: ARG001 - a Read
    """A grammar in the notation of `/execute`. vLLM's clients send Lark without a header; a text without `::=` is
    Lark."""
    is_lark = "::=" not in value and value.strip() and not value.lstrip().startswith(_LARK_HEADER)
    return f"{_LARK_HEADER} {{}}\n{value}" if is_lark else value


def _format(problems: Problems, place: str, value: ResponseFormat) -> SchemaText | None:
    schema: object = None
    match value.type:
        case "json_object":
            schema = value.schema or _ANY_OBJECT
        case "json_schema":
            schema = None if value.json_schema is None else value.json_schema.schema
            if schema is None:
                problems.add(f"{place}.json_schema.schema", "required", "is missing; send the schema of the answer")
        case _:
            problems.add(f"{place}.type", "one_of", f"must be one of {', '.join(FORMATS)}")
    return None if schema is None else _schema(problems, place, schema)


Read = Callable[[Problems, str, Any], str | None]
"""(problems, field, its value) → the constraint's text; None if it asks for nothing or has an error."""

_SPELLINGS: Mapping[str, tuple[str, Read]] = {
    "response_format": ("json_schema", _format),
    "grammar": ("grammar", _text),
    "json_schema": ("json_schema", _schema),
    "regex": ("regex", _text),
    "guided_json": ("json_schema", _json),
    "guided_regex": ("regex", _text),
    "guided_choice": ("regex", _choice),
    "guided_grammar": ("grammar", _grammar),
    "structured_outputs.json": ("json_schema", _json),
    "structured_outputs.regex": ("regex", _text),
    "structured_outputs.choice": ("regex", _choice),
    "structured_outputs.grammar": ("grammar", _grammar),
    "structured_outputs.json_object": ("json_schema", lambda problems, place, _: _schema(problems, place, _ANY_OBJECT)),
}
"""The client's fields, in the order in which they are reported: the field of `/execute` that each becomes."""


def exclusive(problems: Problems, places: Sequence[str]) -> None:
    """Allow one of these fields only. The last is reported."""
    if len(places) > 1:
        *others, last = places
        text = f"cannot go with {' and '.join(others)}; send one of them"
        problems.add(last, f"exclusive({','.join(others)})", text)


def check_constraints(problems: Problems, given: Mapping[str, str]) -> None:
    """Add the first limit that each constraint breaks, in the order of the fields. Their texts are never echoed."""
    for name, text in given.items():
        if name == [*given][-1]:
            exclusive(problems, [*given])
        if name == "json_schema":
            _check_schema(problems, text.encode())
        else:
            _check_text(problems, name, text)


def _check_text(problems: Problems, field: str, text: str) -> None:
    n_bytes = len(text.encode())
    if not text.strip():
        problems.add(field, "non_empty", "must not be blank")
    elif n_bytes > MAX_BYTES:
        problems.add(field, f"max_length({MAX_BYTES})", f"must be at most {MAX_BYTES} bytes (got {n_bytes})")
    elif "\0" in text:
        problems.add(field, "no_nul", "must not contain NUL characters")


def _check_schema(problems: Problems, text: bytes) -> None:
    if len(text) > MAX_BYTES:
        what = f"must be at most {MAX_BYTES} bytes as compact JSON (got {len(text)})"
        problems.add("json_schema", f"max_length({MAX_BYTES})", what)
    elif (depth := depth_of(msgspec.json.decode(text))) > MAX_DEPTH:
        what = f"must be nested at most {MAX_DEPTH} deep (got {depth})"
        problems.add("json_schema", f"max_depth({MAX_DEPTH})", what)


def depth_of(value: object) -> int:
    """The deepest nesting of objects and arrays in a JSON value. An encoder or decoder recurses once for each level."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        members = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level, depth = [inner for each in members for inner in each if isinstance(inner, dict | list)], depth + 1
    return depth


def schema_text(raw: bytes) -> SchemaText | None:
    """The schema in a text that has proved to be JSON; None for null.

    Raises: msgspec.ValidationError for another type, a number out of range or a name that is given twice.
    """
    schema = _schema_decoder.decode(raw)
    if schema is None:
        return None
    text = encode_json(schema)
    # The decoder keeps the last of members given twice, and nothing of a schema may be lost.
    if _without_escapes(text).count(b'"') != _without_escapes(raw).count(b'"'):
        raise msgspec.ValidationError("a name is given twice")
    return SchemaText(text.decode())


def _without_escapes(text: bytes) -> bytes:
    """JSON in which every quote begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")
