"""`--max-prompt-chars` on the wire: the rule, its wording, the largest body and the OpenAPI document follow it."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.gguf_files import tiny_model
from tests.worker_process import WorkerProcess, gated

pytestmark = pytest.mark.process

LIMIT = 200_000


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Its engine never loads: a request without a fault is answered 503, which comes after all that is judged here."""
    folder = tmp_path_factory.mktemp("long")
    tiny = tiny_model().write(folder / "tiny.gguf")
    flags = ("--model", str(tiny), "--port", "0", "--max-prompt-chars", str(LIMIT))
    with WorkerProcess(*flags, command=gated(folder)[1]) as worker:
        yield worker.listening()


def ask(worker: WorkerProcess, n_characters: int) -> httpx2.Response:
    """Each character as long as JSON can make it: more than 2 MiB in all."""
    prompt = "\\ud83d\\ude00" * n_characters
    body = f'{{"job_id":"long","prompt":"{prompt}","max_tokens":1}}'
    return worker.post("/execute", content=body.encode(), headers={"content-type": "application/json"})


def test_a_prompt_of_the_limit_passes_also_where_every_character_is_escaped(worker: WorkerProcess) -> None:
    refusal = ask(worker, LIMIT)
    assert (refusal.status_code, refusal.json()["code"]) == (503, "WORKER_LOADING")


def test_one_more_character_is_refused_with_the_current_limit(worker: WorkerProcess) -> None:
    refusal = ask(worker, LIMIT + 1)
    assert refusal.status_code == 400
    assert [error["constraint"] for error in refusal.json()["errors"]] == [f"length(1..={LIMIT})"]


def test_the_openapi_document_has_the_current_limit(worker: WorkerProcess) -> None:
    document = worker.get("/openapi/openapi.json").json()
    schema = document["paths"]["/execute"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].removeprefix("#/components/schemas/")
    assert document["components"]["schemas"][name]["properties"]["prompt"]["maxLength"] == LIMIT
