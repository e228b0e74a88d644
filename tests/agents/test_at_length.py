"""Agents' requests on whole models, at default settings: the default one, and one with room for all of them.

`make models-test` runs this.
"""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.agents.shapes import SHAPES, Shape
from tests.agents.test_serving import check_overflow
from tests.server.web.openai_client import CHAT, frames
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.models, pytest.mark.model, pytest.mark.process, pytest.mark.timeout(1800)]

MODELS = {"smollm2-135m-instruct": 8192, "qwen2.5-coder-0.5b-instruct": 32_768}
"""Each model, and the context length it was trained on."""
N_TOLD = 3
"""The number of chunks that the client reads before it disconnects: the role, and some text or the finish reason."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def worker(model: str) -> Iterator[WorkerProcess]:
    with WorkerProcess("--model", model, "--port", "0") as worker:
        yield worker.ready()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_it_is_answered_or_refused_because_the_context_is_full(model: str, worker: WorkerProcess, shape: Shape) -> None:
    with worker.client() as client, client.stream("POST", CHAT, json=shape.body) as response:
        if not shape.has_room(MODELS[model]):
            check_overflow(response, MODELS[model])
            return
        assert response.status_code == 200, response.read().decode()
        told = list(islice(frames(response), N_TOLD))
    first, *rest = (choice for chunk in told for choice in chunk["choices"])
    assert first["delta"]["role"] == "assistant"
    assert any(choice["delta"].get("content") or choice["finish_reason"] for choice in rest)
