"""`POST /v1/completions` over real sockets: the same jobs as `/execute`'s, in another shape."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crashing_engine import STALL, marker
from tests.crashing_worker import QUESTION, crashing_worker
from tests.server.web.openai_client import COMPLETIONS, ask, chunks, refusal, streamed
from tests.server.web.wire import COUNT
from tests.worker_process import Event, WorkerProcess, eventually, serve_default, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

GREEDY: Event = {"model": "any", "prompt": COUNT, "temperature": 0, "max_tokens": 8}


def test_the_text_is_that_of_execute(worker: WorkerProcess) -> None:
    wanted = worker.run(prompt=COUNT, max_tokens=8)
    answer = ask(worker, COMPLETIONS, GREEDY)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text_of(wanted), "length")
    assert (answer["object"], answer["model"]) == ("text_completion", worker.get("/v1/models").json()["data"][0]["id"])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (13, 8, 21)


def test_an_answer_names_its_job_in_a_header_and_its_id(worker: WorkerProcess) -> None:
    response = worker.post(COMPLETIONS, json=GREEDY)
    assert response.headers["x-request-id"] == response.json()["id"]
    assert response.headers["content-type"] == "application/json"
    assert response.json()["id"].startswith("cmpl-")
    assert "x-ignored-fields" not in response.headers
    strange = worker.post(COMPLETIONS, json={**GREEDY, "no_stop_trim": True, "bad name": 1, "user": "me"})
    assert strange.headers["x-ignored-fields"] == "no_stop_trim, bad%20name, user"


def test_n_answers_have_the_seeds_that_follow(worker: WorkerProcess) -> None:
    sampled = {**GREEDY, "temperature": 1.5, "seed": -2}
    together = ask(worker, COMPLETIONS, {**sampled, "n": 3})
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    alone = [ask(worker, COMPLETIONS, {**sampled, "seed": seed})["choices"][0]["text"] for seed in (-2, -1, 0)]
    assert [choice["text"] for choice in together["choices"]] == alone
    assert together["usage"]["prompt_tokens"] == 13
    assert together["usage"]["completion_tokens"] == 24


def test_streams_of_n_answers_carry_their_indexes(worker: WorkerProcess) -> None:
    sampled = {**GREEDY, "temperature": 1.5, "seed": 7, "n": 3, "stream_options": {"include_usage": True}}
    *found, usage, done = chunks(worker, COMPLETIONS, sampled)
    assert done == "[DONE]"
    texts = ["", "", ""]
    reasons: list[list[str | None]] = [[], [], []]
    for each in found:
        assert each["usage"] is None
        (choice,) = each["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]].append(choice["finish_reason"])
    del sampled["stream_options"]
    assert texts == [choice["text"] for choice in ask(worker, COMPLETIONS, sampled)["choices"]]
    assert all(each[-1] == "length" and set(each[:-1]) <= {None} for each in reasons)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 24)


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


def test_a_cancelled_answer_that_does_not_stream_is_an_error(any_model: Path) -> None:
    """Nobody is told its id before it is there, but for the log."""
    with serve_default(any_model, "--parallel", "1", "--scheduling", "first-come", "--ctx-size", "2048") as worker:
        worker.ready()
        with streamed(worker, COMPLETIONS, {**GREEDY, "max_tokens": 1500}) as (_, found):
            next(found)
            with worker.connect() as sock:
                body = b'{"prompt":"Hello","max_tokens":5}'
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\n"
                sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                job_id = [worker.wait_for("execute_start")["job_id"] for _ in range(2)][1]
                worker.post("/cancel", json={"job_id": job_id})
                assert sock.recv(65536).startswith(b"HTTP/1.1 499 ")


def test_too_many_jobs_for_one_answer_open_none(any_model: Path) -> None:
    with serve_default(
        any_model, "--parallel", "1", "--scheduling", "first-come", "--max-queue", "2", "--ctx-size", "1024"
    ) as worker:
        worker.ready()
        refused = worker.post(COMPLETIONS, json={**GREEDY, "n": 4})
        assert (refused.status_code, refusal(refused)["type"]) == (503, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        assert worker.is_idle()
        assert len(ask(worker, COMPLETIONS, {**GREEDY, "n": 3})["choices"]) == 3


def test_log_probabilities_have_an_entry_for_each_token(worker: WorkerProcess) -> None:
    (choice,) = ask(worker, COMPLETIONS, {**GREEDY, "logprobs": 2})["choices"]
    found = choice["logprobs"]
    assert {len(column) for column in found.values()} == {8}
    assert "".join(found["tokens"]) == choice["text"]
    assert all(len(top) == 2 for top in found["top_logprobs"])
    assert all(
        max(top, key=top.get) == token for top, token in zip(found["top_logprobs"], found["tokens"], strict=True)
    )


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


def test_a_gap_is_refused_if_the_model_cannot_fill_one(worker: WorkerProcess) -> None:
    error = refusal(worker.post(COMPLETIONS, json={**GREEDY, "suffix": "x"}))
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    error = refusal(worker.post("/infill", json={"input_prefix": "a", "input_suffix": "b"}))
    assert error["param"] == "input_prefix"
