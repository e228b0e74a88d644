"""The routes of `/v1` beside those that generate: what is said of the model, who may ask, and how refusals look."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS, refusal
from tests.worker_process import WorkerProcess, serving
from worker import __version__

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "correct-horse-battery-staple"
ORIGIN = "http://pages.example:8000"
NAME = "org/served:model"

GENERATING = (COMPLETIONS, CHAT)
POSTED = (*GENERATING, "/tokenize", "/detokenize", "/v1/chat/completions/render", "/v1/completions/render")
READ = ("/v1/models", "/v1/models/x", "/tokenizer_info")
BODY = {"prompt": "Hello", "max_tokens": 1}


FLAGS = ("--served-model-name", NAME, "--strict-model", "--cors-origin", ORIGIN, "--ctx-size", "1024")
named = serving("shallow_model", *FLAGS, environment={"LLORCH_API_TOKEN": TOKEN})
"""A worker with a name, a token and a page elsewhere."""


@pytest.fixture(scope="module")
def owner(named: WorkerProcess) -> Iterator[httpx2.Client]:
    with named.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        yield client


# ── the model ────────────────────────────────────────────────────────────────────────────────────


def test_the_model_is_listed_and_found_by_its_name(owner: httpx2.Client) -> None:
    (card,) = owner.get("/v1/models").json()["data"]
    assert owner.get(f"/v1/models/{NAME}").json() == card
    assert owner.get("/v1/models/org%2Fserved:model").json() == card
    assert (card["id"], card["object"]) == (NAME, "model")
    health = owner.get("/health").json()
    assert (card["max_model_len"], card["meta"]["n_vocab"]) == (health["context_length"], health["vocab_size"])
    assert card["meta"]["chat_format"] == "hermes (generic)"


def test_without_a_name_of_its_own_the_model_is_called_what_the_user_typed(worker: WorkerProcess) -> None:
    """A path was typed, of which the directories are nobody's business."""
    name = Path(worker.health()["model_ref"]).name
    assert worker.get("/v1/models").json()["data"][0]["id"] == name
    assert f'model_name="{name}"' in worker.get("/metrics").text


def test_another_model_is_not_found(owner: httpx2.Client) -> None:
    for response in (
        owner.get("/v1/models/other"),
        owner.post(COMPLETIONS, json={**BODY, "model": "other"}),
        owner.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], "model": "other"}),
    ):
        error = refusal(response)
        assert (response.status_code, error["type"], error["code"]) == (404, "not_found_error", "model_not_found")
    assert owner.post(COMPLETIONS, json={**BODY, "model": NAME}).json()["model"] == NAME


def test_probes(worker: WorkerProcess) -> None:
    assert worker.get("/version").json() == {"version": __version__}
    assert worker.get("/ping").text == "pong"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", POSTED)
def test_post_requests_are_refused_in_one_shape(client: httpx2.Client, path: str) -> None:
    for response, status in (
        (client.get(path), 405),
        (client.delete(path), 405),
        (client.options(path), 405),
        (client.post(path, content=b"x", headers={"content-type": "text/plain"}), 415),
        (client.post(path, content=b" " * (2 * 2**20 + 1), headers={"content-type": "application/json"}), 413),
        (client.post(path, content=b"{", headers={"content-type": "application/json"}), 400),
        (client.post(path, json=[]), 400),
        (client.post(path, json={}), 400),
    ):
        assert response.status_code == status
        error = refusal(response)
        assert error["type"] == "invalid_request_error"
        assert (response.headers.get("allow") == "POST") == (status == 405)
        assert error["message"].endswith(f" is not allowed on {path}: use POST") == (status == 405)
        assert error["message"].startswith("the text of the request body exceeds 2,097,152 bytes: ") == (status == 413)


@pytest.mark.parametrize("path", READ)
def test_get_requests_are_refused_in_one_shape(client: httpx2.Client, path: str) -> None:
    response = client.post(path)
    assert (response.status_code, response.headers["allow"]) == (405, "GET,HEAD")
    assert refusal(response)["code"] == "method_not_allowed"
    assert refusal(response)["message"] == f"POST is not allowed on {path}: use GET or HEAD"


ACCEPTED = ("application/json", "*/*", "text/event-stream", "text/html")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize(
    "path",
    [
        *("/v1", "/v1/", "/v1/embeddings", "/v1/files/x/content", "/v1/execute", "/v1/cancel/x", "/v1/healthz"),
        *("/v1/jobsite", "/v1/v1/models", "/v1/chat", "/v1/chat/completions/x"),
    ],
)
def test_an_unknown_route_is_refused_in_the_shape_that_clients_show(
    client: httpx2.Client, path: str, method: str
) -> None:
    for accept in ACCEPTED:
        response = client.request(method, path, headers={"accept": accept})
        error = refusal(response)
        assert (response.status_code, error["type"], error["code"]) == (404, "not_found_error", "unknown_url")
        assert error["message"] == f"no route {method} {path}: /docs lists the routes of this worker"


POOL_MANAGERS = (
    *("/v1/inference", "/v1/infer/x", "/v1/jobs", "/v1/jobs/x"),
    *("/v1/loading/progress", "/v1/loading/progress/"),
)
"""Paths under `/v1` that are none of OpenAI's, as docs/protocol.md#http has them; those of routes follow."""


@pytest.mark.parametrize("accept", ACCEPTED)
@pytest.mark.parametrize("path", [*POOL_MANAGERS, "/v1/health", "/v1/ready", "/v1/shutdown", "/v1/admin/shutdown"])
def test_the_pool_managers_paths_keep_their_refusals(client: httpx2.Client, path: str, accept: str) -> None:
    response = client.request("DELETE", path, headers={"accept": accept})
    if path in POOL_MANAGERS:
        assert (response.status_code, response.text.partition(".")[0]) == (404, "There is no such route")
    else:
        assert (response.status_code, response.content) == (405, b"")


@pytest.mark.parametrize("path", [*POSTED, *READ])
def test_without_the_token_nothing_is_disclosed(named: WorkerProcess, path: str) -> None:
    response = named.post(path) if path in POSTED else named.get(path)
    error = refusal(response)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_a_ping_needs_no_token_and_a_version_does(named: WorkerProcess) -> None:
    assert named.get("/ping").status_code == 200
    assert named.get("/version").status_code == 401


@pytest.mark.parametrize("path", GENERATING)
def test_a_deadline_in_the_past_is_504(client: httpx2.Client, path: str) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    response = client.post(path, json=body, headers={"x-deadline": "0"})
    assert (response.status_code, refusal(response)["code"]) == (504, "deadline_exceeded")


# ── pages from elsewhere ─────────────────────────────────────────────────────────────────────────


def test_a_browser_learns_which_page_is_allowed(named: WorkerProcess) -> None:
    asking = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-stainless-os",
    }
    with named.client() as client:
        told = client.options(CHAT, headers=asking)
        assert (told.status_code, told.content) == (204, b"")
        assert told.headers["access-control-allow-origin"] == ORIGIN
        assert told.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        assert "POST" in told.headers["access-control-allow-methods"]
        refused = client.get("/v1/models", headers={"origin": ORIGIN})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)
        assert "x-request-id" in refused.headers["access-control-expose-headers"]


def test_any_other_page_gets_no_header(named: WorkerProcess, worker: WorkerProcess) -> None:
    asking = {"origin": "http://elsewhere.example", "access-control-request-method": "POST"}
    with named.client() as client:
        assert client.options(CHAT, headers=asking).status_code == 401
        other = client.get("/health", headers=asking)
        assert "access-control-allow-origin" not in other.headers
        assert other.headers["vary"] == "origin"
    with worker.client() as client:
        assert client.options(CHAT, headers={**asking, "origin": ORIGIN}).status_code == 403
        assert "vary" not in client.get("/health", headers=asking).headers
