"""A call in a thought that its model does not close reaches the client as a call, in every API, whole and streamed."""

import json

import pytest

from tests.server.web.openai_client import CHAT, Json, ask, chunks
from tests.server.web.test_agents import MESSAGES, RESPONSES
from tests.toy_engine import UNCLOSED
from tests.worker_process import WorkerProcess, serving_toy

pytestmark = pytest.mark.process

unclosed = serving_toy(kind=UNCLOSED)
SCHEMA: Json = {"type": "object", "properties": {"at": {"type": "string"}}}
HI = [{"role": "user", "content": "Hi"}]
PLAN, CALL = "I plan.", ("look", {"at": "x"})


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


def test_a_whole_answer_of_chat_has_the_call(unclosed: WorkerProcess) -> None:
    (choice,) = ask(unclosed, CHAT, {"messages": HI, "max_tokens": 100, "tools": [tool("look")]})["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == CALL
    assert choice["message"]["reasoning_content"].strip() == PLAN
    assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "tool_calls")


def test_a_stream_of_chat_has_the_call(unclosed: WorkerProcess) -> None:
    *found, _ = chunks(unclosed, CHAT, {"messages": HI, "max_tokens": 100, "tools": [tool("look")]})
    choices = [choice for each in found for choice in each["choices"]]
    calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert "".join(call.get("name") or "" for call in calls) == CALL[0]
    assert json.loads("".join(call.get("arguments") or "" for call in calls)) == CALL[1]
    assert "".join(choice["delta"].get("reasoning_content") or "" for choice in choices).strip() == PLAN
    assert not "".join(choice["delta"].get("content") or "" for choice in choices)
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_responses_and_messages_have_the_call(unclosed: WorkerProcess) -> None:
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    items = ask(unclosed, RESPONSES, {"input": "Hi", "max_output_tokens": 100, "tools": tools})["output"]
    (call,) = (item for item in items if item["type"] == "function_call")
    assert (call["name"], json.loads(call["arguments"])) == CALL
    messages_tools = [{"name": "look", "input_schema": SCHEMA}]
    answer = ask(unclosed, MESSAGES, {"messages": HI, "max_tokens": 100, "tools": messages_tools})
    (used,) = (block for block in answer["content"] if block["type"] == "tool_use")
    assert (used["name"], used["input"], answer["stop_reason"]) == (*CALL, "tool_use")


def test_a_call_of_a_tool_that_is_not_offered_is_a_thought(unclosed: WorkerProcess) -> None:
    (choice,) = ask(unclosed, CHAT, {"messages": HI, "max_tokens": 100, "tools": [tool("stop")]})["choices"]
    assert not choice["message"].get("tool_calls")
    assert CALL[0] in choice["message"]["reasoning_content"]
    assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "stop")
