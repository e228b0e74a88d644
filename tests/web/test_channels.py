"""Reasoning and content are reported apart, over real sockets; the engine writes control tokens."""

import pytest

from tests.toy_engine import SAID, SCRIPT, THINKING
from tests.web.openai_client import CHAT, COMPLETIONS, Json, ask, chunks
from tests.worker_process import WorkerProcess, serving_toy, text_of
from worker.openai.fields import ROUTED_FIELDS

pytestmark = pytest.mark.process

QUESTION: Json = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
THOUGHT, ANSWER = "The user greets.", "Hello!"
SPOKEN = "analysisThe user greets.assistantfinalHello!"


thinking = serving_toy(kind=THINKING)
both = serving_toy("--reasoning-field", "both", kind=THINKING)


def test_a_whole_answer_has_reasoning_and_content(thinking: WorkerProcess) -> None:
    answer = ask(thinking, CHAT, QUESTION)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (ANSWER, THOUGHT)
    assert "reasoning" not in message
    assert answer["usage"]["completion_tokens"] == len(SCRIPT)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == SAID.index("Hel")


def test_a_stream_says_the_same_in_order(thinking: WorkerProcess) -> None:
    *found, done = chunks(thinking, CHAT, QUESTION)
    assert done == "[DONE]"
    deltas = [each["choices"][0]["delta"] for each in found]
    told = [("reasoning_content" if "reasoning_content" in each else "content") for each in deltas if each][1:]
    assert told == sorted(told, reverse=True), "first the thoughts"
    assert "".join(each.get("reasoning_content", "") for each in deltas) == THOUGHT
    assert "".join(each.get("content", "") for each in deltas) == ANSWER


def test_both_fields_have_the_reasoning_on_request(both: WorkerProcess) -> None:
    message = ask(both, CHAT, QUESTION)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == (ANSWER, THOUGHT, THOUGHT)
    deltas = [each["choices"][0]["delta"] for each in chunks(both, CHAT, QUESTION)[:-1]]
    assert "".join(each.get("reasoning", "") for each in deltas) == THOUGHT


def test_an_answer_that_ends_in_its_thoughts_has_no_content(thinking: WorkerProcess) -> None:
    answer = ask(thinking, CHAT, {**QUESTION, "max_tokens": 4})
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "The user")
    assert choice["finish_reason"] == "length"


def test_marks_are_shown_on_request(thinking: WorkerProcess) -> None:
    message = ask(thinking, CHAT, {**QUESTION, "skip_special_tokens": False})["choices"][0]["message"]
    assert message["content"] == "".join(SAID)
    assert "reasoning_content" not in message
    (choice,) = ask(thinking, COMPLETIONS, {"prompt": "Hi", "max_tokens": 100, "skip_special_tokens": False})["choices"]
    assert choice["text"] == "".join(SAID)


def test_a_router_that_asks_for_marks_in_every_request_does_not_get_them(thinking: WorkerProcess) -> None:
    message = ask(thinking, CHAT, {**QUESTION, **dict.fromkeys(ROUTED_FIELDS, False)})["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (ANSWER, THOUGHT)


def test_texts_without_a_conversation_are_unchanged(thinking: WorkerProcess) -> None:
    (choice,) = ask(thinking, COMPLETIONS, {"prompt": "Hi", "max_tokens": 100})["choices"]
    assert choice["text"] == SPOKEN
    assert text_of(thinking.run(prompt="Hi", max_tokens=100)) == SPOKEN
