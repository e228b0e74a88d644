"""Calls in chats: requests with tools, and answers as messages and as chunks, however their text comes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.apis.asking import ASKED, TERMS, body, entry, talk
from tests.apis.wires import CHAT, Told, pieces
from tests.formats.writing import pieces_of
from tests.tables import cases
from worker.apis.chat.request import read_chat
from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.events import Piece
from worker.apis.core.request import Request, Terms
from worker.wire.chat_format import HERMES, ReasoningFormat

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, parameters: object = None, **members: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **members}}


def read(terms: Terms = TERMS, **fields: Any) -> Request:
    return read_chat(body(ASKED | fields), terms)


def offering(tools: Mapping[str, object]) -> list[dict[str, Any]]:
    return [function(name, schema) for name, schema in tools.items()]


# ── requests ─────────────────────────────────────────────────────────────────────────────────────

NAMED = {"type": "function", "function": {"name": "b"}}


@cases
def test_a_choice_says_which_calls_may_and_must_come(choice: object, is_required: bool, names: list[str]) -> None:
    use = read(tools=[function("a"), function("b")], tool_choice=choice).reading.use
    asked = use.for_engine()
    assert asked is not None
    assert (asked.is_required, [tool.name for tool in asked.tools]) == (is_required, names)
    assert list(use.schemas()) == names


def test_the_prompt_has_all_tools_in_one_form_unless_none_may_be_called() -> None:
    bare = read(tools=[function("a"), {"function": {"name": "b", "parameters": {"required": [], "type": "object"}}}])
    full = read(
        tools=[
            function("a", {"type": "object", "properties": {}}, description="", strict=True),
            function("b", {"properties": {}, "type": "object", "required": []}),
        ],
        tool_choice=NAMED,
    )
    assert talk(bare) == talk(full)
    tools = talk(bare).tools
    assert tools is not None
    assert [tool["function"]["name"] for tool in msgspec.json.decode(tools)] == ["a", "b"]
    assert talk(read(tools=[function("a")], tool_choice="none")) == talk(read())


def test_other_kinds_of_tools_are_left_out_and_named() -> None:
    others = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "patch"}}, {"type": "mcp", "name": "x,y"}]
    generation = read(tools=[*others, function("a")])
    assert generation.ignored_tools == ("web_search", "patch", "x%2Cy")
    assert [tool.name for tool in generation.reading.use.tools] == ["a"]
    assert read(tools=others).reading.use.for_engine() is None


def test_one_call_at_most_if_calls_must_not_be_parallel() -> None:
    for value, is_parallel in ((None, True), (True, True), (False, False)):
        asked = read(tools=[function("a")], parallel_tool_calls=value).reading.use.for_engine()
        assert asked is not None
        assert asked.is_parallel == is_parallel


@pytest.mark.parametrize("fields", [{"regex": "a"}, {"grammar": 'root ::= "a"'}])
def test_a_text_of_a_grammar_cannot_be_asked_for_beside_tools(fields: dict[str, Any]) -> None:
    with pytest.raises(FieldsRefused) as raised:
        read(tools=[function("a")], **fields)
    assert [error.field for error in raised.value.errors] == list(fields)
    assert read(tools=[function("a")], tool_choice="none", **fields).reading.use.for_engine() is None


def test_a_schema_beside_tools_is_that_of_the_text() -> None:
    schema: dict[str, Any] = {"response_format": {"type": "json_object"}, "tools": [function("a")]}
    assert read(**schema).params.json_schema is not None
    assert read(**schema, tool_choice="required").params.json_schema is None


REASONING = replace(
    TERMS,
    template_keys=frozenset({"enable_thinking"}),
    can_limit_reasoning=True,
    chat_format=msgspec.structs.replace(HERMES, reasoning=ReasoningFormat(begin="<think>", end="</think>")),
)


@cases
def test_an_effort_or_a_budget_limits_the_reasoning(
    fields: dict[str, Any], budget: int | None, variables: dict[str, Any]
) -> None:
    asked = read(REASONING, **fields)
    assert asked.reasoning_budget == budget
    assert msgspec.json.decode(talk(asked).template_kwargs) == variables
    assert asked.ignored == ()
    plain = replace(TERMS, template_keys=frozenset())
    own = {name for name in fields if name != "chat_template_kwargs"}
    without = {name: value for name, value in fields.items() if name in own}
    assert {*read(plain, **without).ignored} == own


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens", "thinking"])
def test_a_limit_that_the_engine_cannot_keep_is_named_even_if_the_template_turns_reasoning_off(name: str) -> None:
    """Apriel's markers of reasoning are several tokens each."""
    unlimited = replace(REASONING, can_limit_reasoning=False)
    fields = {"reasoning_effort": "none", name: {"budget_tokens": 9} if name == "thinking" else 9}
    place = "thinking.budget_tokens" if name == "thinking" else name
    assert read(unlimited, **fields).ignored == (place,)
    assert read(REASONING, **fields).ignored == ()


# ── answers ──────────────────────────────────────────────────────────────────────────────────────

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
FENCED = '```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```'


@pytest.mark.parametrize("text", [CALL, FENCED])
def test_a_call_is_read_unless_none_may_be_called(text: str) -> None:
    tools = CHAT.offering({"weather": WEATHER})
    called = Told("", "", [("weather", {"city": "Oslo"})], "tool_calls")
    assert CHAT.both(*pieces(*text), tools=tools) == [called] * 2
    plain = Told(text, "", [], "stop")
    assert CHAT.both(*pieces(*text), tools=tools, tool_choice="none") == [plain] * 2
    found = CHAT.both(*pieces(*text), tools=tools, terms=replace(TERMS, reads_fenced=False))
    assert found == [called if text == CALL else plain] * 2


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), st.booleans()), max_size=6))
def test_reasoning_stays_in_the_text_if_a_request_wants_it(drawn: list[tuple[str, bool]]) -> None:
    expected, was_thought = "", False
    for text, is_thought in drawn:
        mark = "" if is_thought == was_thought else "<think>" if is_thought else "</think>"
        expected, was_thought = expected + mark + text, is_thought
    assert CHAT.both(*pieces(*drawn), reasoning_format="none") == [Told(expected, "", [], "stop")] * 2


# ── log-probabilities ────────────────────────────────────────────────────────────────────────────


def listed(entries: Sequence[dict[str, Any]]) -> str:
    return b"".join(bytes(each["bytes"]) for each in entries).decode()


@given(
    before=st.sampled_from(["", "It rains.", "é 🙂 ", "  a\n", "weather city", '{"city": "Oslo"}']),
    calls=st.lists(st.sampled_from([CALL, FENCED]), max_size=2),
    after=st.sampled_from(["", " Done.", "🙂", "Oslo", "}"]),
    data=st.data(),
)
@example(before="a", calls=[CALL], after="a", data=None)
def test_the_listed_tokens_are_those_of_the_content(
    before: str, calls: list[str], after: str, data: st.DataObject | None
) -> None:
    text = before + "".join(calls) + after
    texts = [*text] if data is None else [piece for piece in data.draw(pieces_of(text)) if piece]
    drawn = [Piece(text, number, [entry(text, number)], number + 1) for number, text in enumerate(texts)]
    told = CHAT.whole(*drawn, tools=CHAT.offering({"weather": WEATHER}), logprobs=True)
    assert listed(told["logprobs"]["content"]) == (told["message"]["content"] or "")
