"""Some values are a conversation and are read; the others are refused with their places."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.pool.vectors import conversation
from tests.tables import cases
from worker.apis.core.bodies import MAX_ERRORS, FieldsRefused
from worker.apis.core.constraint_fields import MAX_DEPTH
from worker.apis.core.conversation import MAX_CALLS, MAX_MESSAGES, ROLES
from worker.wire.prompts import Conversation

MAX_CHARS = 1000
HI = {"role": "user", "content": "hi"}


def made(messages: object, **rest: Any) -> list[dict[str, Any]]:
    """The messages that the engine gets."""
    read: list[dict[str, Any]] = msgspec.json.decode(conversation(messages, max_chars=MAX_CHARS, **rest).messages)
    return read


def refused(messages: object, **rest: Any) -> list[tuple[str, str]]:
    """Field and constraint of each error."""
    with pytest.raises(FieldsRefused) as caught:
        conversation(messages, max_chars=MAX_CHARS, **rest)
    assert all(error.message.startswith(error.field) for error in caught.value.errors), "each names its place"
    return [(error.field, error.constraint) for error in caught.value.errors]


def calling(arguments: object, **rest: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}, **rest}]}


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", ROLES)
def test_every_role_may_say_a_text_and_an_empty_one(role: str) -> None:
    messages = [{"role": role, "content": "x"}, {"role": role, "content": ""}]
    assert made(messages) == messages


def test_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert made([{"role": "user", "content": parts}, {"role": "user", "content": []}]) == [
        {"role": "user", "content": "a\nb"},
        {"role": "user", "content": ""},
    ]


@cases
def test_what_a_call_is_called_with_is_an_object_where_it_can_be_one(sent: object, read: object) -> None:
    if read is None:
        assert refused([HI, calling(sent)]) == [("messages", f"length(1..={MAX_CHARS})")]
        return
    limit = 10_000
    found = msgspec.json.decode(conversation([calling(sent)], max_chars=limit).messages)[0]
    function = {"name": "f", "arguments": read}
    assert found == {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def test_a_whole_turn_with_a_tool_keeps_what_templates_read() -> None:
    asked = calling("{}", id="call_1", type="function", index=0)
    answered = {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "7"}
    thought = {"role": "assistant", "content": "It is 7.", "reasoning_content": "hm", "refusal": None, "audio": None}
    first, second, third = made([asked, answered, thought])
    assert first["tool_calls"] == [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {}}}]
    assert second == answered
    assert third == {"role": "assistant", "content": "It is 7.", "reasoning_content": "hm"}


@pytest.mark.parametrize("content", [{}, {"content": None}])
@pytest.mark.parametrize(
    ("rest", "is_text"),
    [({}, True), ({"tool_calls": []}, True), ({"reasoning": "hm"}, True), (calling("{}"), False)],
)
def test_an_assistants_missing_content_is_an_empty_text_but_beside_calls(
    content: dict[str, Any], rest: dict[str, Any], is_text: bool
) -> None:
    (found,) = made([{**rest, "role": "assistant", **content}])
    assert found["content"] == ("" if is_text else None)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_last_message_may_be_the_beginning_of_the_answer(before: int) -> None:
    last = {"role": "assistant", "content": "So"}
    plain = conversation([*[HI] * before, last], continue_final_message=True, max_chars=MAX_CHARS)
    assert conversation([*[HI] * before, last | {"prefix": True}], max_chars=MAX_CHARS) == plain
    assert not plain.add_generation_prompt
    assert refused([*[HI] * before, HI | {"prefix": True}]) == [
        (f"messages[{before}].prefix", "last_message(assistant)")
    ]
    assert refused([HI | {"prefix": "yes"}]) == [("messages[0].prefix", "type")]


def test_two_older_names_are_understood() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert made([old]) == made([calling("{}")])
    assert made([{"role": "assistant", "content": "x", "reasoning": "hm"}])[0]["reasoning_content"] == "hm"


def test_the_rest_travels_beside_the_messages() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    found = conversation(
        [HI, {"role": "assistant", "content": "It"}],
        tools=tools,
        template_kwargs={"enable_thinking": False},
        add_generation_prompt=False,
        continue_final_message=True,
        max_chars=MAX_CHARS,
    )
    assert (msgspec.json.decode(found.tools or ""), found.template_kwargs) == (tools, '{"enable_thinking":false}')
    assert (found.add_generation_prompt, found.continue_final_message) == (False, True)
    plain = conversation([HI], max_chars=MAX_CHARS)
    assert plain == Conversation(messages='[{"role":"user","content":"hi"}]')


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@cases
def test_what_is_wrong_with_a_message_is_reported_with_its_place(message: object, place: str, constraint: str) -> None:
    assert (f"messages[2]{place}", constraint) in refused([HI, HI, message])


def test_each_wrong_message_is_reported_but_no_more_than_an_answer_holds() -> None:
    assert refused([HI, {"role": "root", "content": None}, HI, 7]) == [
        ("messages[1].role", "role"),
        ("messages[1].content", "required"),
        ("messages[3]", "type"),
    ]
    assert len(refused([7] * MAX_MESSAGES)) == MAX_ERRORS
    assert len(refused([{"role": "user", "content": [{"type": "x"}] * 10_000}])) == MAX_ERRORS


@cases
def test_what_is_wrong_with_all_of_them(messages: object, constraint: str) -> None:
    assert refused(messages) == [("messages", constraint)]


def test_the_limit_is_reported_with_both_numbers_and_counts_characters() -> None:
    world = [{"role": "user", "content": "世" * 500}] * 2
    assert len(made(world)) == 2
    with pytest.raises(FieldsRefused, match=r"^messages must be at most 1000 characters together \(got 1002\)$"):
        conversation([*world, HI], max_chars=MAX_CHARS)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_nothing_is_nested_deeper_than_who_reads_it_next_can_go() -> None:
    deepest, deeper = nested(MAX_DEPTH), nested(MAX_DEPTH + 1)
    assert made([HI, calling(deepest)], template_kwargs=deepest, tools=[nested(MAX_DEPTH - 1)])
    assert refused([HI, calling(deeper)], template_kwargs=deeper, tools=[deepest]) == [
        ("messages[1].tool_calls[0].function.arguments", f"max_depth({MAX_DEPTH})"),
        ("tools", f"max_depth({MAX_DEPTH})"),
        ("chat_template_kwargs", f"max_depth({MAX_DEPTH})"),
    ]
    assert refused([HI, calling(nested(900))]) == [
        ("messages[1].tool_calls[0].function.arguments", f"max_depth({MAX_DEPTH})")
    ]


@cases
def test_what_is_wrong_beside_the_messages(given: dict[str, Any], error: list[str]) -> None:
    assert tuple(error) in refused([HI], **given)


def test_a_message_has_so_many_calls_and_no_more() -> None:
    (call,) = calling("{}")["tool_calls"]
    assert made([{"role": "assistant", "tool_calls": [call] * MAX_CALLS}])
    errors = refused([{"role": "assistant", "tool_calls": [call] * (MAX_CALLS + 1)}])
    assert errors == [("messages[0].tool_calls", f"max_count({MAX_CALLS})")]


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

SECRET = "se\u00e7ret"
texts = st.text() | st.just(SECRET)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = texts | json_values | json_values.map(lambda value: msgspec.json.encode(value).decode())
called = st.fixed_dictionaries({"name": texts, "arguments": arguments})
calls = st.fixed_dictionaries({"function": called}, optional={"id": texts, "type": st.just("function") | texts})
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", SECRET])}, optional={"text": texts})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES) | texts},
    optional={
        "content": texts | st.none() | st.lists(parts, max_size=3) | json_values,
        "name": texts | st.none(),
        "tool_calls": st.none() | st.lists(calls, max_size=2) | json_values,
        "function_call": st.none() | called,
        "tool_call_id": texts,
        "reasoning_content": texts,
        "reasoning": texts | json_values,
        "unknown": json_values,
    },
)


@given(json_values | st.lists(messages | json_values, max_size=4), st.none() | json_values, st.none() | json_values)
def test_any_json_is_refused_with_a_place_and_nothing_echoed_or_reads_again_as_it_was(
    value: object, tools: object, kwargs: object
) -> None:
    try:
        first = conversation(value, tools=tools, template_kwargs=kwargs, max_chars=MAX_CHARS)
    except FieldsRefused as refusal:
        for error in refusal.errors:
            assert error.field.startswith(("messages", "tools", "chat_template_kwargs"))
            assert SECRET not in error.field + error.constraint + error.message
        assert 1 <= len(refusal.errors) <= MAX_ERRORS  # noqa: PT017 - most values are refused, some are not
        return
    again = [msgspec.json.decode(text) for text in (first.messages, first.tools or "null", first.template_kwargs)]
    second = conversation(again[0], tools=again[1], template_kwargs=again[2], max_chars=MAX_CHARS)
    assert second == first
    assert isinstance(value, list)
    assert [message["role"] for message in again[0]] == [message["role"] for message in value]
