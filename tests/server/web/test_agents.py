"""Agents' requests over real sockets, with the default model: `/v1/responses`, `/v1/messages`, and required calls.

The words and headers that need no model are in tests/record.
"""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.random_schemas import random_schema
from tests.server.web.openai_client import CHAT, Json, ask, chunks, refusal
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


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_the_protocols_give_the_same_answer(eloquent: WorkerProcess) -> None:
    chat = {"messages": [{"role": "system", "content": "You answer in one short sentence."}], "temperature": 0}
    chat["messages"] += QUESTIONS[MESSAGES]["messages"]
    text = ask(eloquent, CHAT, {**chat, "max_tokens": 40})["choices"][0]["message"]["content"]
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


def test_a_prompt_that_is_too_long_is_refused_in_each_protocols_words(eloquent: WorkerProcess) -> None:
    long = "many words " * 4000
    response = eloquent.post(RESPONSES, json={"input": long})
    assert response.status_code == 400
    error = refusal(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert error["message"].startswith("This model's maximum context length is 4096 tokens. However, your input")
    response = eloquent.post(MESSAGES, json={"max_tokens": 1, "messages": [{"role": "user", "content": long}]})
    assert response.status_code == 400
    counted = ask(eloquent, COUNTING[MESSAGES], {"messages": [{"role": "user", "content": long}]})
    message = f"prompt is too long: {counted['input_tokens']} tokens > 4096 maximum"
    assert response.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


# ── required calls: each is one that its tool's schema allows ────────────────────────────────────

N_SETS = 100
N_AT_ONCE = 4
NAMES = ["get_weather", "read", "write_file", "mcp__files__find", "Bash", "ns.search", "set-alarm", "a"]
ASKED = ["What is the weather in Oslo?", "Read the file notes.txt.", "Wake me at seven.", "Tell me a joke."]


def tool_set(seed: int) -> dict[str, Any]:
    """The schemas of the arguments of some tools, by the tools' names."""
    rng = random.Random(seed)
    objects = (schema for at in count(1000 * seed) if (schema := random_schema(at)).get("type") == "object")
    return dict(zip(rng.sample(NAMES, rng.randint(1, 4)), objects, strict=False))


def request_with_tools(number: int) -> Json:
    """A request with tools, one of which must be called."""
    rng = random.Random(number)
    tools = tool_set(number % N_SETS)
    named = {"type": "function", "function": {"name": rng.choice([*tools])}}
    return {
        "messages": [{"role": "user", "content": rng.choice(ASKED)}],
        "tools": [{"type": "function", "function": {"name": name, "parameters": tools[name]}} for name in tools],
        "tool_choice": rng.choice(["required", "required", named]),
        "parallel_tool_calls": rng.random() < 0.2,
        "max_tokens": rng.randint(1, 60) if rng.random() < 0.3 else 300,
        "temperature": rng.choice([0, 0.7, 1.2]),
        "seed": number,
    }


def whole_of(stream: list[Any]) -> tuple[Json, str]:
    """The message that a stream's chunks make, and its finish reason."""
    *told, done = stream
    assert done == "[DONE]"
    message: Json = {"content": None, "calls": []}
    for chunk in told:
        delta = chunk["choices"][0]["delta"]
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["calls"]):
                message["calls"].append([call["function"]["name"], ""])
                assert call["id"]
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message, told[-1]["choices"][0]["finish_reason"]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check(worker: WorkerProcess, number: int) -> str:
    """Check one request, whole and streamed; return how it ended."""
    asked = request_with_tools(number)
    (choice,) = ask(worker, CHAT, asked)["choices"]
    message, reason = choice["message"], choice["finish_reason"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", [])]
    streamed, ended = whole_of(chunks(worker, CHAT, asked))
    # A stream has sent what a whole answer leaves out: the beginning of a call that the answer ends in.
    streamed["calls"] = [call for call in streamed["calls"] if is_json(call[1])]
    if worker.health()["batch_invariant"]["kept"]:
        assert (streamed, ended) == ({"content": message["content"] or None, "calls": calls}, reason), asked
    assert not message["content"], asked
    assert reason in ("length", "tool_calls"), asked
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in asked["tools"]}
    if asked["tool_choice"] != "required":
        tools = {name: tools[name] for name in (asked["tool_choice"]["function"]["name"],)}
    assert {name for name, _ in calls} <= {*tools}, asked
    assert calls or reason == "length", asked
    assert len(calls) <= 1 or asked["parallel_tool_calls"], asked
    for name, arguments in (*calls, *streamed["calls"]):
        Draft202012Validator(tools[name]).validate(json.loads(arguments))
    return str(reason)


@pytest.mark.parametrize(
    "n_requests",
    [
        pytest.param(20, marks=pytest.mark.timeout(900)),
        pytest.param(1000, marks=[pytest.mark.models, pytest.mark.timeout(7200)]),
    ],
)
def test_every_required_call_is_one_that_its_tool_allows(eloquent: WorkerProcess, n_requests: int) -> None:
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        reasons = list(pool.map(lambda number: check(eloquent, number), range(n_requests)))
    assert {*reasons} == {"length", "tool_calls"}
    assert reasons.count("tool_calls") > n_requests // 3


def test_a_tool_of_a_chat_that_cannot_be_kept_is_refused_or_named(eloquent: WorkerProcess) -> None:
    broken = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}, "required": ["a"]}
    functions = [{"name": "fine"}, {"name": "broken", "parameters": broken}]
    tools: list[Any] = [{"type": "web_search"}, *({"type": "function", "function": each} for each in functions)]
    response = eloquent.post(CHAT, json={**request_with_tools(0), "tools": tools, "tool_choice": "required"})
    assert response.status_code == 400
    assert refusal(response)["param"] in ("tools", "tools[2].function")
    fine = eloquent.post(CHAT, json={**request_with_tools(0), "tools": tools[:2], "tool_choice": "required"})
    assert fine.headers["x-ignored-tools"] == "web_search"
    assert "x-unenforced-tools" not in fine.headers
    free = eloquent.post(CHAT, json={**request_with_tools(0), "tools": tools, "tool_choice": "auto"})
    assert free.status_code == 200
    assert free.headers["x-unenforced-tools"] == "broken"
    tools[2]["function"]["strict"] = True
    strict = eloquent.post(CHAT, json={**request_with_tools(0), "tools": tools, "tool_choice": "auto"})
    assert strict.status_code == 400
