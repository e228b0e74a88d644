"""`POST /v1/responses`, `/v1/messages` and their counting routes over real sockets, with the default model."""

import json
import re
from typing import Any

import httpx2
import pytest

from tests.apis.messages.test_request import RIGHT
from tests.server.web.openai_client import Json, ask, refusal
from tests.worker_process import WorkerProcess, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.usefixtures("default_model")]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
COUNTING = {RESPONSES: f"{RESPONSES}/input_tokens", MESSAGES: f"{MESSAGES}/count_tokens"}

TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
QUESTIONS: dict[str, Json] = {
    RESPONSES: {
        "instructions": "You answer in one short sentence.",
        "input": "What is the capital of France?",
        "temperature": 0,
        "max_output_tokens": 40,
    },
    MESSAGES: {
        "system": "You answer in one short sentence.",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 40,
    },
}
READ: dict[str, Json] = {
    RESPONSES: {"type": "function", "name": "read", "description": "Read a file.", "parameters": TOOL_SCHEMA},
    MESSAGES: {"name": "read", "description": "Read a file.", "input_schema": TOOL_SCHEMA},
}


def anthropic_error(response: httpx2.Response) -> Json:
    """The error of a refused request, whose shape is checked."""
    body = response.json()
    assert list(body) == ["type", "error"]
    assert body["type"] == "error"
    error: Json = body["error"]
    assert list(error) == ["type", "message"]
    return error


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_the_protocols_give_the_same_answer(eloquent: WorkerProcess) -> None:
    chat = {"messages": [{"role": "system", "content": "You answer in one short sentence."}], "temperature": 0}
    chat["messages"] += QUESTIONS[MESSAGES]["messages"]
    text = ask(eloquent, "/v1/chat/completions", {**chat, "max_tokens": 40})["choices"][0]["message"]["content"]
    assert "Paris" in text
    response = ask(eloquent, RESPONSES, QUESTIONS[RESPONSES])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == text
    message = ask(eloquent, MESSAGES, QUESTIONS[MESSAGES])
    assert message["content"] == [{"type": "text", "text": text}]
    assert message["stop_reason"] == "end_turn"
    counts = [ask(eloquent, COUNTING[path], QUESTIONS[path])["input_tokens"] for path in COUNTING]
    usage = message["usage"]
    assert counts == [response["usage"]["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]]


@pytest.mark.parametrize("path", QUESTIONS)
def test_an_answer_is_cut_at_its_length(path: str, eloquent: WorkerProcess) -> None:
    field = "max_output_tokens" if path == RESPONSES else "max_tokens"
    answer = ask(eloquent, path, {**QUESTIONS[path], field: 2})
    if path == RESPONSES:
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    else:
        assert answer["stop_reason"] == "max_tokens"


def test_an_answer_ends_at_a_stop_sequence(eloquent: WorkerProcess) -> None:
    answer = ask(eloquent, MESSAGES, {**QUESTIONS[MESSAGES], "stop_sequences": ["Paris"]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "Paris")
    assert "Paris" not in answer["content"][0]["text"]


def test_an_answer_continues_the_assistants_text(eloquent: WorkerProcess) -> None:
    begun = [*QUESTIONS[MESSAGES]["messages"], {"role": "assistant", "content": "The capital of France is"}]
    answer = ask(eloquent, MESSAGES, {**QUESTIONS[MESSAGES], "messages": begun})
    assert answer["content"][0]["text"].lstrip().startswith("Paris")


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

REQUIRED: dict[str, Json] = {RESPONSES: {"tool_choice": "required"}, MESSAGES: {"tool_choice": {"type": "any"}}}


def calls_of(path: str, answer: Json) -> list[tuple[str, Json]]:
    """The calls of an answer: names and arguments."""
    if path == RESPONSES:
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(call["name"], json.loads(call["arguments"])) for call in calls]
    return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("path", QUESTIONS)
def test_a_required_call_is_made(path: str, eloquent: WorkerProcess) -> None:
    field = "max_output_tokens" if path == RESPONSES else "max_tokens"
    answer = ask(eloquent, path, {**QUESTIONS[path], field: 200, "tools": [READ[path]], **REQUIRED[path]})
    calls = calls_of(path, answer)
    assert calls
    for name, arguments in calls:
        assert name == "read"
        assert isinstance(arguments["path"], str)
    if path == MESSAGES:
        assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize("path", QUESTIONS)
def test_a_tool_that_cannot_be_kept_is_refused_with_its_place(path: str, eloquent: WorkerProcess) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]}
    field = "parameters" if path == RESPONSES else "input_schema"
    tools = [READ[path], {**READ[path], "name": "odd", field: schema}]
    response = eloquent.post(path, json={**QUESTIONS[path], "tools": tools, **REQUIRED[path]})
    assert response.status_code == 400
    assert "tools[1]" in response.json()["error"]["message"]


def test_a_custom_tools_text_follows_its_grammar(eloquent: WorkerProcess) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin\\n" /[a-z]{1,8}/ "\\n*** End"'}
    tool = {"type": "custom", "name": "patch", "description": "Patch a file.", "format": form}
    fields = {"max_output_tokens": 200, "tools": [tool], "tool_choice": {"type": "custom", "name": "patch"}}
    answer = ask(eloquent, RESPONSES, {**QUESTIONS[RESPONSES], **fields, "parallel_tool_calls": False})
    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "patch")
    assert re.fullmatch(r"\*\*\* Begin\n[a-z]{1,8}\n\*\*\* End", call["input"])


def test_a_tool_of_a_namespace_is_answered_with_its_name(eloquent: WorkerProcess) -> None:
    namespace = {"type": "namespace", "name": "files", "description": "Files.", "tools": [READ[RESPONSES]]}
    fields = {"max_output_tokens": 200, "tools": [namespace], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = ask(eloquent, RESPONSES, {**QUESTIONS[RESPONSES], **fields})["output"]
    assert (call["name"], call["namespace"]) == ("read", "files")


# ── a prefix that conversations share ────────────────────────────────────────────────────────────


def _agents(bill: str, question: str) -> Json:
    """A request as Claude Code sends it."""
    rules = "You are an agent. " + "Follow the rules of this house in everything that you do. " * 20
    cached = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.328.{bill};"}]
    return {
        "max_tokens": 4,
        "temperature": 0,
        "system": [*system, {"type": "text", "text": rules, **cached}],
        "tools": [READ[MESSAGES], {**READ[MESSAGES], "name": "write"}],
        "messages": [{"role": "user", "content": question}],
    }


def test_two_conversations_of_an_agent_share_the_tokens_of_system_and_tools(eloquent: WorkerProcess) -> None:
    first = ask(eloquent, MESSAGES, _agents("3d7", "What is in the first file?"))["usage"]
    second = ask(eloquent, MESSAGES, _agents("dda", "How long is the second file?"))["usage"]
    assert first["input_tokens"] + first["cache_read_input_tokens"] > 300
    assert second["input_tokens"] < 40, "only the question is computed"


def test_the_billing_block_reaches_the_prompt_if_the_setting_says_so(
    eloquent: WorkerProcess, default_model: Any
) -> None:
    plain = ask(eloquent, COUNTING[MESSAGES], _agents("3d7", "Hello"))["input_tokens"]
    with serve_default(default_model, "--keep-billing-block", "--ctx-size", "4096") as worker:
        assert ask(worker.ready(), COUNTING[MESSAGES], _agents("3d7", "Hello"))["input_tokens"] > plain


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"a":' * 2000, b"\xff\xfe"])
@pytest.mark.parametrize("path", [*COUNTING, *COUNTING.values()])
def test_a_body_that_is_no_object_is_refused(path: str, body: bytes, toy: WorkerProcess) -> None:
    response = toy.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/batches", 404, "not_found_error"),
        ("PUT", COUNTING[MESSAGES], 405, "invalid_request_error"),
    ],
)
def test_other_refusals_have_anthropics_shape(
    method: str, path: str, status: int, kind: str, toy: WorkerProcess
) -> None:
    with toy.client() as client:
        response = client.request(method, path)
    assert response.status_code == status
    assert anthropic_error(response)["type"] == kind


def test_a_prompt_that_is_too_long_is_refused_in_each_protocols_words(eloquent: WorkerProcess) -> None:
    long = "many words " * 4000
    response = eloquent.post(RESPONSES, json={"input": long})
    assert response.status_code == 400
    error = refusal(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert error["message"].startswith("This model's maximum context length is 4096 tokens. However, your input")
    response = eloquent.post(MESSAGES, json={"max_tokens": 1, "messages": [{"role": "user", "content": long}]})
    assert response.status_code == 400
    count = eloquent.post(COUNTING[MESSAGES], json={"messages": [{"role": "user", "content": long}]})
    assert anthropic_error(response) == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {count.json()['input_tokens']} tokens > 4096 maximum",
    }


# ── headers ──────────────────────────────────────────────────────────────────────────────────────


def test_what_has_no_effect_is_named(toy: WorkerProcess) -> None:
    given = {**RIGHT, "metadata": {"user_id": "u"}, "tools": [{"type": "bash_20250124", "name": "bash"}]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "effort-2025-11-24"}
    response = toy.post(f"{MESSAGES}?beta=true", json=given, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == "metadata"
    assert response.headers["x-ignored-tools"] == "bash"


def test_the_probe_of_claude_code_is_answered(toy: WorkerProcess) -> None:
    with toy.client() as client:
        assert client.head("/api/hello").status_code == 200


def test_a_token_may_be_in_anthropics_header(default_model: Any) -> None:
    with serve_default(default_model, "--api-key", "secret-token", "--ctx-size", "512") as worker:
        worker.ready()
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "other"}, 401),
            ({"x-api-key": "secret-token"}, 200),
            ({"authorization": "Bearer secret-token"}, 200),
            ({"authorization": "Bearer other", "x-api-key": "secret-token"}, 200),
        ):
            response = worker.post(MESSAGES, json=RIGHT, headers=headers)
            assert response.status_code == status
            if status == 401:
                assert anthropic_error(response)["type"] == "authentication_error"
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        response = worker.post("/v1/chat/completions", json=chat, headers={"x-api-key": "secret-token"})
        assert response.status_code == 401
