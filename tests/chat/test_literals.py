"""Values in Python's notation become the same values in JSON."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.chat.literals import python_json
from worker.chat.parse import Reader, message_of
from worker.wire.chat_format import CallFormat, ChatFormat

TEXTS = st.text("ab \\\n\té'\"{}[],:<>", max_size=8)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), TEXTS)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
CONTAINERS = st.lists(VALUES, max_size=3) | st.dictionaries(TEXTS, VALUES, max_size=3)
TAGGED = ChatFormat(
    calls=CallFormat(
        form="tagged",
        call_begin="<call=",
        call_end="</call>",
        name_end=">",
        parameter_begin="<p=",
        parameter_name_end=">",
        parameter_end="</p>",
    )
)


@settings(max_examples=300)
@given(CONTAINERS)
def test_what_python_writes_is_read(value: object) -> None:
    found = python_json(repr(value))
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize("text", ["", "{", "{'a'}", "{'a': }", "[1, 2", "[1] x", "{a: 1}", "__import__('os')", "[x]"])
def test_a_text_that_is_no_value_is_none(text: str) -> None:
    assert python_json(text) is None


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "object"}, "{'a': [1, None, True]}", {"a": [1, None, True]}),
        ({"type": "array"}, "['x']", ["x"]),
        ({}, "['x']", ["x"]),
        ({"type": "string"}, "['x']", "['x']"),
        ({"type": ["string", "array"]}, "['x']", "['x']"),
        ({"type": "object"}, '{"a": "it\'s"}', {"a": "it's"}),
        ({"type": "object"}, "{'a': ", "{'a': "),
    ],
)
def test_an_argument_may_be_in_pythons_notation_unless_it_may_be_a_text(
    schema: object, text: str, value: object
) -> None:
    """Templates without tojson write it."""
    reader = Reader(TAGGED, {"f": {"properties": {"x": schema}}}, new_id=str)
    message = message_of([*reader.push(f"<call=f><p=x>{text}</p></call>"), *reader.finish()])
    assert json.loads(message.calls[0].arguments) == {"x": value}
