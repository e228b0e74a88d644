"""`/v1` over real sockets with the default model: chats in its own template, tokens, salts and reasoning."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask, chunks, refusal
from tests.worker_process import WorkerProcess, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.usefixtures("default_model")]

QUESTION: Json = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    "temperature": 0,
    "max_tokens": 40,
}
PROMPT = (
    "<|im_start|>system\nYou answer in one short sentence.<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


def test_a_chat_becomes_the_prompt_of_its_template(eloquent: WorkerProcess) -> None:
    rendered = ask(eloquent, "/v1/chat/completions/render", QUESTION)
    assert rendered["prompt"] == PROMPT
    (same,) = eloquent.post("/v1/completions/render", json={"prompt": PROMPT}).json()
    assert same["token_ids"] == rendered["token_ids"]
    answer = ask(eloquent, CHAT, QUESTION)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == eloquent.text(prompt=PROMPT, max_tokens=40)
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == len(rendered["token_ids"])


LARK = "?start: capital\ncapital: NAME\nNAME: /[A-Z][a-z]+/"
"""A Lark grammar, as vLLM's clients send it."""


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, r'\{"a": ?-?\d+.*'),
        ("json", '{"enum": ["Paris", "Rome"]}', '"(Paris|Rome)"'),
        ("regex", "[0-9]{3}", "[0-9]{3}"),
        ("choice", ["Paris is (the) capital.", "R*me"], r"Paris is \(the\) capital\.|R\*me"),
        ("grammar", 'root ::= "Paris" | "Rome"', "Paris|Rome"),
        ("grammar", LARK, "[A-Z][a-z]+"),
    ],
)
def test_the_answer_follows_a_constraint_in_vllms_spellings(
    eloquent: WorkerProcess, path: str, name: str, value: Json | str, wanted: str
) -> None:
    prompt: Json = {"messages": QUESTION["messages"]} if path == CHAT else {"prompt": PROMPT}
    for constraint in ({f"guided_{name}": value}, {"structured_outputs": {name: value}}):
        answer = ask(eloquent, path, {**prompt, "temperature": 0, "max_tokens": 24, **constraint})
        (choice,) = answer["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert re.fullmatch(wanted, text), text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, "response_format"),
        ({"guided_json": {"uniqueItems": True}}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "nothing"}, "guided_grammar"),
        ({"structured_outputs": {"grammar": "root ::= root2"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": '{"uniqueItems": true}'}}, "structured_outputs.json"),
    ],
)
def test_a_refusal_by_the_engine_names_the_field_as_it_was_sent(
    eloquent: WorkerProcess, path: str, sent: Json, param: str
) -> None:
    prompt: Json = {"messages": QUESTION["messages"]} if path == CHAT else {"prompt": PROMPT}
    error = refusal(eloquent.post(path, json={**prompt, **sent}))
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert error["message"].startswith(f"{param}: ")


def test_a_prefix_is_continued_and_unread_members_are_named(eloquent: WorkerProcess) -> None:
    asked = QUESTION["messages"]
    begun: Json = {"role": "assistant", "content": "The capital of"}
    plain = {**QUESTION, "messages": [*asked, begun], "continue_final_message": True}
    marked = [{**asked[0], "cache_control": {"type": "ephemeral"}}, asked[1], {**begun, "prefix": True}]
    response = eloquent.post(CHAT, json={**QUESTION, "messages": marked, "verbosity": "low", "store": False})
    assert response.headers["x-ignored-fields"] == "verbosity, store, messages.cache_control"
    assert response.json()["choices"] == ask(eloquent, CHAT, plain)["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prediction_changes_no_token_and_is_counted(eloquent: WorkerProcess, path: str) -> None:
    asked: Json = {**QUESTION, "prompt": PROMPT} if path == COMPLETIONS else QUESTION
    asked = {**asked, "logprobs": 0} if path == COMPLETIONS else {**asked, "logprobs": True}
    plain = ask(eloquent, path, asked)
    (choice,) = plain["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    for content in (text, [{"type": "text", "text": text}], "Another answer altogether.", "", text.upper()):
        response = eloquent.post(path, json={**asked, "n": 2, "prediction": {"type": "content", "content": content}})
        told = response.json()
        assert [one | {"index": 0} for one in told["choices"]] == [choice] * 2
        details = told["usage"]["completion_tokens_details"]
        assert 0 <= details["accepted_prediction_tokens"] < told["usage"]["completion_tokens"]
        assert details["rejected_prediction_tokens"] >= 0


def test_log_probabilities_of_an_answer_make_its_text(eloquent: WorkerProcess) -> None:
    (choice,) = ask(eloquent, CHAT, {**QUESTION, "logprobs": True, "top_logprobs": 3})["choices"]
    found = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in found).decode() == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in found)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in found)


def test_tokens_are_returned_in_either_spelling_and_become_their_text_again(eloquent: WorkerProcess) -> None:
    text = "Zwölf Boxkämpfer <|im_end|> 世界"
    vllm = ask(eloquent, "/tokenize", {"prompt": text, "add_special_tokens": False})
    llama = ask(eloquent, "/tokenize", {"content": text})
    assert vllm["tokens"] == llama["tokens"]
    assert vllm["count"] == len(vllm["tokens"])
    assert ask(eloquent, "/detokenize", {"tokens": vllm["tokens"]}) == {"content": text, "prompt": text}
    chat = ask(eloquent, "/tokenize", {"messages": QUESTION["messages"]})
    assert chat["tokens"] == ask(eloquent, "/v1/chat/completions/render", QUESTION)["token_ids"]
    info = eloquent.get("/tokenizer_info").json()
    assert (info["eos_token"], "im_start" in info["chat_template"]) == ("<|im_end|>", True)


def test_an_echo_has_the_prompt_and_its_logprobs(eloquent: WorkerProcess) -> None:
    text = "The capital of France is Paris"
    ids = ask(eloquent, "/tokenize", {"prompt": text})["tokens"]
    scored = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    (choice,) = ask(eloquent, COMPLETIONS, scored)["choices"]
    found = choice["logprobs"]
    assert {len(column) for column in found.values()} == {len(ids) + 1}
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"][:3] == [0, len(found["tokens"][0]), len("".join(found["tokens"][:2]))]
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert all(logprob < 0 for logprob in found["token_logprobs"][1:])
    spelled = ask(eloquent, COMPLETIONS, {**scored, "prompt": text, "max_tokens": 0})["choices"][0]
    assert spelled["text"] == text
    assert spelled["logprobs"]["token_logprobs"] == found["token_logprobs"][:-1]


# ── salts ────────────────────────────────────────────────────────────────────────────────────────

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 8
TURNS = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 1}
ROUTES: dict[str, tuple[Json, Callable[[Json], int]]] = {
    CHAT: (TURNS, lambda usage: usage["prompt_tokens_details"]["cached_tokens"]),
    COMPLETIONS: ({"prompt": STORY, "max_tokens": 1}, lambda usage: usage["prompt_tokens_details"]["cached_tokens"]),
    "/v1/responses": (
        {"input": STORY, "max_output_tokens": 1},
        lambda usage: usage["input_tokens_details"]["cached_tokens"],
    ),
    "/v1/messages": (TURNS, lambda usage: usage["cache_read_input_tokens"]),
}
"""A request, and where its answer says how much of the prompt was cached."""


@pytest.mark.parametrize("path", ROUTES)
def test_a_cached_prompt_is_found_with_its_own_salt_only(eloquent: WorkerProcess, path: str) -> None:
    request, cached = ROUTES[path]
    found = []
    for salt in ("one", "one", "two", None, None, "two", ""):
        answer = eloquent.post(path, json=request | {"cache_salt": None if salt is None else f"{path} {salt}"})
        assert answer.status_code == 200, answer.text
        assert "cache_salt" not in answer.headers.get("x-ignored-fields", "")
        found.append(cached(answer.json()["usage"]))
    assert [n > 100 for n in (found[1], found[4], found[5])] == [True] * 3
    assert (found[0], found[2], found[6]) == (0, 0, 0)


# ── reasoning between markers that are text for the model's vocabulary ───────────────────────────

TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""A template that opens the reasoning. The model has not learned to close it."""
WHY: Json = {
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
    (free,) = ask(thinking, CHAT, WHY)["choices"]
    assert free["message"]["reasoning_content"]
    assert not free["message"]["content"], "it goes on to reason"
    limited = {**WHY, "thinking_token_budget": BUDGET}
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
    asked = {**WHY, "thinking_token_budget": BUDGET, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = ask(thinking, CHAT, {**asked, "tools": [{"type": "function", "function": tool}]})["choices"]
    assert choice["message"]["reasoning_content"]
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("look", "tool_calls")
