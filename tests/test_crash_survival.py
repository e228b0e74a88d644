"""The front answers for every job whatever happens to the engine (docs/protocol.md#life-of-a-job)."""

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.crashing_engine import DEATH, LAST_LINE, STALL, marker
from tests.crashing_worker import QUESTION, CrashingWorker, check_interrupted, crashing_worker
from tests.worker_process import PATIENCE_S, check_order, text_of
from worker.server.front.children import LAST_WORDS_BYTES

pytestmark = [pytest.mark.model, pytest.mark.process]

DEATHS = {
    "sequence out of range": ("SIGABRT", "seq_id >= 0"),
    "grammar trigger no regex": ("SIGABRT", "std::regex_error"),
    "null context": ("SIGSEGV", ""),
    "nested grammar": ("SIGSEGV", ""),
    "garbage to the front": ("a frame that cannot be read", ""),
}
"""kind → (part of the cause, part of the last words): an assert and an exception of llama.cpp's, a bad address, a full
stack, and an engine that lives."""

NAMED = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 20}},
    "required": ["capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def crashing(shallow_model: Path) -> Iterator[CrashingWorker]:
    """Three slots; one front for all tests of this module that it survives."""
    with crashing_worker(shallow_model, "--parallel", "3") as crashing:
        crashing.worker.ready()
        yield crashing


@pytest.fixture(scope="module")
def answer(crashing: CrashingWorker) -> str:
    """The first engine's."""
    return crashing.answer()


# ── a memory that somebody counts otherwise ──────────────────────────────────────────────────────


def test_an_engine_whose_counts_of_cells_differ_is_replaced_once_it_is_idle(
    crashing: CrashingWorker, answer: str
) -> None:
    with crashing.worker.stream(prompt=f"{marker('tokens nobody knows of')}Hello", max_tokens=8) as stream:
        assert list(stream)[-1]["type"] == "end"
    death = crashing.replaced()
    assert death["level"] == "error"
    assert re.search(r"KvMismatch: seq_id 2 has \d+ tokens in llama.cpp's memory; we count 0$", death["last_words"])
    assert crashing.answer() == answer


# ── a job that kills the engine every time ───────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", DEATHS)
def test_a_job_that_kills_the_engine_costs_no_other_client_a_job(
    kind: str, crashing: CrashingWorker, answer: str
) -> None:
    """The others are: a job that has sent a token, one in the same prefill step, one that waits for a slot. All but the
    first are equally short, so that none passes another.
    """
    worker, gates = crashing.worker, crashing.gates
    n_restarts = crashing.n_restarts
    gates.shut("crash")
    with ExitStack() as jobs:
        streaming = jobs.enter_context(crashing.streaming_job())
        poison = jobs.enter_context(worker.stream(prompt=f"{marker(kind)}Hello", max_tokens=8))
        neighbour = jobs.enter_context(worker.stream(prompt=QUESTION, max_tokens=8, temperature=1.0))
        waiting = jobs.enter_context(worker.stream(prompt=QUESTION, max_tokens=8))
        gates.open("decode")
        begun = neighbour.until("started")
        gates.open("crash")
        first, second = crashing.replaced(), crashing.replaced()
        check_interrupted(list(streaming))
        poisoned, whole, waited = list(poison), begun + list(neighbour), list(waiting)
    cause, last_words = DEATHS[kind]
    for death in (first, second):
        assert cause in death["cause"]
        assert last_words in death["last_words"]
    for events in (poisoned, whole, waited):
        check_order(events)
    assert (poisoned[-1]["code"], poisoned[-1]["retriable"]) == ("INFERENCE_FAILED", False)
    again = worker.text(prompt=QUESTION, max_tokens=8, temperature=1.0, seed=begun[0]["seed"])
    assert text_of(whole) == again, "the seed was drawn once, for both runs"
    assert text_of(waited) == crashing.answer() == answer
    assert crashing.n_restarts == n_restarts + 2
    assert worker.health()["status"] == "healthy"


# ── deaths from outside ──────────────────────────────────────────────────────────────────────────


def test_a_constrained_job_is_repeated_with_its_seed_and_answers_as_alone(crashing: CrashingWorker) -> None:
    """The new engine compiles the schema again. One that had sent forced text is interrupted like any other."""
    worker = crashing.worker
    constrained = {"prompt": QUESTION, "max_tokens": 24, "temperature": 1.0, "json_schema": NAMED}
    with crashing.streaming_job() as streaming, worker.stream(**constrained) as queued:
        worker.engine.kill()
        assert "SIGKILL" in crashing.replaced()["cause"]
        check_interrupted(list(streaming))
        events = list(queued)
    check_order(events)
    assert text_of(events) == worker.text(**constrained, seed=events[0]["seed"])
    crashing.gates.shut("decode")
    with worker.stream(prompt=f"{STALL}{QUESTION}", json_schema=NAMED) as streaming:
        streaming.until("token")
        worker.engine.kill()
        crashing.gates.open("decode")
        crashing.replaced()
        check_interrupted(list(streaming))


def test_an_engine_killed_while_idle_is_replaced_and_meanwhile_the_worker_takes_no_jobs(
    crashing: CrashingWorker, answer: str
) -> None:
    worker = crashing.worker
    crashing.gates.shut("load")
    worker.engine.kill()
    assert worker.wait_for("engine_restarted")["jobs"] == 0
    health = worker.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["state"]) == (200, "unhealthy", "restarting")
    assert worker.get("/v1/ready").json() == {"ready": False, "state": "loading", "model_loaded": False}
    assert [worker.get(path).status_code for path in ("/readyz", "/livez")] == [503, 200]
    refusal = worker.post("/execute", json={"job_id": "early", "prompt": QUESTION, "max_tokens": 1})
    assert (refusal.status_code, refusal.json()["code"]) == (503, "WORKER_LOADING")
    assert int(refusal.headers["retry-after"]) > 0
    crashing.gates.open("load")
    worker.wait_for("model_load_complete")
    assert worker.get("/readyz").status_code == 200
    assert crashing.answer() == answer


def test_signals_to_the_engine_change_nothing(crashing: CrashingWorker) -> None:
    """A service manager signals every process of the group; what a signal means is the front's business."""
    engine, n_restarts = crashing.worker.engine, crashing.n_restarts
    for number in (signal.SIGTERM, signal.SIGINT):
        engine.send_signal(number)
    crashing.answer()
    assert crashing.worker.engine == engine
    assert crashing.n_restarts == n_restarts


def test_a_job_cancelled_between_two_engines_is_not_run_again(crashing: CrashingWorker) -> None:
    worker = crashing.worker
    with crashing.streaming_job() as streaming, worker.stream(prompt=QUESTION) as queued:
        crashing.gates.shut("load")
        worker.engine.kill()
        worker.wait_for("engine_restarted")
        worker.post(f"/cancel/{queued.job_id}")
        events = list(queued)
        check_interrupted(list(streaming))
    crashing.gates.open("load")
    worker.wait_for("model_load_complete")
    check_order(events)
    assert events[-1]["code"] == "CANCELLED"


# ── the worker's own end ─────────────────────────────────────────────────────────────────────────


def test_five_deaths_without_a_finished_job_between_them_end_the_worker(shallow_model: Path) -> None:
    """Eight, of which four came before a finished job, do not."""
    with crashing_worker(shallow_model) as crashing:
        worker = crashing.worker.ready()
        _kill_while_idle(crashing, 4)
        crashing.answer()
        _kill_while_idle(crashing, 4)
        assert worker.health()["status"] == "healthy"
        crashing.gates.shut("crash")
        with ExitStack() as jobs:
            streaming = jobs.enter_context(crashing.streaming_job())
            last_straw = jobs.enter_context(worker.stream(prompt=f"{marker('sequence out of range')}Hello"))
            waiting = jobs.enter_context(worker.stream(prompt=QUESTION))
            crashing.gates.open("decode", "crash")
            check_interrupted(list(streaming))
            for job in (last_straw, waiting):
                events = list(job)
                check_order(events)
                assert events[-1]["code"] == "INFERENCE_FAILED"
        assert worker.exit_code() == 1
        error = next(line for line in worker.log if line["event"] == "error")
        assert error["code"] == "ENGINE_CRASHED"
        assert "5 times" in error["message"]
        assert "seq_id >= 0" in error["message"], "the library's last words"


def _kill_while_idle(crashing: CrashingWorker, n_times: int) -> None:
    for _ in range(n_times):
        crashing.worker.engine.kill()
        crashing.replaced()


def test_an_engine_that_dies_while_loading_ends_the_worker_with_its_last_lines(shallow_model: Path) -> None:
    with crashing_worker(shallow_model, shut=(DEATH,)) as crashing:
        assert crashing.worker.exit_code() == 1
        error = next(line for line in crashing.worker.log if line["event"] == "error")
        assert "SIGABRT" in error["message"]
        words = error["message"].partition("last line of its log: ")[2]
        assert words.endswith(LAST_LINE)
        assert len(words.replace(" | ", "\n").encode()) <= LAST_WORDS_BYTES


def test_an_engine_leaves_with_a_killed_front_even_from_a_step_that_never_ends(shallow_model: Path) -> None:
    with crashing_worker(shallow_model) as crashing:
        crashing.worker.ready()
        with crashing.streaming_job():
            engine = crashing.worker.engine
            crashing.worker.process.kill()
            psutil.wait_procs([engine], timeout=PATIENCE_S)
            assert not engine.is_running()
