"""Requests to the routes of `/v1` over real sockets, and what their streams hold."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from client.openai import DONE
from client.sse import Frames, data_of, is_comment
from tests.worker_process import PATIENCE_S, WorkerProcess

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

Json = dict[str, Any]


def ask(worker: WorkerProcess, path: str, fields: Json) -> Json:
    """A whole answer."""
    response = worker.post(path, json=fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def refusal(response: httpx2.Response) -> Json:
    """The error of a refused request, whose shape is checked."""
    assert response.headers["content-type"] == "application/json", response.text
    body = response.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


@contextmanager
def streamed(worker: WorkerProcess, path: str, fields: Json) -> Iterator[tuple[httpx2.Response, Iterator[Any]]]:
    """The response, and what its frames hold as they come; `[DONE]` as text."""
    with (
        httpx2.Client(timeout=PATIENCE_S, trust_env=False) as client,
        client.stream("POST", f"{worker.url}{path}", json={**fields, "stream": True}) as response,
    ):
        assert response.status_code == 200, response.read().decode()
        yield response, frames(response)


def frames(response: httpx2.Response) -> Iterator[Any]:
    found = Frames()
    for data in response.iter_bytes():
        for frame in itertools.filterfalse(is_comment, found.feed(data)):
            assert frame.startswith(b"data: ")
            yield "[DONE]" if data_of(frame) == DONE else json.loads(data_of(frame))
    assert found.rest == b""


def chunks(worker: WorkerProcess, path: str, fields: Json) -> list[Any]:
    """All frames of a stream."""
    with streamed(worker, path, fields) as (_, found):
        return list(found)
