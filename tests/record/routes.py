"""Requests to every route, right and wrong, whole and streamed, at workers whose engine is a toy.

The bytes of a body that is not JSON, or is long, are pieces with how often each is repeated ("raw").

Records status, headers and bytes. Ids and times are masked.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2

from tests.record.masks import in_order, masked, names_of_series, shown
from tests.record.rows import Json
from tests.worker_process import WorkerProcess, toy_worker

FLAGS: dict[str, tuple[str, ...]] = {
    "token": ("--api-key", "secret", "--cors-origin", "http://a.example"),
    "both": ("--reasoning-field", "both"),
}
"""More flags of a worker by its name."""
KINDS = {"token": "toy", "both": "thinking"}
"""The engines of these workers. Any other name is a kind of engine."""
SECRET = "mellifluous xylophone"
"""This stands in prompts. No worker writes it into its log."""
_LEFT_OUT = {"date", "content-length"}


def answers(asks: Sequence[Json]) -> Iterator[Json]:
    """Each worker gets its requests one after the other, so that what is cached is the same each time."""
    names = dict.fromkeys(ask["worker"] for ask in asks)
    with ThreadPoolExecutor(2) as pool:
        of_worker = {name: pool.submit(_ask, name, [ask for ask in asks if ask["worker"] == name]) for name in names}
        left = {name: iter(found.result()) for name, found in of_worker.items()}
    return (next(left[ask["worker"]]) for ask in asks)


def _ask(name: str, asks: Sequence[Json]) -> list[Json]:
    with (
        tempfile.TemporaryDirectory(prefix="record-") as folder,
        toy_worker(Path(folder), "--log-level", "debug", *FLAGS.get(name, ()), kind=KINDS.get(name, name)) as worker,
    ):
        answers = ask_in_order(worker.ready(), asks)
        worker.terminate()
        assert worker.exit_code() == 0
        assert SECRET not in "".join(worker.stderr)
        return answers


def ask_in_order(worker: WorkerProcess, asks: Sequence[Json]) -> list[Json]:
    with worker.client() as client:
        return [_answer(client, number, ask) for number, ask in enumerate(asks)]


def _answer(client: httpx2.Client, number: int, ask: Json) -> Json:
    sent = {"content-type": "application/json", **ask.get("headers", {})}
    body = "".join(text * times for text, times in ask.get("raw", ())).encode("latin-1")
    if "body" in ask:
        body = json.dumps(_with_own_id(ask["body"], number)).encode()
    response = client.request(ask["method"], ask["path"], content=body, headers=sent)
    text = response.content.decode("utf-8", "backslashreplace")
    text = names_of_series(text) if "# TYPE" in text else shown(in_order(text))
    headers = {key: masked(value) for key, value in sorted(response.headers.items()) if key not in _LEFT_OUT}
    return {"status": response.status_code, "headers": headers, "body": text}


def _with_own_id(body: Any, number: int) -> Any:
    """A job's id may be used once: "J" stands for one that is free."""
    return {**body, "job_id": f"job-{number:08}"} if isinstance(body, dict) and body.get("job_id") == "J" else body
