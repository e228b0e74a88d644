"""Reasoning and content are reported apart, over real sockets; the engine writes control tokens."""

import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask, chunks
from tests.toy_engine import PREAMBLE, PREAMBLE_SAID, SAID, SCRIPT, THINKING
from tests.worker_process import WorkerProcess, serving_toy, text_of
from worker.apis.core.fields import ROUTED_FIELDS

pytestmark = pytest.mark.process

QUESTION: Json = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
THOUGHT, ANSWER = "The user greets.", "Hello!"
SPOKEN = "analysisThe user greets.assistantfinalHello!"


thinking = serving_toy(kind=THINKING)
both = serving_toy("--reasoning-field", "both", kind=THINKING)
preamble = serving_toy(kind=PREAMBLE)
THOUGHTS, BEFORE, BEHIND = "Hm.\nSo.A stray word.", "I look first. It is here.", "\nBye."
PREAMBLE_SPOKEN = "".join(said for said in PREAMBLE_SAID if not said.startswith("<|"))
MESSAGES = "/v1/messages"


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


def test_a_preamble_is_the_users_and_an_unknown_channel_is_not(preamble: WorkerProcess) -> None:
    message = ask(preamble, CHAT, QUESTION)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (BEFORE + BEHIND, THOUGHTS)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("stop", ["\n", ["Hm", "word", "\n"], ["analysis", "\nB"]])
def test_a_stop_in_the_thoughts_of_a_chat_does_not_end_it(
    preamble: WorkerProcess, stop: str | list[str], is_stream: bool
) -> None:
    asked = {**QUESTION, "stop": stop}
    if is_stream:
        *found, _ = chunks(preamble, CHAT, asked)
        choices = [each["choices"][0] for each in found]
        content = "".join(each["delta"].get("content") or "" for each in choices)
        thoughts = "".join(each["delta"].get("reasoning_content") or "" for each in choices)
        reason = choices[-1]["finish_reason"]
    else:
        (choice,) = ask(preamble, CHAT, asked)["choices"]
        content, thoughts = choice["message"]["content"], choice["message"]["reasoning_content"]
        reason = choice["finish_reason"]
    assert (content, thoughts, reason) == (BEFORE, THOUGHTS, "stop")


def test_a_stop_in_the_thoughts_of_a_message_does_not_end_it(preamble: WorkerProcess) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = ask(preamble, MESSAGES, {"messages": messages, "max_tokens": 100, "stop_sequences": ["Hm", "\n"]})
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    assert ("".join(texts), answer["stop_reason"], answer["stop_sequence"]) == (BEFORE, "stop_sequence", "\n")


def test_where_reasoning_is_content_stops_look_at_all_of_it(preamble: WorkerProcess) -> None:
    message = ask(preamble, CHAT, {**QUESTION, "stop": "\n", "reasoning_format": "none"})["choices"][0]["message"]
    assert message["content"] == "<think>Hm."
    assert "reasoning_content" not in message


def test_stops_of_texts_that_are_not_divided_look_at_all_that_is_shown(preamble: WorkerProcess) -> None:
    before, _, _ = PREAMBLE_SPOKEN.partition("\n")
    (choice,) = ask(preamble, COMPLETIONS, {"prompt": "Hi", "max_tokens": 100, "stop": "\n"})["choices"]
    assert (choice["text"], choice["finish_reason"]) == (before, "stop")
    assert text_of(preamble.run(prompt="Hi", max_tokens=100, stop=["\n"])) == before
    shown = ask(preamble, CHAT, {**QUESTION, "stop": "\n", "skip_special_tokens": False})["choices"][0]["message"]
    assert shown["content"] == "".join(PREAMBLE_SAID).partition("\n")[0]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_options_of_a_stream_without_one_are_ignored_and_named(thinking: WorkerProcess, path: str) -> None:
    asked = QUESTION if path == CHAT else {"prompt": "Hi", "max_tokens": 100}
    response = thinking.post(path, json={**asked, "stream_options": {"include_usage": True}})
    assert (response.status_code, response.headers["x-ignored-fields"]) == (200, "stream_options")
