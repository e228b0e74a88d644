"""The ready callback end to end: a real worker on the real model tells a receiver (tests/receiver.py).

The budget of 60 s and the waits between attempts are tests/server/front/test_pool_manager.py's.
"""

import json
from pathlib import Path

import pytest

from tests.backends.choice import chosen
from tests.loopback import reserved_port
from tests.receiver import Receiver
from tests.worker_process import ONE_SLOT, WorkerProcess, check_order, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model]

STORY = "Once upon a time, in a small village by the sea, there lived"


def ends_gracefully(worker: WorkerProcess) -> None:
    worker.terminate()
    assert worker.exit_code() == 0


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def test_the_callback_says_who_is_ready_where_and_with_what(shallow_model: Path) -> None:
    flags = ("--worker-id", "w-1", "--model-ref", "hf:acme/tiny")
    token = {"LLORCH_API_TOKEN": "s3cret-token"}
    with (
        Receiver(wants_probe=True) as receiver,
        serve_default(shallow_model, *flags, "--callback-url", receiver.url, environment=token) as worker,
    ):
        worker.ready().wait_for("callback_sent")
        (received,) = receiver.requests()
        memory_bytes = worker.health()["memory_bytes"]
        ends_gracefully(worker)
    assert (received.method, received.path) == ("POST", "/v2/internal/workers/ready")
    assert received.headers["content-type"] == "application/json"
    assert received.headers["authorization"] == "Bearer s3cret-token"
    assert "s3cret-token" not in "".join(worker.stderr)
    uri = f"http://localhost:{worker.port}"
    body = json.loads(received.body)
    assert list(body.items()) == [
        ("worker_id", "w-1"),
        ("vram_bytes", 0),
        ("uri", uri),
        ("model_ref", "hf:acme/tiny"),
        ("memory_bytes", memory_bytes),
        ("memory_architecture", "host"),
        ("url", uri),
        ("backend", "cpu"),
        ("device", 0),
        ("worker_type", "llamacpp"),
        ("capabilities", ["text-gen"]),
        ("protocol", "sse"),
    ]
    assert body["memory_bytes"] > shallow_model.stat().st_size, "weights, KV cache and compute buffers"
    assert received.health_status == 200, "whoever hears of the worker may use it at once"


def test_the_legacy_body_has_exactly_the_legacy_bytes(shallow_model: Path) -> None:
    flags = ("--worker-id", "w-1", "--legacy-callback-body", "--advertise-url", "http://worker-7.example:8080/base")
    with Receiver() as receiver, serve_default(shallow_model, *flags, "--callback-url", receiver.url) as worker:
        (received,) = receiver.requests(at_least=1)
        worker.wait_for("callback_sent")
        ends_gracefully(worker)
    assert received.body == b'{"worker_id":"w-1","vram_bytes":0,"uri":"http://worker-7.example:8080/base"}'


def test_a_test_mode_url_is_not_called_but_logged(shallow_model: Path) -> None:
    with Receiver() as receiver:
        url = f"{receiver.url}?instead-of=localhost:9999"
        with serve_default(shallow_model, "--callback-url", url) as worker:
            line = worker.ready().wait_for("callback_sent")
            assert worker.health()["status"] == "healthy"
            ends_gracefully(worker)
        assert receiver.requests() == []
    assert (line["skipped"], line["url"]) == ("test mode", url.partition("?")[0])


# ── when it does not succeed at once ─────────────────────────────────────────────────────────────


def test_a_4xx_is_final_and_ends_the_worker_after_a_drain(shallow_model: Path) -> None:
    """Nobody answers until two jobs are accepted; they go on although the pool manager then says no."""
    with (
        reserved_port() as (port, give_up),
        # In fair shares the short job could take the long one's slot.
        serve_default(
            shallow_model,
            *("--callback-url", (receiver := Receiver("404", port=port)).url),
            *ONE_SLOT,
        ) as worker,
    ):
        worker.ready()
        with worker.stream(prompt=STORY, max_tokens=1000) as long, worker.stream(prompt="Hi", max_tokens=2) as queued:
            worker.engine.suspend()
            give_up()
            with receiver:
                worker.wait_for("shutdown", jobs=2)
                assert worker.health()["state"] == "draining"
                worker.engine.resume()
                assert worker.post(f"/cancel/{long.job_id}").status_code == 202
                ends = [list(stream)[-1] for stream in (long, queued)]
                line = worker.failure()
                n_calls = len(receiver.requests())
    assert (ends[0]["code"], ends[1]["stop_reason"]) == ("CANCELLED", "MAX_TOKENS")
    assert line["code"] == "CALLBACK_FAILED"
    assert line["message"].startswith(f"Pool manager callback failed: 404 Not Found from {receiver.url}")
    assert (line["model"], line["device"]) == (str(shallow_model), chosen().backend.test_backend)
    assert n_calls == 1
    assert "callback_sent" not in {entry["event"] for entry in worker.log}


# ── after an engine restart, and never while draining ────────────────────────────────────────────


def test_after_an_engine_restart_it_is_repeated_and_its_failure_only_logged(shallow_model: Path) -> None:
    with Receiver("200,404,200") as receiver, serve_default(shallow_model, "--callback-url", receiver.url) as worker:
        worker.ready().wait_for("callback_sent", level="info")
        worker.engine.kill()
        failed = worker.wait_for("callback_sent", level="warning")
        assert worker.health()["status"] == "healthy"
        check_order(worker.run(prompt="Hi", max_tokens=2))
        worker.engine.kill()
        worker.wait_for("callback_sent", level="info")
        received = receiver.requests()
        ends_gracefully(worker)
    assert (failed["code"], "404" in failed["message"]) == ("CALLBACK_FAILED", True)
    assert len(received) == 3
    assert len({json.loads(callback.body)["worker_id"] for callback in received}) == 1


def test_a_callback_under_way_ends_when_draining_begins(shallow_model: Path) -> None:
    with Receiver("hang") as receiver, serve_default(shallow_model, "--callback-url", receiver.url) as worker:
        receiver.requests(at_least=1)
        ends_gracefully(worker)
        assert len(receiver.requests()) == 1
    assert "callback_sent" not in {entry["event"] for entry in worker.log}


def test_a_restart_while_draining_is_not_announced(shallow_model: Path) -> None:
    """The queued job is run by the second engine; the pool manager is told nothing of it."""
    with (
        Receiver() as receiver,
        serve_default(shallow_model, "--callback-url", receiver.url, *ONE_SLOT) as worker,
    ):
        worker.ready().wait_for("callback_sent")
        with worker.stream(prompt=STORY, max_tokens=200) as running, worker.stream(prompt="Hi", max_tokens=2) as queued:
            running.until("token")
            worker.terminate()
            worker.wait_for("shutdown")
            worker.engine.kill()
            ends = [list(stream)[-1] for stream in (running, queued)]
        assert worker.exit_code() == 0
        assert len(receiver.requests()) == 1
    assert (ends[0]["code"], ends[1]["type"]) == ("ENGINE_RESTARTED", "end")
    assert len([entry for entry in worker.log if entry["event"] == "callback_sent"]) == 1
