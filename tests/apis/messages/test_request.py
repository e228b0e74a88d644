"""Requests of `/v1/messages`: the jobs that right ones become, and the refusals of wrong ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.apis.asking import TERMS, body, talk
from tests.apis.responses import test_request as responses
from tests.tables import cases
from worker.apis.core.bodies import FieldError, FieldsRefused
from worker.apis.core.request import Request, Terms
from worker.apis.messages.errors import error_detail
from worker.apis.messages.request import read_counted, read_messages
from worker.wire.messages import Overflow

USER = {"role": "user", "content": "Hello"}
RIGHT: dict[str, Any] = {"model": "any", "max_tokens": 4, "messages": [USER]}
TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {}}}
CALL = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "text"}
ABSENT = object()
"""The value of a field that is left out."""

BILL: dict[str, Any] = {
    "type": "text",
    "text": "x-anthropic-billing-header: cc_version=2.1.328.3d7; cc_entrypoint=sdk-cli;",
}
RULES: dict[str, Any] = {"type": "text", "text": "You are a helpful agent.", "cache_control": {"type": "ephemeral"}}
CACHED = {"cache_control": {"type": "ephemeral"}}


def asked(terms: Terms = TERMS, **fields: Any) -> Request:
    given = {name: value for name, value in {**RIGHT, **fields}.items() if value is not ABSENT}
    return read_messages(body(given), terms)


def messages(*given: Any, **fields: Any) -> list[Any]:
    read: list[Any] = json.loads(talk(asked(messages=list(given), **fields)).messages)
    return read


# ── wrong requests ───────────────────────────────────────────────────────────────────────────────


def test_a_right_request_has_no_ignored_fields() -> None:
    assert asked().ignored == ()


def test_counting_needs_no_length_of_the_answer() -> None:
    assert talk(read_counted(body({"messages": [USER]}), TERMS)) == talk(asked())


@pytest.mark.parametrize(("n_tokens", "most", "told"), [(9000, 8192, 8192), (8192, 8192, 8191)])
def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words(n_tokens: int, most: int, told: int) -> None:
    field = FieldError(field="messages", constraint="context_length", message="")
    detail = error_detail(FieldsRefused([field], Overflow(n_tokens, most)))
    assert detail.message == f"prompt is too long: {n_tokens} tokens > {told} maximum"


# ── the conversation ─────────────────────────────────────────────────────────────────────────────


def test_a_content_is_the_same_as_text_and_as_blocks() -> None:
    block = {"type": "text", "text": "Hello", **CACHED}
    request = asked(messages=[{"role": "user", "content": [block]}], system=[RULES])
    assert talk(request) == talk(asked(system=RULES["text"]))
    assert request.ignored == ("system.cache_control", "messages.content.cache_control")


def test_a_turn_with_a_call_and_its_result() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    reply = {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, CALL]}
    result = {"role": "user", "content": [RESULT, {"type": "text", "text": "Go on."}]}
    later = {"role": "system", "content": "Be brief."}
    assert messages(USER, reply, result, later) == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "read", "arguments": {}}}],
        },
        {"role": "tool", "content": "text", "tool_call_id": "c"},
        {"role": "user", "content": "Go on."},
        later,
    ]


def test_a_failed_result_says_so() -> None:
    *_, result = messages(
        USER,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{**RESULT, "is_error": True}]},
    )
    assert result["content"] == "Error: text"


def test_a_picture_in_a_result_is_left_out_and_named() -> None:
    content = [{"type": "text", "text": "Seen:"}, {"type": "image", "source": {"type": "base64", "data": "x"}}]
    reply = {"role": "assistant", "content": [CALL]}
    request = asked(messages=[USER, reply, {"role": "user", "content": [{**RESULT, "content": content}]}])
    assert "messages.content.content.image" in request.ignored
    assert "left out" in json.loads(talk(request).messages)[-1]["content"]


def test_a_document_of_text_is_read() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "A page."}
    (message,) = messages({"role": "user", "content": [{"type": "document", "source": source}]})
    assert message["content"] == "A page."


def test_blocks_of_another_server_are_named() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "So."},
    ]
    request = asked(messages=[USER, {"role": "assistant", "content": blocks}, USER])
    assert json.loads(talk(request).messages)[1] == {"role": "assistant", "content": "So."}
    named = [f"messages.content.{block['type']}" for block in blocks[:3]]
    assert set(named) <= set(request.ignored)


def test_an_answer_continues_the_assistants_text() -> None:
    prompt = talk(asked(messages=[USER, {"role": "assistant", "content": "The best answer is ("}]))
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


# ── a prefix that conversations share ────────────────────────────────────────────────────────────


def test_the_billing_block_does_not_reach_the_prompt() -> None:
    request = asked(system=[BILL, RULES])
    assert talk(request) == talk(asked(system=RULES["text"]))
    assert "system.x-anthropic-billing-header" in request.ignored


def test_the_billing_line_does_not_reach_the_prompt() -> None:
    assert talk(asked(system=f"{BILL['text']}\n\n{RULES['text']}")) == talk(asked(system=RULES["text"]))


def test_the_billing_block_is_kept_if_the_setting_says_so() -> None:
    request = asked(replace(TERMS, keeps_billing_block=True), system=[BILL, RULES])
    assert str(BILL["text"]) in json.loads(talk(request).messages)[0]["content"]
    assert request.ignored == ("system.cache_control",)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "A path."}, "n": {"type": "integer", "minimum": 0}},
    "required": ["path"],
}
SPELLED = {
    "required": ["path"],
    "properties": {"path": {"description": "A path.", "type": "string"}, "n": {"minimum": 0, "type": "integer"}},
    "description": None,
}


def test_tools_are_the_same_in_every_spelling_and_protocol() -> None:
    tool = {"name": "read", "description": "Read a file.", "input_schema": SCHEMA}
    plain = talk(asked(tools=[tool])).tools
    other = {"type": "custom", "input_schema": SPELLED, "description": "Read a file.", "name": "read", **CACHED}
    assert talk(asked(tools=[{**other, "eager_input_streaming": True}])).tools == plain
    function = {
        "type": "function",
        "parameters": SPELLED,
        "name": "read",
        "description": "Read a file.",
        "strict": True,
    }
    assert talk(responses.asked(tools=[function])).tools == plain


def test_the_order_of_arguments_is_the_clients() -> None:
    """The model writes its arguments in it."""
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    tools = json.loads(talk(asked(tools=[{"name": "read", "input_schema": turned}])).tools or "")
    assert list(tools[0]["function"]["parameters"]["properties"]) == ["n", "path"]


# ── tools and reasoning ──────────────────────────────────────────────────────────────────────────


def test_tools_that_the_worker_does_not_have_are_named() -> None:
    request = asked(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            TOOL,
            {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
        ],
        mcp_servers=[{"type": "url", "name": "deepwiki", "url": "https://example.com"}],
    )
    assert request.ignored_tools == ("bash", "DeferredToolPlaceholder", "deepwiki")
    assert [tool["function"]["name"] for tool in json.loads(talk(request).tools or "")] == ["read"]


@cases
def test_a_choice_among_tools(choice: Any, expected: Any) -> None:
    use = asked(tools=[TOOL], tool_choice=choice).reading.use
    assert [use.choice, use.only and [*use.only], use.is_parallel] == expected


@cases
def test_thinking_becomes_variables_of_the_template(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    assert json.loads(talk(asked(**fields)).template_kwargs) == variables


@cases
def test_wishes_about_reasoning_that_change_nothing_with_this_model_are_named(
    fields: dict[str, Any], named: list[str]
) -> None:
    assert [*asked(replace(TERMS, template_keys=frozenset()), **fields).ignored] == named


def test_a_limit_that_the_engine_cannot_keep_is_named() -> None:
    fields: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert asked(**fields).ignored == ("thinking.budget_tokens",)
    assert asked(replace(TERMS, can_limit_reasoning=True), **fields).ignored == ()
