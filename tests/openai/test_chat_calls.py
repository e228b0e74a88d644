"""Calls in chats: requests with tools, and answers as messages and as chunks, however their text comes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.chat.writing import CALLING, Answer, answers, pieces_of, written
from tests.openai.asking import ASKED, HEADING, TERMS, body, entry, finish, objects, start
from worker.chat.parse import Message, Reader, message_of
from worker.openai.answers import whole
from worker.openai.chat import ChatAsked, read_chat
from worker.openai.fields import Terms
from worker.protocol.bodies import FieldsRefused
from worker.wire.chat_format import HERMES, ChatFormat, ReasoningFormat
from worker.wire.jobs import Logprob, StopReason

FORMS = [CALLING[name] for name in ("generic", "qwen3-coder", "deepseek-v3", "harmony", "llama-3")]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, parameters: object = None, **members: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **members}}


def read(terms: Terms = TERMS, **fields: Any) -> ChatAsked:
    return read_chat(body(ASKED | fields), terms)


def offering(tools: Mapping[str, object]) -> list[dict[str, Any]]:
    return [function(name, schema) for name, schema in tools.items()]


# ── requests ─────────────────────────────────────────────────────────────────────────────────────

NAMED = {"type": "function", "function": {"name": "b"}}
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "is_required", "names"),
    [
        (None, False, ["a", "b"]),
        ("auto", False, ["a", "b"]),
        ("required", True, ["a", "b"]),
        (NAMED, True, ["b"]),
        (ALLOWED, False, ["b"]),
        ({**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "required"}}, True, ["b"]),
    ],
)
def test_a_choice_says_which_calls_may_and_must_come(choice: object, is_required: bool, names: list[str]) -> None:
    use = read(tools=[function("a"), function("b")], tool_choice=choice).generation.reading.use
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
    assert bare.prompt == full.prompt
    assert bare.prompt.tools is not None
    assert [tool["function"]["name"] for tool in msgspec.json.decode(bare.prompt.tools)] == ["a", "b"]
    assert read(tools=[function("a")], tool_choice="none").prompt == read().prompt


def test_other_kinds_of_tools_are_left_out_and_named() -> None:
    others = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "patch"}}, {"type": "mcp", "name": "x,y"}]
    generation = read(tools=[*others, function("a")]).generation
    assert generation.ignored_tools == ("web_search", "patch", "x%2Cy")
    assert [tool.name for tool in generation.reading.use.tools] == ["a"]
    assert read(tools=others).generation.reading.use.for_engine() is None


def test_one_call_at_most_if_calls_must_not_be_parallel() -> None:
    for value, is_parallel in ((None, True), (True, True), (False, False)):
        asked = read(tools=[function("a")], parallel_tool_calls=value).generation.reading.use.for_engine()
        assert asked is not None
        assert asked.is_parallel == is_parallel


@pytest.mark.parametrize("fields", [{"regex": "a"}, {"grammar": 'root ::= "a"'}])
def test_a_text_of_a_grammar_cannot_be_asked_for_beside_tools(fields: dict[str, Any]) -> None:
    with pytest.raises(FieldsRefused) as raised:
        read(tools=[function("a")], **fields)
    assert [error.field for error in raised.value.errors] == list(fields)
    assert read(tools=[function("a")], tool_choice="none", **fields).generation.reading.use.for_engine() is None


def test_a_schema_beside_tools_is_that_of_the_text() -> None:
    schema: dict[str, Any] = {"response_format": {"type": "json_object"}, "tools": [function("a")]}
    assert read(**schema).generation.fields.json_schema is not None
    assert read(**schema, tool_choice="required").generation.fields.json_schema is None


REASONING = replace(
    TERMS,
    template_keys=frozenset({"enable_thinking"}),
    can_limit_reasoning=True,
    chat_format=msgspec.structs.replace(HERMES, reasoning=ReasoningFormat(begin="<think>", end="</think>")),
)


@pytest.mark.parametrize(
    ("fields", "budget", "variables"),
    [
        ({}, None, {}),
        ({"reasoning_effort": "none"}, 0, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, 0, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, 2048, {}),
        ({"reasoning_effort": "low", "thinking_token_budget": 7}, 7, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}, "thinking_budget_tokens": 8}, 8, {}),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, 0, {"enable_thinking": True}),
    ],
)
def test_an_effort_or_a_budget_limits_the_reasoning(
    fields: dict[str, Any], budget: int | None, variables: dict[str, Any]
) -> None:
    asked = read(REASONING, **fields)
    assert asked.generation.reasoning_budget == budget
    assert msgspec.json.decode(asked.prompt.template_kwargs) == variables
    assert asked.generation.ignored == ()
    plain = replace(TERMS, template_keys=frozenset())
    own = {name for name in fields if name != "chat_template_kwargs"}
    without = {name: value for name, value in fields.items() if name in own}
    assert {*read(plain, **without).generation.ignored} == own


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens", "thinking"])
def test_a_limit_that_the_engine_cannot_keep_is_named_even_if_the_template_turns_reasoning_off(name: str) -> None:
    """Apriel's markers of reasoning are several tokens each."""
    unlimited = replace(REASONING, can_limit_reasoning=False)
    fields = {"reasoning_effort": "none", name: {"budget_tokens": 9} if name == "thinking" else 9}
    place = "thinking.budget_tokens" if name == "thinking" else name
    assert read(unlimited, **fields).generation.ignored == (place,)
    assert read(REASONING, **fields).generation.ignored == ()


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Told:
    """An answer as a client has it: whole, or put together from its chunks."""

    content: str | None = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    reason: str | None = None

    @classmethod
    def of_whole(cls, choice: dict[str, Any]) -> "Told":
        message = choice["message"]
        calls = message.get("tool_calls", [])
        assert all(list(call) == ["id", "type", "function"] and call["type"] == "function" for call in calls)
        assert len({call["id"] for call in calls}) == len(calls)
        named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        return cls(message["content"], message.get("reasoning_content", ""), named, choice["finish_reason"])

    @classmethod
    def of_chunks(cls, choices: Sequence[dict[str, Any]]) -> "Told":
        """Check the order of the chunks, too: each call begins once, and indexes rise."""
        told, ids = cls(), set[str]()
        first, *rest, last = choices
        assert first["delta"]["role"] == "assistant"
        for choice in rest:
            assert choice["finish_reason"] is None
            delta = choice["delta"]
            told.content = (told.content or "") + delta.get("content", "")
            told.reasoning += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert (call["index"], call["type"]) == (len(told.calls), "function")
                    ids.add(call["id"])
                    told.calls.append((call["function"]["name"], ""))
                name, arguments = told.calls[call["index"]]
                told.calls[call["index"]] = (name, arguments + call["function"]["arguments"])
        assert len(ids) == len(told.calls)
        told.reason = last["finish_reason"]
        assert last["delta"] == {}
        if told.calls and not told.content:
            told.content = None
        return told


def message_by(form: ChatFormat, tools: Mapping[str, object], text: str, *, is_cut: bool, is_whole: bool) -> Message:
    """The message that a reader makes. A whole one leaves out a call that is not complete."""
    reader = Reader(form, tools, new_id=str)
    deltas = [*reader.push(text), *reader.finish(is_cut=is_cut)]
    return message_of(deltas, is_unfinished=is_whole and reader.is_unfinished)


def answered(asked: ChatAsked, pieces: Sequence[str], reason: StopReason, n: int = 1) -> list[Told]:
    """The answers to a request: all n have the same text, and each is told apart."""
    choices = asked.choices(HEADING)
    assert len(choices) == n
    stream = b"".join(start(choice) for choice in choices)
    for number, piece in enumerate(pieces):
        stream += b"".join(choice.token(piece, number, (), number + 1) for choice in choices)
    stream += b"".join(finish(choice, reason, len(pieces)) for choice in choices)
    if not asked.generation.is_stream:
        assert stream == b""
        status, answer = whole(choices, lambda: asked.body(HEADING, choices))
        assert status == 200
        return [Told.of_whole(choice) for choice in json.loads(answer)["choices"]]
    found = [chunk["choices"][0] for chunk in objects(stream)]
    return [Told.of_chunks([choice for choice in found if choice["index"] == index]) for index in range(n)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[ChatFormat, Answer, list[str], bool]:
    form = draw(st.sampled_from(FORMS))
    answer = draw(answers(form))
    text = written(form, answer)
    is_cut = draw(st.booleans())
    if is_cut:
        text = text[: draw(st.integers(0, len(text)))]
    return form, answer, draw(pieces_of(text)), is_cut


@given(cases(), st.integers(1, 3))
def test_a_message_and_the_sum_of_its_chunks_are_what_the_reader_reads(
    case: tuple[ChatFormat, Answer, list[str], bool], n: int
) -> None:
    form, answer, pieces, is_cut = case
    terms = replace(TERMS, chat_format=form, max_text_chars=100_000)
    reason: StopReason = "MAX_TOKENS" if is_cut else "EOS"
    fields: dict[str, Any] = {"tools": offering(answer.tools), "n": n}
    collected = answered(read(terms, **fields), pieces, reason, n)
    streamed = answered(read(terms, **fields, stream=True), pieces, reason, n)
    schemas = read(terms, **fields).generation.reading.use.schemas()
    for is_whole, tolds in ((True, collected), (False, streamed)):
        message = message_by(form, schemas, "".join(pieces), is_cut=is_cut, is_whole=is_whole)
        calls = [(call.name, call.arguments) for call in message.calls]
        assert {told.reason for told in tolds} == {"length" if is_cut else "tool_calls" if calls else "stop"}
        for told in tolds:
            assert (told.calls, told.reasoning) == (calls, message.reasoning)
            assert told.content == (message.content or (None if calls else ""))


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
FENCED = '```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```'


@pytest.mark.parametrize("text", [CALL, FENCED])
def test_a_call_is_read_unless_none_may_be_called(text: str) -> None:
    fields: dict[str, Any] = {"tools": [function("weather", WEATHER)]}
    (told,) = answered(read(**fields), [*text], "EOS")
    assert (told.content, told.calls, told.reason) == (None, [("weather", '{"city": "Oslo"}')], "tool_calls")
    for terms, more in ((TERMS, {"tool_choice": "none"}), (replace(TERMS, reads_fenced=False), {})):
        (told,) = answered(read(terms, **fields, **more), [*text], "EOS")
        if text == CALL and not more:
            assert told == Told(None, "", [("weather", '{"city": "Oslo"}')], "tool_calls")
        else:
            assert told == Told(text, "", [], "stop")


def test_a_job_that_runs_again_leaves_no_call_of_its_first_run() -> None:
    (choice,) = (asked := read(tools=[function("weather", WEATHER)])).choices(HEADING)
    start(choice)
    choice.token(CALL, 0, (), 1)
    choice.rewind()
    choice.token("Rain.", 0, (), 1)
    finish(choice, "EOS", 1)
    _, answer = whole([choice], lambda: asked.body(HEADING, [choice]))
    (told,) = json.loads(answer)["choices"]
    assert Told.of_whole(told) == Told("Rain.", "", [], "stop")


# ── reasoning ────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), st.booleans()), max_size=6), st.booleans())
def test_reasoning_stays_in_the_text_if_a_request_wants_it(pieces: list[tuple[str, bool]], is_stream: bool) -> None:
    asked = read(reasoning_format="none", stream=is_stream)
    (choice,) = asked.choices(HEADING)
    stream = start(choice)
    expected, was_thought = "", False
    for number, (text, is_thought) in enumerate(pieces):
        stream += choice.token(text, number, (), number + 1, is_reasoning=is_thought)
        mark = "" if is_thought == was_thought else "<think>" if is_thought else "</think>"
        expected, was_thought = expected + mark + text, is_thought
    stream += finish(choice, "EOS", len(pieces))
    if is_stream:
        told = Told.of_chunks([chunk["choices"][0] for chunk in objects(stream)])
    else:
        _, answer = whole([choice], lambda: asked.body(HEADING, [choice]))
        told = Told.of_whole(json.loads(answer)["choices"][0])
    assert told == Told(expected, "", [], "stop")


# ── log-probabilities ────────────────────────────────────────────────────────────────────────────


def tokens(pieces: Sequence[str]) -> list[Logprob]:
    return [entry(piece, number) for number, piece in enumerate(pieces)]


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
    pieces = [*text] if data is None else [piece for piece in data.draw(pieces_of(text)) if piece]
    asked = read(tools=[function("weather", WEATHER)], logprobs=True)
    (choice,) = asked.choices(HEADING)
    start(choice)
    for number, (piece, drawn) in enumerate(zip(pieces, tokens(pieces), strict=True)):
        choice.token(piece, number, [drawn], number + 1)
    finish(choice, "EOS", len(pieces))
    _, answer = whole([choice], lambda: asked.body(HEADING, [choice]))
    (told,) = json.loads(answer)["choices"]
    assert listed(told["logprobs"]["content"]) == (told["message"]["content"] or "")
