"""The limits of grammars, schemas and regular expressions at the door, and the text that a schema travels as."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import cases
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import MAX_BYTES, MAX_DEPTH, schema_text
from worker.apis.core.rules import check_sampling
from worker.wire.jobs import SamplingParams


def told(**given: str) -> list[tuple[str, str]]:
    """(field, constraint) of every error; a schema is given as JSON in any spelling."""
    schema = schema_text(given["json_schema"].encode()) if "json_schema" in given else None
    problems = Problems()
    request = msgspec.structs.replace(SamplingParams(), **given | {"json_schema": schema})
    check_sampling(problems, request, 16, None)
    return [(error.field, error.constraint) for error in problems.found]


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["grammar", "regex"])
@cases
def test_a_text_has_a_size_and_no_nul_and_is_not_read_here(field: str, text: str, broken: str | None) -> None:
    assert told(**{field: text}) == ([] if broken is None else [(field, broken)])


@cases
def test_a_request_has_one_constraint_and_the_last_of_several_is_reported(
    given: list[str], expected: list[str]
) -> None:
    assert told(**dict.fromkeys(given, "{}")) == [tuple(expected)]


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int, value: Any) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"items": value}
    return {"default": value}


@pytest.mark.parametrize("value", ["[[[{{{", "]]]", '"[', '\\"{', "\\", "", 1, True, None])
def test_depth_is_that_of_objects_and_arrays_wherever_they_are(value: Any) -> None:
    assert told(json_schema=json.dumps(nested(MAX_DEPTH - 1, value))) == []
    assert told(json_schema=json.dumps(nested(MAX_DEPTH, value))) == [("json_schema", "max_depth(64)")]


def test_length_is_that_of_compact_utf8() -> None:
    rest = len('{"title":""}')
    longest = {"title": "世" * ((MAX_BYTES - rest) // 3)}
    assert told(json_schema=json.dumps(longest, indent=9)) == []
    assert told(json_schema=json.dumps({"title": "x" * (MAX_BYTES - rest)})) == []
    assert told(json_schema=json.dumps({"title": "x" * (MAX_BYTES - rest + 1)})) == [
        ("json_schema", f"max_length({MAX_BYTES})")
    ]


def test_null_is_no_schema_and_true_is_one() -> None:
    assert schema_text(b"null") is None
    assert schema_text(b" true ") == "true"


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

texts = st.text('[]{}"\\:, a\0\x01\xff世', max_size=6)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
schemas = st.dictionaries(texts, values, max_size=4)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@pytest.mark.long
@given(schemas, st.booleans(), st.none() | st.integers(0, 3))
@settings(max_examples=300)
def test_the_text_says_what_was_sent_in_its_order_however_it_was_spelled(
    schema: dict[str, Any], is_ascii: bool, indent: int | None
) -> None:
    text = schema_text(json.dumps(schema, ensure_ascii=is_ascii, indent=indent).encode())
    assert text is not None
    assert json.dumps(json.loads(text)) == json.dumps(schema)


@pytest.mark.long
@given(schemas, st.integers(MAX_DEPTH - 6, MAX_DEPTH))
@settings(max_examples=300)
def test_a_schema_is_too_deep_by_its_objects_and_arrays_alone(schema: dict[str, Any], n_around: int) -> None:
    whole = nested(n_around, schema)
    assert bool(told(json_schema=json.dumps(whole))) == (depth_of(whole) > MAX_DEPTH)


def is_plain(value: Any) -> bool:
    """True if no object in it has a name twice; objects are tuples of members here."""
    if isinstance(value, tuple):
        return len({name for name, _ in value}) == len(value) and all(is_plain(inner) for _, inner in value)
    return not isinstance(value, list) or all(map(is_plain, value))


def spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{json.dumps(name)} : {spelled(inner)}" for name, inner in value) + "}"
    return "[" + ",".join(map(spelled, value)) + "]" if isinstance(value, list) else json.dumps(value)


members = st.recursive(
    st.none() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(texts, inner), max_size=3).map(tuple),
    max_leaves=12,
)


@pytest.mark.long
@given(st.lists(st.tuples(st.sampled_from(["a", '"', "\\"]), members), max_size=3).map(tuple))
@settings(max_examples=500)
def test_a_name_given_twice_is_refused_wherever_it_is_and_nothing_else(value: Any) -> None:
    raw = spelled(value).encode()
    if is_plain(value):
        assert schema_text(raw) is not None
    else:
        with pytest.raises(msgspec.ValidationError, match="a name is given twice"):
            schema_text(raw)


def test_any_depth_that_can_be_read_is_reported() -> None:
    for depth in range(MAX_DEPTH, 2_000, 61):
        with suppress(RecursionError):
            assert told(json_schema='{"not":' * depth + "{}" + "}" * depth) == [("json_schema", "max_depth(64)")]
