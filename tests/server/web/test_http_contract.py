"""State and bodies of docs/protocol.md#http, over real sockets; and the OpenAPI document is true of a real worker.

schemathesis holds one to it, and streams are made of its events.
"""

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from tests.apis.pool.vectors import R0
from tests.server.web.wire import COUNT, JSON, exchange, head, post_json, read_answer, request_of, standing_still
from tests.worker_process import Stream, WorkerProcess, eventually, serving
from worker.llama.invariance import has_own_products

pytestmark = [pytest.mark.process, pytest.mark.model]

TEXT = "text/plain; charset=utf-8"
MAX_BODY_BYTES = 2 * 1024 * 1024

# ── state ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("default_model")
def test_health_is_true_of_the_loaded_model(worker: WorkerProcess, any_model: Path) -> None:
    """TV-144, TV-145. What the files of tests/server/front and tests/apis/pool say of its keys is not said again."""
    eventually(worker.is_idle)
    health = worker.health()
    expected = {
        "status": "healthy",
        "vram_bytes": 0,
        "state": "ready",
        "model_ref": str(any_model),
        "quant_kind": "Q4_1",
        "resident": True,
        "vram_bytes_used": 0,
        "tokenizer_kind": "gguf-bpe",
        "vocab_size": 49152,
        "context_length": 4096,
        "capabilities": ["text-gen"],
        "protocol": "sse",
        "slots_total": 4,
        "slots_busy": 0,
        "queue_depth": 0,
        "parity": None,
        "deterministic": False,
        "determinism": "same" if has_own_products() else "differs",
        "drafts": {"off_because": None, "snapshots": 0, "snapshot_bytes": 0, "next_token_head": None},
        "draft_model": None,
        "attention": "cpu",
    }
    assert {name: health[name] for name in expected} == expected
    cache = health["prefix_cache"]
    assert cache["off_because"] is None
    assert 0 <= cache["bytes"] <= cache["limit_bytes"]
    assert health["prefill_chunk"] in {2**n for n in range(4, 10)}
    assert bool(health["determinism_differences"]) is (health["determinism"] == "differs")
    assert health["model"]
    assert health["memory_bytes"] > any_model.stat().st_size
    steady = {"uptime_seconds": 0, "prefix_cache": {}}
    assert worker.get("/v1/health").json() | steady == health | steady


def test_health_does_not_wait_for_an_engine_that_is_stopped_in_a_step(worker: WorkerProcess) -> None:
    """TV-146, TV-147, made strict: an answer that needed the engine would never come, and ten ask at once."""
    with Stream(worker.url, request_of("health-meanwhile")) as stream:
        stream.until("token")
        with standing_still(worker):
            with ThreadPoolExecutor(10) as pool:
                found = [*pool.map(lambda _: worker.health()["slots_busy"], range(10))]
            assert found == [1] * 10
            assert worker.get("/v1/ready").json() == {"ready": True, "state": "busy", "model_loaded": True}
            assert worker.get("/readyz").status_code == worker.get("/metrics").status_code == 200
    assert worker.get("/livez").text == "alive"


# ── size and coding of a body ────────────────────────────────────────────────────────────────────


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


@pytest.mark.parametrize("path", ["/execute", "/cancel"])
@pytest.mark.parametrize(("n_bytes", "status"), [(MAX_BODY_BYTES, 400), (MAX_BODY_BYTES + 1, 413)])
def test_a_body_may_have_two_mebibytes_and_no_byte_more(
    worker: WorkerProcess, path: str, n_bytes: int, status: int
) -> None:
    """TV-076. Blanks pass the size check and are then found not to be JSON."""
    body = b" " * n_bytes
    whole = head("POST", path, content_type=JSON, content_length=n_bytes) + body
    pieces = head("POST", path, content_type=JSON, transfer_encoding="chunked") + chunked(body, 50_000)
    for request in (whole, pieces):
        answer = exchange(worker, request)
        assert (answer.status, answer.headers["content-type"]) == (status, TEXT)
        assert answer.body.startswith(b"Failed to ")
        assert uuid.UUID(answer.headers["x-correlation-id"]).version == 4
        assert answer.body.startswith(b"Failed to buffer the request body: length limit exceeded") == (status == 413)


def test_each_line_that_names_a_coding_counts(worker: WorkerProcess) -> None:
    headers = [("content-type", JSON), ("content-encoding", "identity"), ("content-encoding", "GZIP")]
    answer = worker.post("/execute", content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")


def test_chunks_are_a_body_however_they_come(worker: WorkerProcess) -> None:
    """Each has one byte, or its size comes before its bytes."""
    body = post_json("/execute", R0 | {"max_tokens": 1}).partition(b"\r\n\r\n")[2]
    begun = head("POST", "/execute", content_type=JSON, transfer_encoding="chunked")
    assert exchange(worker, begun + chunked(body, 1)).status == 200
    body = chunked(body, 40)
    with worker.connect() as sock:
        sock.sendall(begun)
        for beginning, end in ((0, 2), (2, 30), (30, 46), (46, len(body))):
            sock.sendall(body[beginning:end])
            assert worker.get("/livez").status_code == 200  # by now what was sent before has been read
        assert read_answer(sock).status == 200


def test_a_client_that_expects_100_continue_gets_it_before_its_body(worker: WorkerProcess) -> None:
    request = post_json("/execute", R0 | {"max_tokens": 1}, expect="100-continue")
    front, _, body = request.partition(b"\r\n\r\n")
    with worker.connect() as sock:
        sock.sendall(front + b"\r\n\r\n")
        assert sock.recv(1024).startswith(b"HTTP/1.1 100 ")
        sock.sendall(body)
        assert read_answer(sock).status == 200


# ── the OpenAPI document ─────────────────────────────────────────────────────────────────────────

CONFIG = Path(__file__).parent / "contract" / "schemathesis.toml"
N_EXAMPLES = 15
"""The number of examples of each route and kind of data, in addition to every boundary; 300 were tried by hand."""

Document = dict[str, Any]


brief = serving("shallow_model", "--max-tokens-out", "4", "--ctx-size", "1024", "--parallel", "2")
"""A worker whose jobs are soon done: what is generated asks for as many tokens as it may."""


def validator(document: Document, name: str) -> Draft202012Validator:
    schema = {"components": document["components"], "$ref": f"#/components/schemas/{name}"}
    return Draft202012Validator(schema, format_checker=FormatChecker())


@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(brief: WorkerProcess) -> None:
    """Valid and invalid data, boundaries, other methods; statuses, content types, headers and bodies of the answers."""
    options = ("--config-file", str(CONFIG), "run", f"{brief.url}/openapi/openapi.json", "-n", str(N_EXAMPLES))
    tried = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *options], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stdout[-20_000:] + tried.stderr[-2000:]
    for phase in ("Examples", "Coverage", "Fuzzing"):
        assert f"✅  {phase}" in tried.stdout, tried.stdout
    assert "Operations:       26 selected / 29 total" in tried.stdout, tried.stdout


def test_every_event_of_real_streams_is_one_of_the_document(eloquent: WorkerProcess) -> None:
    """All five types, with what is left out of most: log-probabilities, a stop."""
    document = eloquent.get("/openapi/openapi.json").json()
    events = eloquent.run(prompt=COUNT, max_tokens=2, logprobs=2)
    events += eloquent.run(prompt=COUNT, max_tokens=200, stop=[events[1]["t"]], seed=2**64 - 1)
    with eloquent.stream(prompt=COUNT, max_tokens=1500) as stream:
        events += stream.until("metrics")
        assert eloquent.post(f"/cancel/{stream.job_id}").status_code == 202
        events += list(stream)
    assert {event["type"] for event in events} == {"started", "token", "metrics", "end", "error"}
    assert any("logprobs" in event for event in events)
    assert any("stop_sequence_matched" in event for event in events)
    known = document["components"]["schemas"]
    for event in events:
        validator(document, "Event").validate(event)
        shape = known[
            document["components"]["schemas"]["Event"]["discriminator"]["mapping"][event["type"]].split("/")[-1]
        ]
        assert event.keys() <= shape["properties"].keys()


@pytest.mark.parametrize(("path", "name"), [("/health", "HealthBody"), ("/v1/ready", "ReadyBody")])
def test_a_state_is_reported_as_documented_and_completely(worker: WorkerProcess, path: str, name: str) -> None:
    document = worker.get("/openapi/openapi.json").json()
    schema = document["components"]["schemas"][name]
    body = worker.get(path).json()
    validator(document, name).validate(body)
    assert set(schema["required"]) == schema["properties"].keys() == body.keys()
