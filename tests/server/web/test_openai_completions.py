"""`POST /v1/completions` over real sockets: the same jobs as `/execute`'s; and what a named worker says at `/v1`.

The words of refusals are in tests/record.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crashing_engine import STALL, marker
from tests.crashing_worker import QUESTION, crashing_worker
from tests.server.web.openai_client import CHAT, COMPLETIONS, ask, chunks, refusal, streamed
from tests.server.web.wire import COUNT, post_json
from tests.worker_process import ONE_SLOT, Event, WorkerProcess, eventually, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

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


def test_prompts_in_a_list_are_answered_each(worker: WorkerProcess) -> None:
    prompts = ["The capital of France is", COUNT]
    together = ask(worker, COMPLETIONS, {**GREEDY, "prompt": prompts})
    alone = [ask(worker, COMPLETIONS, {**GREEDY, "prompt": prompt})["choices"][0]["text"] for prompt in prompts]
    assert [choice["text"] for choice in together["choices"]] == alone


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
    with crashing_worker(any_model, "--parallel", "2") as crashing:
        worker, gates = crashing.worker.ready(), crashing.gates
        stalling = {**GREEDY, "prompt": f"{STALL}{QUESTION}"}
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
    with crashing_worker(any_model, "--parallel", "2") as crashing:
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
