"""`/execute` with messages over the wire: what the model's own template makes of them, and what is refused."""

import json
from typing import Any

import httpx2
import pytest

from tests.server.web.wire import request_of
from tests.worker_process import Event, WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.usefixtures("default_model")]
"""The template and its answers are the default model's."""

SYSTEM = {"role": "system", "content": "Be brief."}
SUM = {"role": "user", "content": "What is 2+2?"}
GREEDY: Event = {"max_tokens": 8, "temperature": 0}


def ask(worker: WorkerProcess, **fields: Any) -> httpx2.Response:
    request = request_of("chat", **fields)
    del request["prompt"]
    return worker.post("/execute", json=request | fields, headers={"accept": "application/jsonl"})


def answered(worker: WorkerProcess, *messages: Event, **fields: Any) -> tuple[Event, str]:
    """`started`, and the text."""
    answer = ask(worker, messages=messages, **GREEDY | fields)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line) for line in answer.text.splitlines()]
    return events[0], "".join(event["t"] for event in events if event["type"] == "token")


def refusal(answer: httpx2.Response) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.text
    return [(error["field"], error["constraint"]) for error in answer.json()["errors"]]


def test_a_conversation_is_answered_like_the_prompt_of_its_template(worker: WorkerProcess) -> None:
    prompt = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    raw = worker.run(prompt=prompt, **GREEDY)
    started, text = answered(worker, SYSTEM, SUM)
    assert started["prompt_tokens"] == raw[0]["prompt_tokens"]
    assert text == "".join(event["t"] for event in raw if event["type"] == "token")


def test_parts_are_one_text_and_other_keys_have_no_effect(worker: WorkerProcess) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2+2?", "cache_control": {}}]
    whole = {"role": "user", "content": "What is\n2+2?"}
    said, told = (answered(worker, message) for message in ({"role": "user", "content": parts, "id": "7"}, whole))
    assert (said[0]["prompt_tokens"], said[1]) == (told[0]["prompt_tokens"], told[1])


def test_control_tokens_in_a_message_are_letters(worker: WorkerProcess) -> None:
    """The name is letters here; in a raw prompt it is one token."""
    n_plain = answered(worker, {"role": "user", "content": ""})[0]["prompt_tokens"]
    n_named = answered(worker, {"role": "user", "content": "<|im_end|>"})[0]["prompt_tokens"]
    assert n_named > n_plain + 3
    assert worker.run(prompt="<|im_end|>", **GREEDY)[0]["prompt_tokens"] == 1


def test_the_next_turn_finds_the_conversation_cached(worker: WorkerProcess) -> None:
    first, text = answered(worker, SYSTEM, SUM)
    turns = (SYSTEM, SUM, {"role": "assistant", "content": text}, {"role": "user", "content": "And 3+3?"})
    assert answered(worker, *turns)[0]["cached_tokens"] >= first["prompt_tokens"] - 1


def test_an_error_in_messages_names_its_place_and_echoes_nothing(worker: WorkerProcess) -> None:
    wrong = [SYSTEM, {"role": "secret", "content": "secret"}, {"role": "user", "content": [{"type": "image_url"}]}]
    answer = ask(worker, messages=wrong, max_tokens=0)
    assert refusal(answer) == [
        ("max_tokens", "range(1..=2048)"),
        ("messages[1].role", "role"),
        ("messages[2].content[0].type", "text_only"),
    ]
    assert "secret" not in answer.text


def test_a_request_has_a_prompt_or_messages(worker: WorkerProcess) -> None:
    both = ask(worker, prompt="Hi", messages=[SUM], chat_template_kwargs={"a": 1})
    assert refusal(both) == [("messages", "exclusive(prompt)"), ("chat_template_kwargs", "exclusive(prompt)")]
    neither = ask(worker)
    assert (neither.status_code, neither.text.endswith("missing field `prompt`")) == (422, True)


def test_a_conversation_beyond_the_context_is_refused_with_both_numbers(worker: WorkerProcess) -> None:
    answer = ask(worker, messages=[{"role": "user", "content": "word " * 6000}])
    ((field, constraint),) = refusal(answer)
    assert field == "prompt"
    assert constraint.startswith("context_length(")
