"""The `/v1` routes over plain HTTP, for exchanges that the `openai` package would tidy up."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from client.openai import DONE
from client.sse import data_in
from tests.worker_process import Event, WorkerProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def user(text: str) -> list[Event]:
    """A conversation of one turn."""
    return [{"role": "user", "content": text}]


def ask(worker: WorkerProcess, path: str = CHAT, **request: Any) -> Event:
    """The whole answer to a request, greedy unless it says otherwise."""
    response = worker.post(path, json={"model": "any", "temperature": 0, **request})
    assert response.status_code == 200, response.text
    body: Event = response.json()
    return body


def content(answer: Event) -> str:
    """The text of a chat's only choice."""
    (choice,) = answer["choices"]
    text: str = choice["message"]["content"]
    return text


@contextmanager
def streaming(worker: WorkerProcess, path: str = CHAT, **request: Any) -> Iterator[httpx2.Response]:
    """The answer to a streamed request, greedy unless it says otherwise; leaving the block disconnects."""
    body = {"model": "any", "temperature": 0, "stream": True, **request}
    with worker.client() as client, client.stream("POST", path, json=body) as response:
        if response.status_code != httpx2.codes.OK:
            raise AssertionError(f"{response.status_code}: {response.read().decode()}")
        yield response


def chunks_of(response: httpx2.Response) -> Iterator[Event]:
    """The chunks of a stream, which `[DONE]` or an error ends and nothing follows."""
    is_over = False
    for data in data_in(response.iter_bytes()):
        assert not is_over, data
        if data == DONE:
            is_over = True
            continue
        chunk: Event = json.loads(data)
        is_over = "error" in chunk
        yield chunk
    assert is_over, "the stream was cut"


def pieces_of(chunks: list[Event]) -> list[str]:
    """The text of each chunk that has some, of a stream with one choice."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    told = [choice["text"] if "text" in choice else choice["delta"].get("content") for choice in choices]
    return [text for text in told if text]


def streamed(worker: WorkerProcess, path: str = CHAT, **request: Any) -> list[Event]:
    """All chunks of a streamed answer."""
    with streaming(worker, path, **request) as response:
        return list(chunks_of(response))
