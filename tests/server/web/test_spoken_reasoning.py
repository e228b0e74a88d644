"""Reasoning between markers that are text for the model's vocabulary, over real sockets with the default model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.web.openai_client import CHAT, ask, chunks
from tests.worker_process import WorkerProcess, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model]

TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""A template that opens the reasoning. The model has not learned to close it."""
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
}
BUDGET = 8


@pytest.fixture(scope="module")
def thinking(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    path = tmp_path_factory.mktemp("template") / "think.jinja"
    path.write_text(TEMPLATE)
    with serve_default(default_model, "--chat-template", str(path)) as worker:
        yield worker.ready()


def test_a_reasoning_that_the_prompt_has_opened_keeps_its_budget(thinking: WorkerProcess) -> None:
    (free,) = ask(thinking, CHAT, QUESTION)["choices"]
    assert free["message"]["reasoning_content"]
    assert not free["message"]["content"], "it goes on to reason"
    limited = {**QUESTION, "thinking_token_budget": BUDGET}
    response = thinking.post(CHAT, json=limited)
    assert "x-ignored-fields" not in response.headers
    message = response.json()["choices"][0]["message"]
    assert free["message"]["reasoning_content"].startswith(message["reasoning_content"].strip())
    assert 0 < len(message["reasoning_content"]) < len(free["message"]["reasoning_content"])
    assert message["content"]
    assert "think>" not in message["content"] + message["reasoning_content"]
    deltas = [each["choices"][0]["delta"] for each in chunks(thinking, CHAT, limited)[:-1]]
    for part in ("content", "reasoning_content"):
        assert "".join(delta.get(part) or "" for delta in deltas) == message[part]


def test_a_whole_answer_comes_behind_its_reasoning(thinking: WorkerProcess) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
    asked = {**QUESTION, "thinking_token_budget": BUDGET, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = ask(thinking, CHAT, {**asked, "tools": [{"type": "function", "function": tool}]})["choices"]
    assert choice["message"]["reasoning_content"]
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("look", "tool_calls")
