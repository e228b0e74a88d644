"""`POST /v1/chat/completions` and what is told of tokens, over real sockets, with the default model's own template."""

import re

import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask, refusal
from tests.worker_process import WorkerProcess

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


def test_the_answer_has_the_requested_format(eloquent: WorkerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    content = ask(eloquent, CHAT, {**QUESTION, "response_format": named})["choices"][0]["message"]["content"]
    assert content.replace(" ", "") in {'{"city":"Paris"}', '{"city":"Rome"}'}


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
