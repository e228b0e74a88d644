"""No number of texts that kill whoever reads them ends the worker (docs/protocol.md#life-of-a-job).

A real front before a toy engine that dies in the intake: while it reads a prompt, renders a conversation,
compiles a schema or makes text of tokens.
"""

from typing import Any

import pytest

from tests.toy_engine import FRAGILE, POISON, POISON_TOKEN
from tests.worker_process import Event, WorkerProcess, check_order, serving_toy
from worker.server.front.dispatch import MAX_DEATHS

pytestmark = pytest.mark.process

N_QUESTIONS = 4 * MAX_DEATHS
MESSAGES = [{"role": "user", "content": f"Is {POISON} good for me?"}]
SCHEMA = {"type": "object", "description": POISON}

QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": POISON}),
    ("/tokenize", {"messages": MESSAGES}),
    ("/detokenize", {"tokens": [int(POISON_TOKEN)]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}),
    ("/v1/completions", {"prompt": POISON, "max_tokens": 3}),
]


worker = serving_toy(kind=FRAGILE)


def n_restarts(worker: WorkerProcess) -> int:
    return int(worker.metrics()["worker_engine_restarts_total"])


def check_that_it_serves(worker: WorkerProcess) -> None:
    """Once the engine has died twice. Asked is a question alone: a finished job would make the deaths before it
    forgotten."""
    for _ in range(2):
        worker.wait_for("engine_restarted")
        worker.wait_for("model_load_complete")
    assert worker.post("/tokenize", json={"prompt": "abc"}).json()["count"] == 3
    assert worker.health()["status"] == "healthy"


def error_of(body: Event) -> Event:
    """The error in either dialect."""
    error: Event = body.get("error", body)
    return error


def test_twenty_poisonous_questions_are_answered_one_by_one_and_the_worker_still_serves(worker: WorkerProcess) -> None:
    before = n_restarts(worker)
    for number in range(N_QUESTIONS):
        path, body = QUESTIONS[number % len(QUESTIONS)]
        answer = worker.post(path, json=body)
        assert answer.status_code == 500, (path, answer.text)
        assert error_of(answer.json())["code"].upper() == "INFERENCE_FAILED"
        assert POISON not in answer.text
        check_that_it_serves(worker)
    assert n_restarts(worker) == before + 2 * N_QUESTIONS


def test_jobs_whose_prompt_or_schema_kills_end_and_the_worker_still_serves(worker: WorkerProcess) -> None:
    before = n_restarts(worker)
    poisons: list[dict[str, Any]] = [{"prompt": POISON}, {"prompt": "abc", "json_schema": SCHEMA}]
    for poison in poisons * 3:
        events = worker.run(max_tokens=3, **poison)
        assert (events[-1]["type"], events[-1]["code"]) == ("error", "INFERENCE_FAILED")
        check_that_it_serves(worker)
    assert n_restarts(worker) == before + 12
    check_order(worker.run(prompt="abc", max_tokens=3))
