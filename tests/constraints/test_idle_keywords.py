"""Keywords that turn nothing down are taken out, because the library refuses them by their names."""

from typing import Any

import pytest

from tests.constraints.json_texts import Refusal, Texts, texts
from worker.constraints.schema_gaps import readable

IDLE: list[dict[str, Any]] = [
    {"uniqueItems": False},
    {"uniqueItems": True, "maxItems": 1},
    {"propertyNames": True},
    {"propertyNames": {}},
    {"propertyNames": {"type": "string"}},
]
BUSY: list[dict[str, Any]] = [
    {"uniqueItems": True},
    {"uniqueItems": True, "maxItems": 2},
    {"propertyNames": {"maxLength": 3}},
    {"propertyNames": False},
]


def inside(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Schemas with the part at each place where the library reads one."""
    return [
        part,
        {"type": "object", "properties": {"a": part}, "required": ["a"]},
        {"type": "array", "items": part, "minItems": 1},
        {"anyOf": [part, {"type": "null"}]},
        {"$defs": {"a": part}, "$ref": "#/$defs/a"},
    ]


@pytest.mark.parametrize("keywords", IDLE, ids=str)
def test_a_schema_with_such_a_keyword_is_accepted_wherever_it_stands(keywords: dict[str, Any]) -> None:
    for schema in inside({"type": ["array", "object"], **keywords}):
        assert isinstance(texts(schema), Texts), schema


@pytest.mark.parametrize("keywords", BUSY, ids=str)
def test_one_that_says_something_is_refused(keywords: dict[str, Any]) -> None:
    for schema in inside({"type": ["array", "object"], **keywords}):
        assert isinstance(texts(schema), Refusal), schema


def test_a_value_that_looks_like_a_keyword_stays() -> None:
    schema = {"const": {"uniqueItems": False}, "properties": {"propertyNames": {"enum": [{"uniqueItems": False}]}}}
    assert readable(schema) == schema
