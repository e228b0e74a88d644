"""Routes, methods, statuses, bodies and headers of docs/protocol.md#http, over real sockets."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.apis.pool import test_received
from tests.apis.pool.vectors import R0
from tests.server.web.test_validation import rows_of
from tests.server.web.wire import JSON, exchange, head, post_json, read_answer, request_of
from tests.worker_process import Stream, WorkerProcess, eventually, serve_default
from worker.llama.invariance import has_own_products

pytestmark = [pytest.mark.process, pytest.mark.model]

TEXT = "text/plain; charset=utf-8"
MAX_BODY_BYTES = 2 * 1024 * 1024

ASKED = {
    "/health": JSON,
    "/v1/health": JSON,
    "/v1/ready": JSON,
    "/livez": TEXT,
    "/readyz": TEXT,
    "/metrics": "text/plain; version=0.0.4; charset=utf-8",
    "/openapi/openapi.json": "application/vnd.oai.openapi+json",
    "/openapi": "application/vnd.oai.openapi+json",
    "/openapi.json": "application/vnd.oai.openapi+json",
    "/docs": "text/html; charset=utf-8",
    "/docs/page.js": "text/javascript; charset=utf-8",
    "/docs/redoc.standalone.js": "text/javascript; charset=utf-8",
    "/": "text/html; charset=utf-8",
    "/page/chat.js": "text/javascript; charset=utf-8",
}
"""The routes for reading, with their content types."""

OPENAI = {
    *(("GET", path) for path in ("/v1/models", "/v1/models/{model_id}", "/tokenizer_info", "/version", "/ping")),
    *(("POST", f"/v1/{kind}completions{end}") for kind in ("", "chat/") for end in ("", "/render")),
    *(("POST", path) for path in ("/tokenize", "/detokenize", "/infill")),
    *(("POST", f"/v1/{path}") for path in ("responses", "responses/input_tokens", "messages", "messages/count_tokens")),
    ("GET", "/api/hello"),
}
"""The routes of test_openai_routes.py and test_agents.py."""

ORDERED = ("/execute", "/cancel", "/cancel/some-job", "/shutdown", "/v1/shutdown", "/v1/admin/shutdown")
"""The routes for commands."""

HEALTH_KEYS = (
    *("status", "vram_bytes", "worker_id", "state", "model", "model_ref", "quant_kind", "resident"),
    *("vram_bytes_used", "memory_bytes", "tokenizer_kind", "vocab_size", "context_length", "capabilities"),
    *("protocol", "uptime_seconds", "slots_total", "slots_busy", "queue_depth", "parity"),
    *("prefill_chunk", "prefix_cache", "deterministic", "determinism", "determinism_differences"),
    *("determinism_tried", "drafts", "draft_model", "amx", "batch_invariant", "kernels", "attention"),
)


# ── routes and methods ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("path", "content_type"), ASKED.items())
def test_routes_for_reading_answer_get_and_head_alike(client: httpx2.Client, path: str, content_type: str) -> None:
    got, headed = client.get(path), client.head(path)
    assert (got.status_code, headed.status_code) == (200, 200)
    assert got.headers["content-type"] == headed.headers["content-type"] == content_type
    assert int(got.headers["content-length"]) == len(got.content) > 0
    assert int(headed.headers["content-length"]) > 0
    assert headed.content == b""


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    ("path", "allowed"), [*dict.fromkeys(ASKED, "GET,HEAD").items(), *dict.fromkeys(ORDERED, "POST").items()]
)
def test_a_route_supports_no_other_method(client: httpx2.Client, path: str, allowed: str, method: str) -> None:
    """TV-073, TV-074."""
    if method not in allowed.split(","):
        response = client.request(method, path)
        assert (response.status_code, response.headers["allow"], response.content) == (405, allowed, b"")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [
        *("/v1/inference", "/v1/inference/x", "/v1/infer", "/v1/jobs", "/v1/jobs/x", "/v1/loading/progress", "/info"),
        *("/nope", "/page", "/execute/x", "/cancel/a/b", "/healthz", "/schema", "/openapi/swagger"),
    ],
)
def test_an_unknown_path_is_404_with_the_list_of_routes(client: httpx2.Client, path: str, method: str) -> None:
    """TV-075."""
    response = client.request(method, path)
    assert (response.status_code, response.headers["content-type"]) == (404, TEXT)
    assert int(response.headers["content-length"]) > 0
    routes = response.text.replace("{job_id}", "some-job").replace("{name}", "chat.js").splitlines()[1:]
    if method == "HEAD":
        assert response.content == b""
    else:
        told = {(line.split()[0], line.split()[1]) for line in routes}
        assert told == {("GET", path) for path in ASKED} | {("POST", path) for path in ORDERED} | OPENAI


@pytest.mark.parametrize("path", ["/shutdown", "/v1/shutdown", "/v1/admin/shutdown"])
def test_shutdown_is_answered_and_ends_the_worker(any_model: Path, path: str) -> None:
    with serve_default(any_model, "--shutdown-timeout-sec", "7") as worker:
        response = worker.listening().post(path)
        assert (response.status_code, response.headers["content-type"]) == (202, JSON)
        assert response.content == b'{"status":"shutting_down","timeout_seconds":7}'
        assert worker.exit_code() == 0


# ── state ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("default_model")
def test_health_has_its_keys_in_order_and_true_values(worker: WorkerProcess, any_model: Path) -> None:
    """TV-144, TV-145."""
    eventually(worker.is_idle)
    health = worker.health()
    assert tuple(health) == HEALTH_KEYS
    cache = health["prefix_cache"]
    assert tuple(cache) == (
        *("tokens", "bytes", "limit_bytes", "off_because", "restored_tokens", "restored_bytes"),
        *("checkpoint_bytes", "checkpoint_stride"),
    )
    assert cache["off_because"] is None
    assert 0 <= cache["bytes"] <= cache["limit_bytes"]
    assert health["prefill_chunk"] in {2**n for n in range(4, 10)}
    assert health["determinism"] == ("same" if has_own_products() else "differs")
    assert tuple(health["amx"]) == ("processor", "build", "tile_bytes")
    assert tuple(health["batch_invariant"]) == ("kept", "why")
    assert tuple(health["kernels"]) == ("why", "ours", "stock")
    measured = {"prefill_chunk": 0, "prefix_cache": {}, "determinism": "", "determinism_tried": None}
    assert bool(health["determinism_differences"]) is (health["determinism"] == "differs")
    measured |= {"determinism_differences": [], "amx": {}, "batch_invariant": {}, "kernels": {}}
    assert health | measured | {"worker_id": "", "model": "", "memory_bytes": 0, "uptime_seconds": 0} == {
        "status": "healthy",
        "vram_bytes": 0,
        "worker_id": "",
        "state": "ready",
        "model": "",
        "model_ref": str(any_model),
        "quant_kind": "Q4_1",
        "resident": True,
        "vram_bytes_used": 0,
        "memory_bytes": 0,
        "tokenizer_kind": "gguf-bpe",
        "vocab_size": 49152,
        "context_length": 4096,
        "capabilities": ["text-gen"],
        "protocol": "sse",
        "uptime_seconds": 0,
        "slots_total": 4,
        "slots_busy": 0,
        "queue_depth": 0,
        "parity": None,
        "deterministic": False,
        "determinism_differences": [],
        "drafts": {"off_because": None, "snapshots": 0, "snapshot_bytes": 0, "next_token_head": None},
        "draft_model": None,
        "attention": "cpu",
        **measured,
    }
    assert health["model"]
    assert health["memory_bytes"] > any_model.stat().st_size
    assert worker.get("/v1/health").json() | measured | {"uptime_seconds": 0} == health | measured | {
        "uptime_seconds": 0
    }


def test_many_clients_can_request_health_at_once(worker: WorkerProcess) -> None:
    """TV-146."""
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: worker.get("/health"), range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10


def test_health_does_not_wait_for_an_engine_that_is_stopped_in_a_step(worker: WorkerProcess) -> None:
    """TV-147, made strict: an answer that needed the engine would never come."""
    with Stream(worker.url, request_of("health-meanwhile")) as stream:
        stream.until("token")
        engine = worker.engine
        engine.suspend()
        try:
            assert worker.health()["slots_busy"] == 1
            assert worker.get("/v1/ready").json() == {"ready": True, "state": "busy", "model_loaded": True}
            assert worker.get("/readyz").status_code == worker.get("/metrics").status_code == 200
        finally:
            engine.resume()
    assert worker.get("/livez").text == "alive"


def test_ready_is_three_keys_in_order(worker: WorkerProcess, client: httpx2.Client) -> None:
    eventually(worker.is_idle)
    assert client.get("/v1/ready").content == b'{"ready":true,"state":"idle","model_loaded":true}'


# ── size of a body ───────────────────────────────────────────────────────────────────────────────


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


def test_an_announced_length_that_is_too_large_is_refused_before_the_body_comes(worker: WorkerProcess) -> None:
    assert exchange(worker, head("POST", "/execute", content_type=JSON, content_length=10**12)).status == 413


def test_a_body_in_chunks_of_one_byte_is_a_body(worker: WorkerProcess) -> None:
    body = post_json("/execute", R0 | {"max_tokens": 1}).partition(b"\r\n\r\n")[2]
    request = head("POST", "/execute", content_type=JSON, transfer_encoding="chunked") + chunked(body, 1)
    assert exchange(worker, request).status == 200


def test_a_chunk_whose_size_comes_before_its_bytes_is_waited_for(worker: WorkerProcess) -> None:
    body = chunked(post_json("/execute", R0 | {"max_tokens": 1}).partition(b"\r\n\r\n")[2], 40)
    with worker.connect() as sock:
        sock.sendall(head("POST", "/execute", content_type=JSON, transfer_encoding="chunked"))
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


# ── correlation ──────────────────────────────────────────────────────────────────────────────────

KNOWN = test_received.ID
UNSENDABLE = ("TV-172", "not-ascii", "two-lines")
OTHER_IDS = rows_of(test_received.test_anything_else_gets_a_fresh_uuid4, leave_out=UNSENDABLE)


@pytest.mark.parametrize("sent", rows_of(test_received.test_a_uuid_form_is_kept_as_it_stands))
def test_a_correlation_id_in_uuid_form_is_kept(worker: WorkerProcess, sent: str) -> None:
    assert exchange(worker, head("GET", "/health", x_correlation_id=sent)).headers["x-correlation-id"] == sent.strip()


@pytest.mark.parametrize("sent", [*OTHER_IDS, f"{KNOWN}, {KNOWN}"])
def test_any_other_correlation_id_is_replaced(worker: WorkerProcess, sent: str) -> None:
    given = exchange(worker, head("GET", "/health", x_correlation_id=sent)).headers["x-correlation-id"]
    assert uuid.UUID(given).version == 4
    assert given != sent


def test_requests_without_a_correlation_id_get_different_ones(client: httpx2.Client) -> None:
    """TV-172, TV-177."""
    ids = {client.get("/health").headers["x-correlation-id"] for _ in range(3)}
    assert len(ids) == 3
    assert {uuid.UUID(given).version for given in ids} == {4}


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (("GET", "/health"), 200),
        (("GET", "/nope"), 404),
        (("POST", "/health"), 405),
        (("POST", "/execute"), 415),
        (("POST", "/cancel/unknown"), 202),
    ],
)
def test_every_answer_carries_the_correlation_id(
    worker: WorkerProcess, request_line: tuple[str, str], status: int
) -> None:
    answer = exchange(worker, head(*request_line, x_correlation_id=KNOWN, content_length=0))
    assert (answer.status, answer.headers["x-correlation-id"]) == (status, KNOWN)


@pytest.mark.parametrize(("max_tokens", "status"), [(1, 200), (0, 400), ("1", 422)])
def test_streams_and_refused_jobs_carry_the_correlation_id(
    worker: WorkerProcess, max_tokens: object, status: int
) -> None:
    """TV-182, TV-183."""
    answer = exchange(worker, post_json("/execute", R0 | {"max_tokens": max_tokens}, x_correlation_id=KNOWN))
    assert (answer.status, answer.headers["x-correlation-id"]) == (status, KNOWN)
