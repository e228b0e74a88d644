"""Requests of `/v1/responses`: the jobs that right ones become, and the refusals of wrong ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.apis.asking import TERMS, body, talk
from tests.tables import cases, table
from worker.apis.core.request import Request
from worker.apis.core.tools import TEXT_ARGUMENT
from worker.apis.responses.items import SILENT
from worker.apis.responses.request import read_response

RIGHT: dict[str, Any] = {"model": "any", "input": "Hello", "max_output_tokens": 4}
FUNCTION = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "patch"}
USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}


def asked(**fields: Any) -> Request:
    return read_response(body({**RIGHT, **fields}), TERMS)


def messages(*items: Any, **fields: Any) -> list[Any]:
    read: list[Any] = json.loads(talk(asked(input=list(items), **fields)).messages)
    return read


def test_a_right_request_has_no_ignored_fields() -> None:
    assert asked().ignored == ()


# ── the conversation ─────────────────────────────────────────────────────────────────────────────


def test_a_text_is_a_users_message() -> None:
    assert json.loads(talk(asked()).messages) == [USER]


def test_instructions_come_first() -> None:
    assert messages(USER, instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]


@pytest.mark.parametrize("part", ["input_text", "text"])
def test_a_content_is_the_same_as_text_and_as_parts(part: str) -> None:
    in_parts = {"type": "message", "id": "m", "status": "completed", "role": "user"}
    assert messages({**in_parts, "content": [{"type": part, "text": "Hello"}]}) == messages(USER)


def test_what_the_assistant_did_in_a_row_is_one_message() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    output = {"type": "function_call_output", "call_id": "c", "output": "text"}
    other = {**CALL, "call_id": "d", "namespace": "files"}
    _, reply, result = messages(USER, reasoning, said, CALL, other, output)
    assert reply["reasoning_content"], reply["content"] == ("Hm.", "I look.")
    assert [call["function"]["name"] for call in reply["tool_calls"]] == ["read", "files__read"]
    assert result == {"role": "tool", "content": "text", "tool_call_id": "c"}


def test_a_custom_tools_call_has_its_text_as_the_argument() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]}
    _, reply, result = messages(USER, call, output)
    assert reply["tool_calls"][0]["function"] == {"name": "patch", "arguments": {TEXT_ARGUMENT: 'a "b"'}}
    assert result["content"] == "done"


def test_a_picture_in_a_result_is_left_out_and_named() -> None:
    output = [{"type": "input_text", "text": "Seen:"}, {"type": "input_image", "image_url": "data:x"}]
    request = asked(input=[USER, CALL, {"type": "function_call_output", "call_id": "c", "output": output}])
    assert "input.output.input_image" in request.ignored
    assert "left out" in json.loads(talk(request).messages)[-1]["content"]


def test_reasoning_of_another_server_is_named() -> None:
    request = asked(input=[USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}, USER])
    assert request.ignored == ("input.encrypted_content",)


# ── items of hosted services ─────────────────────────────────────────────────────────────────────


@cases
def test_calls_of_other_services_and_their_results_come_as_text(
    item: dict[str, Any], said: list[list[str]], left_out: list[str]
) -> None:
    request = asked(input=[USER, {"id": "x", "status": "completed", **item}, USER])
    read = json.loads(talk(request).messages)
    assert [[one["role"], one["content"]] for one in read[1:-1]] == said
    assert list(request.ignored) == left_out
    assert "PICTURE" not in talk(request).messages


@pytest.mark.parametrize("kind", SILENT)
def test_an_item_that_carries_nothing_for_the_model_is_left_out_and_named(kind: str) -> None:
    item = {"type": kind, "id": "x", "action": {"query": "?"}, "result": "aGk=", "encrypted_content": "gAAAA"}
    request = asked(input=[USER, item, USER])
    assert json.loads(talk(request).messages) == [USER, USER]
    assert request.ignored == (f"input.{kind}",)


CALLS_AS_TEXT = "test_calls_of_other_services_and_their_results_come_as_text"


def nested(n: int) -> Any:
    return [nested(n - 1)] if n else 0


@pytest.mark.parametrize("kind", [*SILENT, *(row["id"] for row in table(__file__, CALLS_AS_TEXT)), "telepathy_call"])
@pytest.mark.parametrize(
    "value",
    [None, 5, "x", [], {}, [[[]]], {"type": 5}, [[0] * 3] * 3, nested(60), nested(200)],
    ids=lambda value: str(value)[:12],
)
def test_no_value_in_such_an_item_is_an_error(kind: str, value: Any) -> None:
    request = asked(input=[USER, {"type": kind, **dict.fromkeys(("action", "output", "error", "id"), value)}])
    assert json.loads(talk(request).messages)[0] == USER


def test_text_around_a_call_of_another_service_stays_one_message() -> None:
    said = {"type": "message", "role": "assistant", "content": "I look."}
    _, reply = messages(USER, said, {"type": "shell_call", "action": {"commands": ["ls"]}})
    assert reply["content"] == 'I look.\n[shell_call: {"commands":["ls"]}]'


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_tools_of_the_input_are_offered_once(kind: str) -> None:
    more = {"type": kind, "role": "developer", "tools": [FUNCTION, CUSTOM]}
    request = asked(tools=[FUNCTION], input=[USER, more, {**more, "tools": [{"type": "web_search"}]}])
    assert [tool.name for tool in request.reading.use.tools] == ["read", CUSTOM["name"]]
    assert request.ignored_tools == ("web_search",)
    assert json.loads(talk(request).messages) == [USER]


# ── tools ────────────────────────────────────────────────────────────────────────────────────────


def test_tools_that_the_worker_does_not_have_are_named() -> None:
    mcp = {"type": "mcp", "server_label": "deepwiki", "server_url": "https://example.com"}
    request = asked(tools=[{"type": "web_search"}, mcp, FUNCTION, {"type": "tool_search"}])
    assert request.ignored_tools == ("web_search", "deepwiki", "tool_search")
    assert [tool["function"]["name"] for tool in json.loads(talk(request).tools or "")] == ["read"]
    assert request.ignored == ()


def test_namespaces_are_flattened() -> None:
    namespace = {"type": "namespace", "name": "files", "description": "", "tools": [FUNCTION, CUSTOM]}
    use = asked(tools=[FUNCTION, namespace]).reading.use
    assert [(tool.name, tool.namespace, tool.kind) for tool in use.tools] == [
        ("read", None, "function"),
        ("files__read", "files", "function"),
        ("files__patch", "files", "custom"),
    ]


@cases
def test_a_choice_names_tools(choice: Any, expected: str, only: list[str] | None) -> None:
    namespace = {"type": "namespace", "name": "files", "description": "", "tools": [FUNCTION, CUSTOM]}
    request = asked(tools=[FUNCTION, namespace], tool_choice=choice)
    use = request.reading.use
    assert (use.choice, use.only and [*use.only]) == (expected, only)
    assert (talk(request).tools is None) == (choice == "none")


def test_fields_without_effect_are_named() -> None:
    request = asked(
        user="u", service_tier="auto", prompt_cache_key="k", client_metadata={}, text={"verbosity": "low"}, store=False
    )
    assert set(request.ignored) == {
        *("user", "service_tier", "prompt_cache_key", "client_metadata", "text.verbosity"),
    }


def test_a_schema_constrains_the_answer() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    assert asked(text={"format": form}).params.json_schema == '{"type":"object"}'


@pytest.mark.parametrize(
    ("effort", "variables"),
    [(None, {}), ("high", {"reasoning_effort": "high"}), ("none", {"enable_thinking": False})],
)
def test_an_effort_becomes_a_variable_of_the_template(effort: str | None, variables: dict[str, Any]) -> None:
    assert json.loads(talk(asked(reasoning={"effort": effort})).template_kwargs) == variables


@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_an_effort_that_changes_nothing_with_this_model_is_named(effort: str) -> None:
    fields = {"input": "Hi.", "reasoning": {"effort": effort}}
    plain = replace(TERMS, template_keys=frozenset())
    assert read_response(json.dumps(fields).encode(), plain).ignored == ("reasoning.effort",)
