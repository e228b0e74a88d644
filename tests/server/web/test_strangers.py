"""Requests for other hosts and of other pages, over real sockets: what they get, and in which order.

The laws of the decision are in test_site.py, what browsers make of it is in test_other_pages.py, and the words of each
route are in tests/record.
"""

import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.server.web.wire import Answer, read_answer
from tests.worker_process import WorkerProcess, serving_toy
from worker.server.web.middleware import ANY_HOST_PATHS
from worker.server.web.pages import BROWSED_PATHS, PAGE_PATHS

pytestmark = pytest.mark.process

EVIL = {"host": "evil.example"}
CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
FORM = {"origin": "http://evil.example", "content-type": "text/plain"}
"""The headers of a form of another site from a browser that does not know Sec-Fetch-Site, or over plain HTTP."""
TOKEN = "correct-horse-battery-staple"

plain = serving_toy("--allowed-host", "llm.example.org", "--access-log")
allowing = serving_toy("--host", "localhost", "--advertise-url", "http://gpu-7.example.org:8080")
guarded = serving_toy(environment={"LLORCH_API_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def stranger(plain: WorkerProcess) -> Iterator[httpx2.Client]:
    with plain.client() as client:
        yield client


def send(worker: WorkerProcess, request: str, *lines: str) -> Answer:
    with worker.connect() as sock:
        sock.sendall("\r\n".join([f"{request} HTTP/1.1", *lines, "connection: close", "", ""]).encode("latin-1"))
        return read_answer(sock)


# ── who is refused ───────────────────────────────────────────────────────────────────────────────


def test_every_route_and_every_unknown_path_refuses_first(plain: WorkerProcess, stranger: httpx2.Client) -> None:
    """Before the route is looked up, the method is compared and the body is read. So no page ends the worker."""
    paths = [path.replace("{", "").replace("}", "") for path in stranger.get("/openapi.json").json()["paths"]]
    for path in (*paths, *PAGE_PATHS, *BROWSED_PATHS, "/openapi.json", "/nope", "/v1/nope"):
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "TRACE"):
            said = (method, path)
            by_host = stranger.request(method, path, headers=EVIL)
            assert (by_host.status_code == 421) == (path not in ANY_HOST_PATHS), said
            assert stranger.request(method, path, headers=CROSS).status_code == 403, said
            assert stranger.request(method, path, headers=FORM).status_code == 403, said
    assert plain.health()["state"] == "ready"


def test_a_refusal_comes_before_the_body(plain: WorkerProcess) -> None:
    for line, status in (("host: evil.example", 421), ("origin: null", 403)):
        lines = ["host: worker", "content-type: text/plain", "content-length: 1000000000", "x-deadline: nonsense"]
        lines = lines[1:] if line.startswith("host") else lines
        assert send(plain, "POST /execute", line, *lines).status == status


@pytest.mark.parametrize(("headers", "code"), [(EVIL, "WRONG_HOST"), (FORM, "FORBIDDEN")])
def test_a_refusal_is_counted_and_logged_without_quoting(
    plain: WorkerProcess, stranger: httpx2.Client, headers: dict[str, str], code: str
) -> None:
    name = f'worker_refusals_total{{code="{code}"}}'
    before = plain.metrics()[name]
    answer = stranger.post("/cancel/7", headers=headers)
    refused = plain.wait_for("refused", correlation_id=answer.headers["x-correlation-id"])
    assert (refused["route"], refused["code"], refused["status"]) == ("/cancel/{job_id}", code, answer.status_code)
    assert "evil" not in json.dumps(refused)
    assert plain.metrics()[name] == before + 1


# ── the host of a request ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/health", 421),
        ("HTTP://Evil.Example:8080/health", 421),
        ("http://127.0.0.1.evil.example/health", 421),
        ("http://user@evil.example/health", 421),
        ("http://evil.example/livez", 200),
        ("http://127.0.0.1:1/health", 200),
        ("http://llm.example.org/health", 200),
        ("http://[::1]/health", 200),
        ("http://localhost/health?x=http://evil.example/", 200),
        ("/health?http://evil.example/", 200),
    ],
)
@pytest.mark.parametrize("host", ["worker", "llm.example.org", "evil.example"])
def test_the_host_of_a_whole_url_counts_and_the_header_does_not(
    plain: WorkerProcess, target: str, status: int, host: str
) -> None:
    answer = send(plain, f"GET {target}", f"host: {host}")
    has_own = not target.startswith("/")
    assert answer.status == (status if has_own or host != "evil.example" else 421)


def test_the_origin_is_compared_with_the_host_of_a_whole_url(plain: WorkerProcess) -> None:
    lines = ("host: worker", "origin: http://llm.example.org", "content-length: 0")
    assert send(plain, "POST http://llm.example.org/cancel/7", *lines).status == 202
    assert send(plain, "POST /cancel/7", *lines).status == 403


def test_an_offer_of_another_protocol_hides_no_host(plain: WorkerProcess) -> None:
    """The head of such a request is parsed twice."""
    offer = ("connection: upgrade", "upgrade: h2c")
    assert send(plain, "GET http://evil.example/health", "host: worker", *offer).status == 421
    assert send(plain, "GET /health", "host: evil.example", *offer).status == 421
    assert send(plain, "GET /health", "host: worker", *offer).status == 200


def test_of_several_host_lines_each_is_judged(plain: WorkerProcess) -> None:
    assert send(plain, "GET /health", "host: worker", "host: evil.example").status == 421
    assert send(plain, "GET /health", "host: evil.example", "Host: worker").status == 421
    assert send(plain, "GET /health", "host: worker", "host: localhost").status == 200


def test_a_request_without_a_host_is_answered(plain: WorkerProcess) -> None:
    assert send(plain, "GET /health").status == 200
    assert send(plain, "GET /health", "host:").status == 200
    with plain.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert read_answer(sock).status == 200


def test_the_hosts_of_the_settings_are_answered(allowing: WorkerProcess, plain: WorkerProcess) -> None:
    for worker, status in ((allowing, 200), (plain, 421)):
        assert worker.get("/health", headers={"host": "GPU-7.example.org:8080"}).status_code == status
    assert plain.get("/health", headers={"host": "llm.example.org."}).status_code == 200
    assert allowing.get("/health", headers={"host": "llm.example.org"}).status_code == 421


# ── a token ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("headers", [EVIL, CROSS, FORM, EVIL | CROSS | FORM])
def test_with_a_token_neither_is_judged(guarded: WorkerProcess, headers: dict[str, str]) -> None:
    given = {"authorization": f"Bearer {TOKEN}"}
    with guarded.client() as client:
        assert client.post("/cancel/7", headers=headers | given).status_code == 202
        assert client.get("/metrics", headers=headers | given).status_code == 200
        assert client.get("/health", headers=headers).status_code == 200
        assert client.post("/cancel/7", headers=headers).status_code == 401
