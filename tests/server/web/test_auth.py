"""Routes and the token (docs/protocol.md#http): every route of the document, with every method and every kind of token.

Nothing is read, done or told without the token; browsers may give it as a password.
"""

import base64
from collections.abc import Iterator

import httpx2
import pytest

from tests.apis.pool.vectors import R0
from tests.server.web.wire import JSON, exchange, head, post_json, read_answer, standing_still
from tests.worker_process import WorkerProcess, eventually, serving_toy
from worker.server.web.middleware import OPEN_PATHS
from worker.server.web.pages import BROWSED_PATHS, PAGE_PATHS

pytestmark = pytest.mark.process

TOKEN = "correct-horse:battery-staple"
KNOWN = "550e8400-e29b-41d4-a716-446655440000"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
RIGHT = {"authorization": f"Bearer {TOKEN}"}
TOKENS: dict[str, dict[str, str]] = {
    "none": {},
    "a wrong one": {"authorization": f"Bearer {TOKEN[::-1]}"},
    "a wrong key": {"x-api-key": TOKEN[::-1]},
    "the right one": RIGHT,
}
SHUTDOWNS = ("/shutdown", "/v1/shutdown", "/v1/admin/shutdown")
"""They would end the worker of the others (test_other_pages.py has them)."""

guarded = serving_toy(environment={"LLORCH_API_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def visitor(guarded: WorkerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as client:
        yield client


@pytest.fixture(scope="module")
def routes(visitor: httpx2.Client) -> dict[str, set[str]]:
    """The methods of each path, HEAD among them."""
    document = visitor.get("/openapi/openapi.json", headers=RIGHT).json()
    found = {path: {name.upper() for name in operations} & {*METHODS} for path, operations in document["paths"].items()}
    return {path: methods | ({"HEAD"} if "GET" in methods else set()) for path, methods in found.items()}


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("method", METHODS)
def test_a_request_is_allowed_then_routed_then_read(
    guarded: WorkerProcess, visitor: httpx2.Client, routes: dict[str, set[str]], method: str, token: str
) -> None:
    """All that is not open is a 401 without the token, whatever the method. With it, a method that the route lacks is
    a 405 that names those it has. Only then a body is looked at, and a body that says nothing is no server error."""
    assert len(routes) > 25
    for template, methods in routes.items():
        path = template.replace("{", "").replace("}", "")
        if path in SHUTDOWNS and method in methods:
            continue
        answer = visitor.request(method, path, headers=TOKENS[token], content=b"{}" if method == "POST" else b"")
        said = (method, path, answer.status_code)
        if method in ("CONNECT", "BREW"):
            assert answer.status_code in {400, 401, 405}, said
        elif token != "the right one" and path not in OPEN_PATHS | PAGE_PATHS:
            assert answer.status_code == 401, said
            assert answer.headers.get_list("www-authenticate")[0] == "Bearer"
            assert (len(answer.headers.get_list("www-authenticate")) == 2) == (path in BROWSED_PATHS)
        elif method not in methods:
            assert answer.status_code == 405, said
            assert set(answer.headers["allow"].split(",")) == methods
        else:
            assert answer.status_code < 500, said
            assert answer.status_code not in {401, 405}, said
    assert guarded.process.poll() is None


def test_an_unknown_path_is_answered_with_all_routes_and_get_and_head_alike(
    visitor: httpx2.Client, routes: dict[str, set[str]]
) -> None:
    """TV-075. Pages and the document itself are not in the document."""
    unknown = visitor.get("/nope", headers=RIGHT)
    listed = {tuple(line.split()[:2]) for line in unknown.text.splitlines()[1:]}
    documented = {(method, path) for path, methods in routes.items() for method in methods - {"HEAD"}}
    assert unknown.status_code == 404
    assert documented < listed
    read = {path.replace("{name}", "chat.js") for method, path in listed if method == "GET"}
    assert {path for _, path in listed - documented} < read | {"/page/{name}"}
    for path in read - {"/v1/models/{model_id}"}:
        got, headed = visitor.get(path, headers=RIGHT), visitor.head(path, headers=RIGHT)
        assert (got.status_code, headed.status_code, headed.content) == (200, 200, b""), path
        assert got.headers["content-type"] == headed.headers["content-type"]
        assert int(got.headers["content-length"]) == len(got.content)
        assert int(headed.headers["content-length"]) > 0 or not got.content


# ── the token ────────────────────────────────────────────────────────────────────────────────────

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


def check_unauthorized(response: httpx2.Response) -> None:
    assert (response.status_code, response.headers["content-type"]) == (401, JSON)
    assert response.headers["www-authenticate"] == "Bearer"
    if response.request.method != "HEAD":
        body = response.json()
        assert list(body) == ["code", "message", "retriable"]
        assert (body["code"], body["retriable"]) == ("UNAUTHORIZED", False)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_the_token_no_path_shows_what_it_is(visitor: httpx2.Client, method: str, path: str) -> None:
    check_unauthorized(visitor.request(method, path))


@pytest.mark.parametrize("authorization", NOT_THE_TOKEN)
def test_nothing_but_the_token_is_the_token(visitor: httpx2.Client, authorization: str) -> None:
    headers = {b"authorization": authorization.encode("latin-1")}
    check_unauthorized(visitor.get("/metrics", headers=headers))
    check_unauthorized(visitor.post("/execute", json=R0, headers=headers))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_has_any_case(visitor: httpx2.Client, scheme: str) -> None:
    assert visitor.get("/metrics", headers={"authorization": f"{scheme} {TOKEN}"}).status_code == 200


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


def test_a_refused_request_has_no_effect(guarded: WorkerProcess, visitor: httpx2.Client) -> None:
    """No job starts, none is cancelled, and the worker does not shut down."""
    with standing_still(guarded) as engine, guarded.connect() as sock:
        sock.sendall(post_json("/execute", R0 | {"job_id": "protected", "max_tokens": 1}, **RIGHT))
        eventually(lambda: guarded.health()["queue_depth"] == 1)
        check_unauthorized(visitor.post("/cancel/protected"))
        check_unauthorized(visitor.post("/cancel", json={"job_id": "protected"}))
        check_unauthorized(visitor.post("/shutdown"))
        check_unauthorized(visitor.post("/execute", json=R0))
        assert (guarded.health()["state"], guarded.health()["queue_depth"]) == ("ready", 1)
        engine.resume()
        assert b'"type":"end"' in read_answer(sock).body


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
