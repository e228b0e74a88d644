"""The internal list of tools: canonical schemas, and the text of a custom tool's call."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.apis.core.tools import TEXT_ARGUMENT, Tool, ToolUse, arguments_schema, canonical
from worker.apis.responses.events import TextArgument

KEYWORDS = st.sampled_from(["type", "description", "minimum", "x-own", "title", "default"])
DATA = st.one_of(
    st.integers(0, 3), st.text(max_size=3), st.none(), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(KEYWORDS, DATA, max_size=4),
    lambda inner: st.tuples(
        st.dictionaries(KEYWORDS, DATA, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.lists(inner, max_size=2),
        inner,
    ).map(lambda parts: {**parts[0], "properties": parts[1], "anyOf": parts[2], "items": parts[3]}),
    max_leaves=8,
)


def shuffled(schema: Any, draw: Any) -> Any:
    """The schema with its keywords in another order; the properties keep theirs."""
    if not isinstance(schema, dict):
        return schema
    names = draw(st.permutations(list(schema)))
    found: dict[str, Any] = {}
    for name in names:
        value = schema[name]
        if name == "properties":
            found[name] = {key: shuffled(inner, draw) for key, inner in value.items()}
        elif name == "anyOf":
            found[name] = [shuffled(inner, draw) for inner in value]
        else:
            found[name] = shuffled(value, draw) if name == "items" else value
    return found


@given(SCHEMAS, st.data())
def test_a_schema_has_one_text_whatever_the_order_of_its_keywords(schema: dict[str, Any], data: st.DataObject) -> None:
    made = canonical(schema)
    assert made == schema
    assert json.dumps(canonical(shuffled(schema, data.draw))) == json.dumps(made)
    assert json.dumps(canonical(made)) == json.dumps(made)


def test_arguments_are_an_object_also_if_the_schema_does_not_say_so() -> None:
    assert arguments_schema({}) == {"type": "object", "properties": {}}
    assert arguments_schema({"type": None, "required": ["a"]}) == {
        "type": "object",
        "properties": {},
        "required": ["a"],
    }


def test_a_choice_limits_what_is_read_and_not_what_the_prompt_has() -> None:
    tools = tuple(Tool(name=name, given_name=name, schema={}) for name in "ab")
    every, one = ToolUse(tools=tools), ToolUse(tools=tools, choice="required", only=frozenset("a"))
    assert every.for_template() == one.for_template()
    assert set(every.schemas()) == {"a", "b"}
    assert set(one.schemas()) == {"a"}
    assert ToolUse(tools=tools, choice="none").for_template() is None


@given(st.text(max_size=20), st.booleans(), st.data())
def test_the_text_of_a_custom_tool_comes_out_of_its_json(text: str, is_ascii: bool, data: st.DataObject) -> None:
    arguments = json.dumps({TEXT_ARGUMENT: text}, ensure_ascii=is_ascii)
    edges = sorted({0, len(arguments), *data.draw(st.lists(st.integers(0, len(arguments)), max_size=10))})
    argument = TextArgument()
    found = "".join(argument.push(arguments[begin:end]) for begin, end in itertools.pairwise(edges))
    assert found + argument.finish() == text


def test_arguments_of_another_form_are_given_as_they_are() -> None:
    for arguments, expected in (('{"text": "x"}', '{"text": "x"}'), ("[1", "[1"), ('{"a": 1, "input": "x"}', "x")):
        argument = TextArgument()
        assert "".join(map(argument.push, arguments)) + argument.finish() == expected
