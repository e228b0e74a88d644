"""Wrong requests at the `/v1` door: each is refused with the right status, in OpenAI's shape, with the field's name.

The engine is a toy, so that all of them take seconds.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import Any

import httpx2
import pytest

from tests.clients.v1 import CHAT, COMPLETIONS, ask, pieces_of, streamed, user
from tests.front.rehearsal import FACTS
from tests.worker_process import WorkerProcess, serve_default
from worker.openai.fields import MAX_PREDICTION_CHARS

pytestmark = [pytest.mark.process, pytest.mark.model]

SECRET = "mellifluous xylophone"
"""Stands in every prompt, and nowhere in an answer or in the log."""

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
N_VOCAB, N_CONTEXT = FACTS.vocab_size, FACTS.context_length

Body = dict[str, Any]

BODIES: dict[str, Body] = {
    CHAT: {"model": "any", "messages": user(SECRET), "max_tokens": 4},
    COMPLETIONS: {"model": "any", "prompt": SECRET, "max_tokens": 4},
    TOKENIZE: {"content": SECRET},
    DETOKENIZE: {"tokens": [1, 2, 3]},
    f"{CHAT}/render": {"model": "any", "messages": user(SECRET)},
    f"{COMPLETIONS}/render": {"model": "any", "prompt": SECRET},
}

ABSENT = object()


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request and what its refusal says."""

    path: str
    body: bytes
    param: str | None
    status: int = 400
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


def changed(path: str, *, param: str | None, code: str | None = None, **change: Any) -> Wrong:
    """A right request with some fields changed or, where they are ABSENT, left out."""
    body = {name: value for name, value in (BODIES[path] | change).items() if value is not ABSENT}
    return Wrong(path, json.dumps(body).encode(), param, code=code)


def each(path: str, field: str, *values: object) -> list[Wrong]:
    changes: list[Body] = [{field: value} for value in values]
    return [changed(path, param=field, **change) for change in changes]


def message(*messages: object, param: str) -> Wrong:
    return changed(CHAT, param=param, messages=list(messages))


def said(value: object, param: str = "messages[0].content") -> Wrong:
    return message({"role": "user", "content": value, "name": SECRET}, param=param)


# ── the table ────────────────────────────────────────────────────────────────────────────────────

SAMPLING: dict[str, tuple[object, ...]] = {
    "temperature": ("hot", -0.1, 2.1, [0.5], True),
    "top_p": ("x", -0.1, 1.1),
    "top_k": ("x", -2, 1.5),
    "min_p": ("x", -0.1, 1.1),
    "typical_p": (-0.1, 1.1),
    "top_n_sigma": (-1, 101),
    "repetition_penalty": ("x", -0.1, 2.1),
    "repeat_last_n": (-2, "x"),
    "presence_penalty": ("x", -2.1, 2.1),
    "frequency_penalty": ("x", -2.1, 2.1),
    "xtc_probability": (-0.1, 1.1),
    "xtc_threshold": (-0.1, 1.1),
    "dry_multiplier": (-1, "x"),
    "dry_base": (0.5, 17),
    "dry_allowed_length": (0, 2049),
    "min_tokens": (-1, 5, "x"),
    "ignore_eos": ("x", 1),
    "stop_token_ids": ("x", [-1], [N_VOCAB], [1] * 65, [1.5]),
    "logit_bias": ([], "x", {"x": 1}, {"1": "a"}, {"1": 101}, {str(N_VOCAB): 1}),
    "seed": ("x", 1.5, 2**63, -(2**63) - 1),
    "n": (0, 17, "two", 1.5, True),
    "max_tokens": (-1, "4", 1.5),
    "stop": (5, [5], {"a": 1}, ["x"] * 17, [""], ["x" * 101]),
    "stream": ("yes", 1),
    "grammar": (5, "", "x\0"),
    "regex": (5, ""),
    "json_schema": ("x", 5, []),
    "guided_json": ("x", "[]", 5, []),
    "guided_regex": (5, ""),
    "guided_choice": ("x", 5, [], ["x\0"]),
    "guided_grammar": (5, "", "x\0"),
    "structured_outputs": ("x", 5, []),
    "prediction": (SECRET, 5, []),
}
"""Fields of chat and of completions alike."""

CHAT_FIELDS: dict[str, tuple[object, ...]] = {
    "messages": (ABSENT, None, [], SECRET, {}, 5),
    "max_tokens": (0,),
    "logprobs": (5, "x"),
    "stream_options": ("x", 5, []),
    "audio": ({"voice": "a", "format": "wav"},),
    "modalities": (["text", "audio"], "x"),
    "web_search_options": ({},),
    "functions": ([{"name": "f"}],),
    "function_call": ("auto",),
    "tools": ([{"type": "function", "function": {"name": "f"}}], "x", [5]),
    "tool_choice": ("required", 5),
    "prompt_logprobs": (1,),
    "reasoning_effort": (5,),
    "store": (True, "x"),
    "chat_template_kwargs": ("x", []),
    "add_generation_prompt": ("x", 1),
    "continue_final_message": ("x", 1),
    "model": (5, []),
}

COMPLETION_FIELDS: dict[str, tuple[object, ...]] = {
    "prompt": (ABSENT, None, "", [], [""], 5, {}, [1, "a"], [[1], 5], [[]], [-1], [N_VOCAB], [[N_VOCAB]], [1.5]),
    "echo": ("x", 1),
    "logprobs": ("x", -1, 21, True),
    "prompt_logprobs": ("x", 21),
    "best_of": (2, "x"),
    "suffix": (SECRET, 5),
    "max_tokens": (0,),
}

FIELDS = [
    *(
        wrong
        for path in (CHAT, COMPLETIONS)
        for field, values in SAMPLING.items()
        for wrong in each(path, field, *values)
    ),
    *(wrong for field, values in CHAT_FIELDS.items() for wrong in each(CHAT, field, *values)),
    *(wrong for field, values in COMPLETION_FIELDS.items() for wrong in each(COMPLETIONS, field, *values)),
    *(
        changed(CHAT, param="max_completion_tokens", max_tokens=ABSENT, max_completion_tokens=value)
        for value in (0, -1, "x", 1.5)
    ),
    *each(COMPLETIONS, "prompt", ["a"] * 129, [True], [[1], [2.5]]),
    *(changed(CHAT, param="top_logprobs", logprobs=True, top_logprobs=value) for value in (-1, 21, "x", 1.5)),
    *(changed(TOKENIZE, param="prompt", content=value) for value in (ABSENT, None)),
    changed(TOKENIZE, param="prompt", prompt=SECRET),
    *each(TOKENIZE, "prompt", 5, [SECRET]),
    *each(TOKENIZE, "add_special", "x", 1),
    *each(TOKENIZE, "content", 5, [SECRET], {}),
    *each(DETOKENIZE, "tokens", ABSENT, None, SECRET, 5, {}, [1.5], [-1], [N_VOCAB], [True], ["1"], [[1]]),
    *each(f"{CHAT}/render", "messages", ABSENT, [], 5),
    *each(f"{COMPLETIONS}/render", "prompt", ABSENT, None, [], 5),
]

MESSAGES = [
    message(SECRET, param="messages[0]"),
    message(5, param="messages[0]"),
    message(None, param="messages[0]"),
    message([], param="messages[0]"),
    message(*user(SECRET), 5, param="messages[1]"),
    message({"content": SECRET}, param="messages[0]"),
    message({"role": None, "content": SECRET}, param="messages[0].role"),
    message({"role": 5, "content": SECRET}, param="messages[0].role"),
    message({"role": "robot", "content": SECRET}, param="messages[0].role"),
    message({"role": "user"}, param="messages[0].content"),
    message({"role": "system", "content": None}, param="messages[0].content"),
    message(*user(SECRET), {"role": "assistant", "content": 5}, *user(SECRET), param="messages[1].content"),
    message({"role": "user", "content": SECRET, "prefix": True}, param="messages[0].prefix"),
    message({"role": "assistant", "content": SECRET, "prefix": "x"}, param="messages[0].prefix"),
    said(None),
    said(5),
    said(value=True),
    said({}),
    said([SECRET], "messages[0].content[0]"),
    said([5], "messages[0].content[0]"),
    said([{}], "messages[0].content[0]"),
    said([{"type": 5}], "messages[0].content[0].type"),
    said([{"type": SECRET}], "messages[0].content[0].type"),
    said([{"type": "text"}], "messages[0].content[0].text"),
    said([{"type": "text", "text": 5}], "messages[0].content[0].text"),
    said([{"type": "text", "text": None}], "messages[0].content[0].text"),
    said([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages[0].content[0].type"),
    said([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}], "messages[0].content[0].type"),
    said([{"type": "file", "file": {}}], "messages[0].content[0].type"),
]

FORMATS = [
    changed(CHAT, param=param, response_format=value)
    for value, param in (
        ("json", "response_format"),
        (5, "response_format"),
        ([], "response_format"),
        ({}, "response_format"),
        ({"type": 5}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": 5}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}, "response_format.json_schema.schema"),
    )
]

CONFLICTS = [
    changed(CHAT, param="regex", grammar='root ::= "a"', regex="a"),
    changed(CHAT, param="json_schema", grammar='root ::= "a"', json_schema={}),
    changed(COMPLETIONS, param="regex", json_schema={}, regex="a"),
    changed(CHAT, param="ignore_eos", ignore_eos=True, regex="a"),
    changed(CHAT, param="regex", response_format={"type": "json_object"}, regex="a"),
    changed(CHAT, param="guided_choice", response_format={"type": "json_object"}, guided_choice=["a"]),
    changed(COMPLETIONS, param="guided_json", regex="a", guided_json={}),
    changed(CHAT, param="structured_outputs.regex", structured_outputs={"json": {}, "regex": "a"}),
    changed(COMPLETIONS, param="structured_outputs.choice", structured_outputs={"choice": []}),
    changed(CHAT, param="structured_outputs.whitespace_pattern", structured_outputs={"whitespace_pattern": ""}),
    changed(CHAT, param="ignore_eos", ignore_eos=True, guided_choice=["a"]),
    *(
        changed(path, param=f"prediction.{name}", prediction={"type": "content", "content": SECRET} | wrong)
        for path in (CHAT, COMPLETIONS)
        for name, wrong in (
            ("type", {"type": "image"}),
            ("type", {"type": 5}),
            ("content", {"content": 5}),
            ("content", {"content": "x" * (MAX_PREDICTION_CHARS + 1)}),
            ("content[0].type", {"content": [{"type": "image_url"}]}),
            ("content[0].text", {"content": [{"type": "text"}]}),
        )
    ),
    changed(CHAT, param="prediction.content", prediction={"type": "content"}),
    changed(CHAT, param="prediction", prediction={"type": "content", "content": f"unreadable {SECRET}"}),
    said(f"unreadable {SECRET}", "messages"),
    changed(COMPLETIONS, param="prompt", prompt=f"unreadable {SECRET}"),
    changed(TOKENIZE, param="content", content=f"unreadable {SECRET}"),
    changed(TOKENIZE, param="prompt", content=ABSENT, prompt=f"unreadable {SECRET}"),
    changed(CHAT, param="prediction.type", prediction={"content": SECRET}),
    changed(CHAT, param="json_schema", response_format={"type": "json_object"}, json_schema={}),
    changed(COMPLETIONS, param="n", prompt=["a"] * 65, n=2),
    changed(COMPLETIONS, param="prompt_logprobs", prompt_logprobs=1, stream=True),
    changed(CHAT, param="continue_final_message", continue_final_message=True),
    changed(CHAT, param="top_logprobs", top_logprobs=3),
    changed(CHAT, param="top_logprobs", logprobs=False, top_logprobs=3),
    changed(CHAT, param="max_tokens", max_tokens=4, max_completion_tokens=5),
    changed(CHAT, param="stream_options", stream_options={"include_usage": True}),
    changed(COMPLETIONS, param="stream_options", stream=False, stream_options={"include_usage": True}),
    changed(CHAT, param="continue_final_message", continue_final_message=True, add_generation_prompt=True),
    changed(CHAT, param="messages", code="context_length_exceeded", messages=user("x" * N_CONTEXT)),
    changed(COMPLETIONS, param="prompt", code="context_length_exceeded", prompt="x" * N_CONTEXT),
    changed(COMPLETIONS, param="prompt", code="context_length_exceeded", prompt=[1] * N_CONTEXT),
]

NOT_OBJECTS = (b"", b"[]", b'"x"', b"null", b"5", b"true", b"{", b'{"a":1}{', b"\xff", b'{"messages":', b"{'a':1}")

SHAPES = [
    *(Wrong(path, body, None) for path in (CHAT, COMPLETIONS) for body in NOT_OBJECTS),
    *(Wrong(path, b"[]", None) for path in BODIES),
    *(Wrong(path, b"[" * 5000, None) for path in BODIES),
    Wrong(CHAT, json.dumps(BODIES[CHAT]).encode(), None, 415, headers=(("content-type", "text/plain"),)),
    Wrong(CHAT, b'{"model": "' + b"x" * 3_000_000 + b'"}', None, 413),
    Wrong("/v1/models/another", b"", None, 405),
]

ALL = [*FIELDS, *MESSAGES, *FORMATS, *CONFLICTS, *SHAPES]


def name_of(wrong: Wrong) -> str:
    return f"{wrong.path.removeprefix('/v1')}-{wrong.param}-{wrong.body[-24:]!r}"


# ── the worker ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def toy(default_model: Path) -> Iterator[WorkerProcess]:
    """A real front before a toy engine; nothing that was ever sent to it is in its log."""
    command = (sys.executable, "-m", "tests.fronted_by", "tests.toy_engine")
    with serve_default(default_model, "--log-level", "debug", command=command) as worker:
        yield worker.ready()
        worker.terminate()
        assert worker.exit_code() == 0
        assert SECRET not in "".join(worker.stderr)


@pytest.fixture(scope="module")
def client(toy: WorkerProcess) -> Iterator[httpx2.Client]:
    """A fresh connection for every request."""
    with toy.client(limits=httpx2.Limits(max_keepalive_connections=0)) as client:
        yield client


def refused(client: httpx2.Client, wrong: Wrong) -> None:
    """The request is refused as its row says. Raises: AssertionError."""
    response = client.post(wrong.path, content=wrong.body, headers=dict(wrong.headers))
    assert response.status_code == wrong.status, response.text
    assert SECRET not in response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in {"invalid_request_error", "not_found_error"}
    assert error["message"]
    assert wrong.param == error["param"] or error["param"].startswith((f"{wrong.param}[", f"{wrong.param}."))
    assert wrong.code is None or error["code"] == wrong.code


# ── the laws ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", ALL, ids=name_of)
def test_a_wrong_request_is_refused_with_the_fields_name_and_nothing_of_the_prompt(
    wrong: Wrong, client: httpx2.Client
) -> None:
    refused(client, wrong)


def test_a_prompt_that_does_not_fit_is_told_both_numbers(toy: WorkerProcess) -> None:
    response = toy.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {"prompt": [1] * 2000})
    assert "2000" in response.json()["error"]["message"]
    assert str(N_CONTEXT) in response.json()["error"]["message"]


def test_wrong_requests_change_nobodys_answer(toy: WorkerProcess, client: httpx2.Client) -> None:
    """Neighbours stream all the while, one after the other."""
    asked: Body = {"messages": user("A neighbour"), "max_tokens": 200, "temperature": 1.0, "seed": 5}
    alone = pieces_of(streamed(toy, CHAT, **asked))
    is_over = Flag()

    def neighbour() -> int:
        n_streams = 0
        while not is_over.is_set():
            assert pieces_of(streamed(toy, CHAT, **asked)) == alone
            n_streams += 1
        return n_streams

    with ThreadPoolExecutor(5) as pool:
        beside = pool.submit(neighbour)
        try:
            list(pool.map(lambda wrong: refused(client, wrong), ALL))
        finally:
            is_over.set()
        assert beside.result() > 0
    assert toy.is_idle()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_that_are_null_are_as_if_they_were_absent(path: str, toy: WorkerProcess) -> None:
    """vLLM once answered `tool_choice: null` with an error."""
    optional = {*SAMPLING, *(CHAT_FIELDS if path == CHAT else COMPLETION_FIELDS), "user", "stream_options"}
    nulls = dict.fromkeys(optional - {"messages", "prompt", "model"})
    nulls |= dict.fromkeys(["tools", "tool_choice", "response_format", "top_logprobs"] if path == CHAT else [])
    plain = BODIES[path] | {"max_tokens": None, "seed": 3}
    assert choices(ask(toy, path, **(plain | nulls | {"seed": 3}))) == choices(ask(toy, path, **plain))


def choices(answer: Body) -> object:
    return answer["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_unknown_fields_are_ignored_and_named_in_a_header(path: str, toy: WorkerProcess) -> None:
    """What routers and other servers' clients add."""
    strange = {"no_stop_trim": False, "separate_reasoning": True, "return_hidden_states": False, "zz": {"a": [1]}}
    response = toy.post(path, json=BODIES[path] | strange)
    assert response.status_code == 200
    named = {name.strip() for name in response.headers["x-ignored-fields"].split(",")}
    assert named == set(strange)
    harmless = {"user": "u"} | ({"metadata": {"a": "b"}, "store": False} if path == CHAT else {})
    response = toy.post(path, json=BODIES[path] | harmless)
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == ", ".join(harmless)
