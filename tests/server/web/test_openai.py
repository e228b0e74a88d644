"""`/v1` over real sockets: chats in the default model's own template, tokens, salts and reasoning; completions are the
same jobs as `/execute`'s.

The words of refusals are in tests/record.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import crashing_worker
from tests.crashing_engine import STALL, marker
from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask, chunks, refusal, streamed
from tests.server.web.wire import COUNT, post_json
from tests.worker_process import ONE_SLOT, Event, WorkerProcess, eventually, serve_default, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

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


# ── completions ──────────────────────────────────────────────────────────────────────────────────

GREEDY: Event = {"model": "any", "prompt": COUNT, "temperature": 0, "max_tokens": 8}

single = serving("any_model", *ONE_SLOT, "--max-queue", "2", "--ctx-size", "2048", scope="function")


def test_the_text_is_that_of_execute(worker: WorkerProcess) -> None:
    wanted = worker.run(prompt=COUNT, max_tokens=8)
    response = worker.post(COMPLETIONS, json=GREEDY)
    answer = response.json()
    assert response.headers["x-request-id"] == answer["id"]
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text_of(wanted), "length")
    assert (answer["object"], answer["model"]) == ("text_completion", worker.get("/v1/models").json()["data"][0]["id"])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (13, 8, 21)


def test_n_answers_have_the_seeds_that_follow_and_are_the_same_as_streams(worker: WorkerProcess) -> None:
    sampled = {**GREEDY, "temperature": 1.5, "seed": -2}
    together = ask(worker, COMPLETIONS, {**sampled, "n": 3})
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    alone = [ask(worker, COMPLETIONS, {**sampled, "seed": seed})["choices"][0]["text"] for seed in (-2, -1, 0)]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert (together["usage"]["prompt_tokens"], together["usage"]["completion_tokens"]) == (13, 24)
    *found, usage, done = chunks(worker, COMPLETIONS, {**sampled, "n": 3, "stream_options": {"include_usage": True}})
    assert (done, usage["choices"], usage["usage"]["completion_tokens"]) == ("[DONE]", [], 24)
    choices = [choice for each in found for choice in each["choices"]]
    for index, text in enumerate(alone):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]


def test_the_id_of_an_answer_cancels_all_its_jobs(worker: WorkerProcess) -> None:
    long = {**GREEDY, "max_tokens": 1500, "n": 3}
    with streamed(worker, COMPLETIONS, long) as (response, found):
        next(found)
        assert worker.post("/cancel", json={"job_id": response.headers["x-request-id"]}).status_code == 202
        *_, last = found
    assert last["error"]["code"] == "cancelled"
    eventually(worker.is_idle)


def test_a_client_that_leaves_ends_its_jobs(worker: WorkerProcess) -> None:
    with streamed(worker, COMPLETIONS, {**GREEDY, "max_tokens": 1500, "n": 2}) as (_, found):
        next(found)
    eventually(worker.is_idle)


def test_a_cancelled_answer_that_does_not_stream_is_an_error(single: WorkerProcess) -> None:
    """Nobody is told its id before it is there, but for the log."""
    with streamed(single, COMPLETIONS, {**GREEDY, "max_tokens": 1500}) as (_, found):
        next(found)
        single.wait_for("execute_start")
        with single.connect() as sock:
            sock.sendall(post_json(COMPLETIONS, {"prompt": "Hello", "max_tokens": 5}))
            single.post("/cancel", json={"job_id": single.wait_for("execute_start")["job_id"]})
            assert sock.recv(65536).startswith(b"HTTP/1.1 499 ")
    eventually(single.is_idle)


def test_too_many_jobs_for_one_answer_open_none(single: WorkerProcess) -> None:
    refused = single.post(COMPLETIONS, json={**GREEDY, "n": 4})
    assert (refused.status_code, refusal(refused)["type"]) == (503, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1
    assert single.is_idle()
    assert len(ask(single, COMPLETIONS, {**GREEDY, "n": 3})["choices"]) == 3


# ── an engine that dies ──────────────────────────────────────────────────────────────────────────


def test_an_answer_that_was_not_sent_survives_an_engine_crash(any_model: Path) -> None:
    """Its job had drawn tokens, but its client has seen none of them."""
    with crashing_worker.crashing_worker(any_model, "--parallel", "2") as crashing:
        worker, gates = crashing.worker.ready(), crashing.gates
        stalling = {**GREEDY, "prompt": f"{STALL}{crashing_worker.QUESTION}"}
        wanted = ask(worker, COMPLETIONS, stalling)["choices"]
        n_begun = worker.metrics()["worker_time_to_first_token_seconds_count"]
        gates.shut("decode")
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, worker, COMPLETIONS, stalling)
            eventually(lambda: worker.metrics()["worker_time_to_first_token_seconds_count"] > n_begun)
            worker.engine.kill()
            gates.open("decode")
            assert asking.result()["choices"] == wanted
        assert crashing.n_restarts == 1


def test_a_job_that_crashes_every_engine_is_a_server_error(any_model: Path) -> None:
    with crashing_worker.crashing_worker(any_model, "--parallel", "2") as crashing:
        worker = crashing.worker.ready()
        response = worker.post(COMPLETIONS, json={**GREEDY, "prompt": f"{marker('null context')}Hello"})
        assert (response.status_code, refusal(response)["code"]) == (500, "inference_failed")


# ── a worker with a name ────────────────────────────────────────────────────────────────────────

NAME = "org/served:model"
BODY = {"prompt": "Hello", "max_tokens": 1}
FLAGS = ("--served-model-name", NAME, "--strict-model", "--ctx-size", "1024")
named = serving("shallow_model", *FLAGS)


def test_the_model_is_listed_and_found_by_its_name(named: WorkerProcess) -> None:
    (card,) = named.get("/v1/models").json()["data"]
    assert named.get(f"/v1/models/{NAME}").json() == card
    assert named.get("/v1/models/org%2Fserved:model").json() == card
    assert (card["id"], card["object"]) == (NAME, "model")
    health = named.get("/health").json()
    assert (card["max_model_len"], card["meta"]["n_vocab"]) == (health["context_length"], health["vocab_size"])
    assert card["meta"]["chat_format"] == "hermes (generic)"


def test_without_a_name_of_its_own_the_model_is_called_what_the_user_typed(worker: WorkerProcess) -> None:
    """A path was typed, of which the directories are nobody's business."""
    name = Path(worker.health()["model_ref"]).name
    assert worker.get("/v1/models").json()["data"][0]["id"] == name
    assert f'model_name="{name}"' in worker.get("/metrics").text


def test_another_model_is_not_found(named: WorkerProcess) -> None:
    for response in (
        named.get("/v1/models/other"),
        named.post(COMPLETIONS, json={**BODY, "model": "other"}),
        named.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], "model": "other"}),
    ):
        error = refusal(response)
        assert (response.status_code, error["type"], error["code"]) == (404, "not_found_error", "model_not_found")
    assert named.post(COMPLETIONS, json={**BODY, "model": NAME}).json()["model"] == NAME
