"""The token (docs/protocol.md#http): nothing is read, done or told without it; browsers may give it as a password.

That each route needs it is a law of test_every_route.py.
"""

import base64
from collections.abc import Iterator

import httpx2
import pytest

from tests.apis.pool.vectors import R0
from tests.server.web.wire import JSON, exchange, head, request_of
from tests.worker_process import Stream, WorkerProcess, eventually, serving
from worker.server.web.pages import BROWSED_PATHS

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "correct-horse:battery-staple"
GIVEN = {"authorization": f"Bearer {TOKEN}"}
KNOWN = "550e8400-e29b-41d4-a716-446655440000"

GUARDED = (
    *(("GET", "/openapi"), ("GET", "/execute"), ("DELETE", "/metrics"), ("GET", "/nope"), ("GET", "/page/")),
    *(("GET", "/health/"), ("GET", "/health//"), ("GET", "/health/../metrics"), ("GET", "/metrics?/health")),
    ("GET", "/health%2F..%2Fmetrics"),
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
def test_without_the_token_no_path_tells_what_it_is(stranger: httpx2.Client, method: str, path: str) -> None:
    check_unauthorized(stranger.request(method, path))


@pytest.mark.parametrize("authorization", NOT_THE_TOKEN)
def test_nothing_but_the_token_is_the_token(stranger: httpx2.Client, authorization: str) -> None:
    headers = {b"authorization": authorization.encode("latin-1")}
    check_unauthorized(stranger.get("/metrics", headers=headers))
    check_unauthorized(stranger.post("/execute", json=R0, headers=headers))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_has_any_case(stranger: httpx2.Client, scheme: str) -> None:
    assert stranger.get("/metrics", headers={"authorization": f"{scheme} {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("expect", [{}, {"expect": "100-continue"}])
def test_the_token_is_checked_before_the_body_comes(guarded: WorkerProcess, expect: dict[str, str]) -> None:
    """Headers alone are answered, and a client that waits for 100 is not asked for its body."""
    known = {"x-correlation-id": KNOWN}
    answer = exchange(guarded, head("POST", "/execute", content_type=JSON, content_length=10**9, **known, **expect))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.headers["x-correlation-id"] == KNOWN


def test_the_token_comes_before_every_other_fault(guarded: WorkerProcess) -> None:
    for path in ("/nope", "/health/", "/execute"):
        request = head("POST", path, content_type="text/plain", content_length=10**9, x_deadline="nonsense")
        assert exchange(guarded, request).status == 401


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


# ── as a password ────────────────────────────────────────────────────────────────────────────────


def basic(credentials: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


@pytest.mark.parametrize("path", sorted(BROWSED_PATHS))
def test_a_browser_is_asked_for_the_token_and_may_give_it_as_a_password(guarded: WorkerProcess, path: str) -> None:
    refused = guarded.get(path)
    assert refused.status_code == 401
    assert refused.headers.get_list("www-authenticate") == ["Bearer", 'Basic realm="llorch-worker", charset="UTF-8"']
    for headers in (basic(f":{TOKEN}"), basic(f"anyone:{TOKEN}"), {"authorization": f"Bearer {TOKEN}"}):
        assert guarded.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        *(basic(said)["authorization"] for said in ("anyone", f"anyone:{TOKEN}x", "anyone:")),
        *("Basic", "Basic %%%", f"Basic {TOKEN}", "Basic 4pyT"),
    ],
)
def test_nothing_but_the_token_is_the_password(guarded: WorkerProcess, authorization: str) -> None:
    assert guarded.get("/docs", headers={"authorization": authorization}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/execute"), ("POST", "/cancel/a"), ("POST", "/shutdown"), ("GET", "/metrics"), ("GET", "/nope")),
        *(("GET", "/openapi/openapi.json"), ("GET", "/docsx"), ("GET", "//docs"), ("POST", "/docs/../shutdown")),
    ],
)
def test_no_other_route_accepts_a_password(guarded: WorkerProcess, method: str, path: str) -> None:
    """A browser sends it along when another site's page makes it ask."""
    answer = exchange(guarded, head(method, path, content_length=0, **basic(f"anyone:{TOKEN}")))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
