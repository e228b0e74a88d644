"""Every spelling of a constraint becomes one of `/execute`'s, and every refusal names the field that was sent."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.asking import ASKED, TERMS, body
from tests.tables import cases
from worker.apis.chat.request import read_chat
from worker.apis.completions.request import read_completion
from worker.apis.core.bodies import FieldError, FieldsRefused
from worker.apis.core.errors import respelled
from worker.apis.core.request import Request

SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}
SCHEMA_TEXT = '{"type":"object","properties":{"z":{},"a":{}}}'
LARK = 'start: "a"'
GBNF = 'root ::= "a"'


def nested(path: str, value: object) -> dict[str, Any]:
    """The request's fields that have the value at a place."""
    name, _, inner = path.partition(".")
    return {name: nested(inner, value) if inner else value}


SPELLINGS: list[tuple[str, object, str, str]] = [
    ("json_schema", SCHEMA, "json_schema", SCHEMA_TEXT),
    ("grammar", GBNF, "grammar", GBNF),
    ("regex", "a+", "regex", "a+"),
    *(
        (f"{prefix}{name}", value, field, text)
        for prefix in ("guided_", "structured_outputs.")
        for name, value, field, text in (
            ("json", SCHEMA, "json_schema", SCHEMA_TEXT),
            ("json", json.dumps(SCHEMA), "json_schema", SCHEMA_TEXT),
            ("json", "true", "json_schema", "true"),
            ("regex", "a+", "regex", "a+"),
            ("choice", ["yes", "n.o"], "regex", r"yes|n\.o"),
            ("grammar", GBNF, "grammar", GBNF),
            ("grammar", LARK, "grammar", f"%llguidance {{}}\n{LARK}"),
            ("grammar", f"%llguidance {{}}\n{LARK}", "grammar", f"%llguidance {{}}\n{LARK}"),
        )
    ),
    ("structured_outputs.json_object", True, "json_schema", '{"type":"object"}'),
]
"""(where, what, the field of `/execute`, its value)"""
FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"type": "json_object"}, '{"type":"object"}'),
    ({"type": "json_object", "schema": SCHEMA}, SCHEMA_TEXT),
    ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}, SCHEMA_TEXT),
]
IDLE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"structured_outputs": {}},
    {"structured_outputs": {"json": None, "disable_any_whitespace": False, "json_object": False}},
]
places = sorted({path for path, *_ in SPELLINGS} - {"structured_outputs.json_object"})


def read(**fields: Any) -> Request:
    """The same of both routes."""
    chat = read_chat(body(ASKED | {"max_tokens": 16} | fields), TERMS)
    completion = read_completion(body({"prompt": "a", "max_tokens": 16} | fields), TERMS)
    assert (completion.params, completion.ignored) == (chat.params, chat.ignored)
    return chat


def refused(**fields: Any) -> list[FieldError]:
    with pytest.raises(FieldsRefused) as raised:
        read(**fields)
    for error in raised.value.errors:
        assert error.message.startswith(error.field), "each names its place"
    return raised.value.errors


def constraints(request: Request) -> dict[str, str]:
    fields = {name: getattr(request.params, name) for name in ("grammar", "json_schema", "regex")}
    return {name: text for name, text in fields.items() if text is not None}


@pytest.mark.parametrize(("path", "value", "field", "text"), SPELLINGS)
@pytest.mark.parametrize("idle", [{}, *IDLE])
def test_each_spelling_is_a_constraint_of_execute(
    path: str, value: object, field: str, text: str, idle: dict[str, Any]
) -> None:
    asked = read(**(idle | nested(path, value)))
    assert constraints(asked) == {field: text}
    assert asked.ignored == ()


@pytest.mark.parametrize(("wanted", "text"), FORMATS)
def test_each_format_is_a_schema(wanted: dict[str, Any], text: str) -> None:
    assert constraints(read(response_format=wanted)) == {"json_schema": text}


@pytest.mark.parametrize("idle", IDLE)
def test_a_field_that_asks_for_nothing_constrains_nothing(idle: dict[str, Any]) -> None:
    assert read(**idle) == read()


def value_of(path: str) -> object:
    return next(value for where, value, *_ in SPELLINGS if where == path)


@given(st.lists(st.sampled_from(["response_format", *places]), min_size=2, max_size=4, unique=True))
def test_two_constraints_are_one_error_that_names_them_all(paths: list[str]) -> None:
    fields: dict[str, Any] = {}
    for path in paths:
        value = {"type": "json_object"} if path == "response_format" else value_of(path)
        for name, inner in nested(path, value).items():
            fields[name] = fields[name] | inner if name in fields else inner
    (error,) = refused(**fields)
    assert error.field in paths
    assert error.constraint.startswith("exclusive(")
    assert all(re.search(rf"(^| ){re.escape(path)}( |;)", error.message) for path in paths)


@pytest.mark.parametrize(("path", "value", "field", "text"), SPELLINGS)
def test_refusals_of_rules_and_of_the_engine_name_the_field_that_was_sent(
    path: str, value: object, field: str, text: str
) -> None:
    generation = read(**nested(path, value))
    ours = FieldError(field=field, constraint="supported", message=f"{field}: it is too large")
    (error,) = respelled([ours], generation.names)
    assert (error.field, error.message) == (path, f"{path}: it is too large")
    (error,) = refused(**nested(path, value), ignore_eos=True)
    assert (error.field, error.constraint) == ("ignore_eos", f"exclusive({path})")
    assert f"cannot go with {path}, " in error.message
    assert field == path or not re.search(rf"(?<!\.){field}\b", error.message.replace(path, ""))


@pytest.mark.parametrize("prefix", ["guided_", "structured_outputs."])
@cases
def test_a_wrong_constraint_is_refused_by_its_place(
    prefix: str, name: str, value: object, inside: str, constraint: str
) -> None:
    (error,) = refused(**nested(prefix + name, value))
    assert (error.field, error.constraint) == (f"{prefix}{name}{inside}", constraint)


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), min_size=1, max_size=5), st.text())
def test_a_choice_is_one_of_its_texts_and_nothing_else(texts: list[str], other: str) -> None:
    """Python's `re` judges here; tests/constraints/test_constraint.py asks the engine."""
    found = constraints(read_chat(msgspec.json.encode(ASKED | {"guided_choice": texts}), TERMS))["regex"]
    assert all(re.fullmatch(found, text) for text in texts)
    assert bool(re.fullmatch(found, other)) == (other in texts)
