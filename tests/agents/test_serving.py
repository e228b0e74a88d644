"""Agents' requests over real sockets, at default settings, where a conversation has room for 8,192 tokens."""

import re

import httpx2
import pytest

from tests.agents.shapes import SHAPES, Json, Shape
from tests.server.web.openai_client import CHAT, frames, refusal
from tests.worker_process import WorkerProcess, serving

pytestmark = [pytest.mark.model, pytest.mark.process]

CONTEXT = 8192
STOPS = {"stop": [".", "!", "\n", " "]}
"""Each request has these stop texts, because a small model can go on for minutes after a text without meaning."""
OVERFLOW = re.compile(
    r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens"
)


worker = serving("shallow_model")
"""The worker has the default model's vocabulary, template and context, and every setting at its default."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_it_is_answered_to_its_end_or_refused_because_the_context_is_full(worker: WorkerProcess, shape: Shape) -> None:
    with worker.client() as client, client.stream("POST", CHAT, json=shape.body | STOPS) as response:
        if not shape.has_room(CONTEXT):
            check_overflow(response, CONTEXT)
            return
        assert response.status_code == 200, response.read().decode()
        named = response.headers.get("x-ignored-fields", "")
        assert {*named.split(", ")} - {""} == shape.ignored
        n_prompt = check_stream(list(frames(response)))
        room = CONTEXT - n_prompt
        asked = shape.body.get("max_tokens") or shape.body["max_completion_tokens"]
        assert response.headers.get("x-max-tokens-cut") == (str(room) if asked > room else None)


def check_stream(chunks: list[Json | str]) -> int:
    """A role, texts, one reason for the end, the usage, `[DONE]`: how many tokens the prompt has."""
    *told, usage, done = chunks
    assert done == "[DONE]"
    assert isinstance(usage, dict)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] <= CONTEXT
    choices = [chunk["choices"][0] for chunk in told if isinstance(chunk, dict)]
    assert choices[0]["delta"]["role"] == "assistant"
    *before, last = (choice["finish_reason"] for choice in choices)
    assert last in {"stop", "length"}
    assert not any(before)
    n_prompt: int = usage["usage"]["prompt_tokens"]
    return n_prompt


def check_overflow(response: httpx2.Response, context: int) -> None:
    response.read()
    assert response.status_code == 400, response.text
    error = refusal(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    found = OVERFLOW.search(error["message"])
    assert found is not None, error["message"]
    limit, n_tokens = map(int, found.groups())
    assert limit == context <= n_tokens
