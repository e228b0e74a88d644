"""The bearer token (docs/protocol.md#http): what is open, what is not; nothing is read, done or told without it."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.apis.pool.vectors import R0
from tests.server.web.wire import JSON, exchange, head, post_json, request_of
from tests.worker_process import Stream, WorkerProcess, check_order, eventually, serve_default, serving

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "correct-horse-battery-staple"
GIVEN = {"authorization": f"Bearer {TOKEN}"}
KNOWN = "550e8400-e29b-41d4-a716-446655440000"

OPEN = ("/health", "/v1/health", "/v1/ready", "/livez", "/readyz", "/", "/page/chat.js")
GUARDED = (
    *(("GET", "/metrics"), ("HEAD", "/metrics"), ("GET", "/openapi/openapi.json"), ("GET", "/openapi")),
    *(("POST", "/execute"), ("POST", "/cancel"), ("POST", "/cancel/some-job")),
    *(("POST", "/shutdown"), ("POST", "/v1/shutdown"), ("POST", "/v1/admin/shutdown")),
    *(("GET", "/execute"), ("DELETE", "/metrics"), ("GET", "/nope"), ("GET", "/page/"), ("GET", "/health/")),
    *(
        ("GET", "/health//"),
        ("GET", "/health/../metrics"),
        ("GET", "/metrics?/health"),
        ("GET", "/health%2F..%2Fmetrics"),
    ),
)
"""Methods and paths that do not exist are told apart only with the token."""

NOT_THE_TOKEN = (
    *("", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}"),
    *(f"Basic {TOKEN}", f"Token {TOKEN}", TOKEN, f"Bearer{TOKEN}", f"Bearer {TOKEN}, Bearer {TOKEN}", "Bearer \xe9"),
)


guarded = serving("shallow_model", "--parallel", "2", "--ctx-size", "2048", environment={"LLORCH_API_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def stranger(guarded: WorkerProcess) -> Iterator[httpx2.Client]:
    with guarded.client(limits=httpx2.Limits(max_keepalive_connections=0)) as client:
        yield client


def check_unauthorized(response: httpx2.Response) -> None:
    assert (response.status_code, response.headers["content-type"]) == (401, JSON)
    assert response.headers["www-authenticate"] == "Bearer"
    if response.request.method != "HEAD":
        body = response.json()
        assert list(body) == ["code", "message", "retriable"]
        assert (body["code"], body["retriable"]) == ("UNAUTHORIZED", False)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_the_token_everything_but_health_is_401(stranger: httpx2.Client, method: str, path: str) -> None:
    check_unauthorized(stranger.request(method, path))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_the_refusal_names_each_header_that_may_have_the_token(stranger: httpx2.Client, path: str) -> None:
    assert "'x-api-key: <token>'" in stranger.post(path, json={}).json()["error"]["message"]
    assert "x-api-key" not in stranger.post("/v1/chat/completions", json={}).text


@pytest.mark.parametrize("authorization", NOT_THE_TOKEN)
def test_nothing_but_the_token_is_the_token(stranger: httpx2.Client, authorization: str) -> None:
    headers = {b"authorization": authorization.encode("latin-1")}
    check_unauthorized(stranger.get("/metrics", headers=headers))
    check_unauthorized(stranger.post("/execute", json=R0, headers=headers))


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", f"Bearer {TOKEN}"])
@pytest.mark.parametrize("path", OPEN)
def test_open_routes_are_open(stranger: httpx2.Client, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    assert stranger.get(path, headers=headers).status_code == 200
    assert stranger.head(path, headers=headers).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_with_the_token_everything_works(guarded: WorkerProcess, stranger: httpx2.Client, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {TOKEN}"}
    assert stranger.get("/metrics", headers=headers).status_code == 200
    assert stranger.get("/nope", headers=headers).status_code == 404
    assert stranger.get("/execute", headers=headers).status_code == 405
    with Stream(guarded.url, request_of("authorized"), headers) as stream:
        events = stream.until("started")
        assert stranger.post("/cancel/authorized", headers=headers).status_code == 202
        check_order([*events, *stream])


@pytest.mark.parametrize("expect", [{}, {"expect": "100-continue"}])
def test_the_token_is_checked_before_the_body_comes(guarded: WorkerProcess, expect: dict[str, str]) -> None:
    """Headers alone are answered, and a client that waits for 100 is not asked for its body."""
    answer = exchange(guarded, head("POST", "/execute", content_type=JSON, content_length=10**9, **expect))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_the_token_comes_before_every_other_fault(guarded: WorkerProcess) -> None:
    for path in ("/nope", "/health/", "/execute"):
        request = head("POST", path, content_type="text/plain", content_length=10**9, x_deadline="nonsense")
        assert exchange(guarded, request).status == 401


def test_a_401_carries_the_correlation_id(guarded: WorkerProcess) -> None:
    answer = exchange(guarded, head("GET", "/metrics", x_correlation_id=KNOWN))
    assert (answer.status, answer.headers["x-correlation-id"]) == (401, KNOWN)


def test_a_refused_request_has_no_effect(guarded: WorkerProcess, stranger: httpx2.Client) -> None:
    """No job starts, none is cancelled, and the worker does not shut down."""
    with Stream(guarded.url, request_of("protected"), GIVEN) as stream:
        stream.until("token")
        check_unauthorized(stranger.post("/cancel/protected"))
        check_unauthorized(stranger.post("/cancel", json={"job_id": "protected"}))
        check_unauthorized(stranger.post("/shutdown"))
        check_unauthorized(stranger.post("/execute", json=R0))
        stream.until("token")
        assert (guarded.health()["state"], guarded.health()["slots_busy"]) == ("ready", 1)
    eventually(lambda: guarded.health()["slots_busy"] == 0)


def test_the_token_is_never_disclosed(shallow_model: Path) -> None:
    """The log and the engine process never have it, whichever client sends it."""
    with serve_default(shallow_model, "--ctx-size", "1024", environment={"LLORCH_API_TOKEN": TOKEN}) as worker:
        worker.ready()
        process = worker.engine
        assert TOKEN not in "\n".join([*process.cmdline(), *process.environ().values(), *process.environ()])
        exchange(worker, post_json("/execute", R0 | {"max_tokens": 1}, authorization=f"Bearer {TOKEN}"))
        exchange(worker, post_json("/execute", R0, authorization=f"Basic {TOKEN}"))
        worker.terminate()
        assert worker.exit_code() == 0
        assert TOKEN not in "".join(worker.stderr)
        assert json.dumps(TOKEN) not in json.dumps(worker.log)
