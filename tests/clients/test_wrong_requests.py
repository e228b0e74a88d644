"""Wrong requests at the `/v1` door: each is refused with the right status, in OpenAI's shape, with the field's name.

The engine is a toy, so that all of them take seconds.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag

import httpx2
import pytest

from tests.clients.v1 import CHAT, COMPLETIONS, ask, pieces_of, streamed, user
from tests.openai.wrong import (
    ALL,
    BODIES,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    SAMPLING,
    SECRET,
    UNSUPPORTED,
    Body,
    Wrong,
    name_of,
)
from tests.worker_process import WorkerProcess, toy_worker

pytestmark = pytest.mark.process

# ── the worker ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Nothing that was ever sent to it is in its log."""
    with toy_worker(tmp_path_factory.mktemp("toy"), "--log-level", "debug") as worker:
        yield worker.ready()
        worker.terminate()
        assert worker.exit_code() == 0
        assert SECRET not in "".join(worker.stderr)


@pytest.fixture(scope="module")
def client(toy: WorkerProcess) -> Iterator[httpx2.Client]:
    """A fresh connection for every request."""
    with toy.client(limits=httpx2.Limits(max_keepalive_connections=0)) as client:
        yield client


def refused(client: httpx2.Client, wrong: Wrong) -> None:
    """The request is refused as its row says. Raises: AssertionError."""
    response = client.post(wrong.path, content=wrong.body, headers=dict(wrong.headers))
    assert response.status_code == wrong.status, (name_of(wrong), response.text)
    assert SECRET not in response.text, name_of(wrong)
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in {"invalid_request_error", "not_found_error"}
    assert error["message"]
    assert (error["param"], error["code"]) == (wrong.param, wrong.code or error["code"]), name_of(wrong)


# ── the laws ─────────────────────────────────────────────────────────────────────────────────────


def test_wrong_requests_are_refused_and_change_no_answer(toy: WorkerProcess, client: httpx2.Client) -> None:
    """Neighbours stream all the while, one after the other."""
    asked: Body = {"messages": user("A neighbour"), "max_tokens": 200, "temperature": 1.0, "seed": 5}
    alone = pieces_of(streamed(toy, CHAT, **asked))
    is_over = Flag()

    def neighbour() -> int:
        n_streams = 0
        while not is_over.is_set():
            assert pieces_of(streamed(toy, CHAT, **asked)) == alone
            n_streams += 1
        return n_streams

    with ThreadPoolExecutor(5) as pool:
        beside = pool.submit(neighbour)
        try:
            list(pool.map(lambda wrong: refused(client, wrong), ALL))
        finally:
            is_over.set()
        assert beside.result() > 0
    assert toy.is_idle()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_that_are_null_are_as_if_they_were_absent(path: str, toy: WorkerProcess) -> None:
    of_chat = {**CHAT_FIELDS, **UNSUPPORTED, "tools": (), "response_format": (), "top_logprobs": ()}
    optional = {*SAMPLING, *(of_chat if path == CHAT else COMPLETION_FIELDS), "user", "stream_options"}
    nulls = dict.fromkeys(optional - {"messages", "prompt", "model"})
    plain = BODIES[path] | {"max_tokens": None, "seed": 3}
    assert ask(toy, path, **(plain | nulls | {"seed": 3}))["choices"] == ask(toy, path, **plain)["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_unknown_fields_are_ignored_and_named_in_a_header(path: str, toy: WorkerProcess) -> None:
    """Routers and other servers' clients add such fields."""
    strange = {"no_stop_trim": False, "separate_reasoning": True, "return_hidden_states": False, "zz": {"a": [1]}}
    response = toy.post(path, json=BODIES[path] | strange)
    assert response.status_code == 200
    named = {name.strip() for name in response.headers["x-ignored-fields"].split(",")}
    assert named == set(strange)
    harmless = {"user": "u"} | ({"metadata": {"a": "b"}, "store": False} if path == CHAT else {})
    response = toy.post(path, json=BODIES[path] | harmless)
    assert response.status_code == 200
    assert response.headers["x-ignored-fields"] == ", ".join(harmless)
