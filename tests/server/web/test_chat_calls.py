"""Required calls over real sockets, with the default model: each is one that its tool's schema allows."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.random_schemas import random_schema
from tests.server.web.openai_client import CHAT, Json, ask, chunks, refusal
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.model]

N_SETS = 100
N_AT_ONCE = 4
NAMES = ["get_weather", "read", "write_file", "mcp__files__find", "Bash", "ns.search", "set-alarm", "a"]
QUESTIONS = ["What is the weather in Oslo?", "Read the file notes.txt.", "Wake me at seven.", "Tell me a joke."]


def tool_set(seed: int) -> dict[str, Any]:
    """The schemas of the arguments of some tools, by the tools' names."""
    rng = random.Random(seed)
    objects = (schema for at in count(1000 * seed) if (schema := random_schema(at)).get("type") == "object")
    return dict(zip(rng.sample(NAMES, rng.randint(1, 4)), objects, strict=False))


def request(number: int) -> Json:
    """A request with tools, one of which must be called."""
    rng = random.Random(number)
    tools = tool_set(number % N_SETS)
    named = {"type": "function", "function": {"name": rng.choice([*tools])}}
    return {
        "messages": [{"role": "user", "content": rng.choice(QUESTIONS)}],
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
    asked = request(number)
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


def test_a_tool_that_cannot_be_kept_is_refused_with_its_place(eloquent: WorkerProcess) -> None:
    broken = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}, "required": ["a"]}
    functions = [{"name": "fine"}, {"name": "broken", "parameters": broken}]
    tools: list[Any] = [{"type": "web_search"}, *({"type": "function", "function": each} for each in functions)]
    response = eloquent.post(CHAT, json={**request(0), "tools": tools, "tool_choice": "required"})
    assert response.status_code == 400
    assert refusal(response)["param"] in ("tools", "tools[2].function")
    fine = eloquent.post(CHAT, json={**request(0), "tools": tools[:2], "tool_choice": "required"})
    assert fine.headers["x-ignored-tools"] == "web_search"
    assert "x-unenforced-tools" not in fine.headers
    free = eloquent.post(CHAT, json={**request(0), "tools": tools, "tool_choice": "auto"})
    assert free.status_code == 200
    assert free.headers["x-unenforced-tools"] == "broken"
    tools[2]["function"]["strict"] = True
    strict = eloquent.post(CHAT, json={**request(0), "tools": tools, "tool_choice": "auto"})
    assert strict.status_code == 400
