"""`cache_salt` at every route that generates: what is cached is found with its own salt, and told to nobody else."""

from collections.abc import Callable

import pytest

from tests.server.web.openai_client import Json
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.usefixtures("default_model")]

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 8
TURNS = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 1}
ROUTES: dict[str, tuple[Json, Callable[[Json], int]]] = {
    "/v1/chat/completions": (TURNS, lambda usage: usage["prompt_tokens_details"]["cached_tokens"]),
    "/v1/completions": (
        {"prompt": STORY, "max_tokens": 1},
        lambda usage: usage["prompt_tokens_details"]["cached_tokens"],
    ),
    "/v1/responses": (
        {"input": STORY, "max_output_tokens": 1},
        lambda usage: usage["input_tokens_details"]["cached_tokens"],
    ),
    "/v1/messages": (TURNS, lambda usage: usage["cache_read_input_tokens"]),
}
"""A request, and where its answer says how much of the prompt was cached."""


@pytest.mark.parametrize("path", ROUTES)
def test_a_cached_prompt_is_found_with_its_own_salt_only(eloquent: WorkerProcess, path: str) -> None:
    request, cached = ROUTES[path]
    found = []
    for salt in ("one", "one", "two", None, None, "two", ""):
        answer = eloquent.post(path, json=request | {"cache_salt": None if salt is None else f"{path} {salt}"})
        assert answer.status_code == 200, answer.text
        assert "cache_salt" not in answer.headers.get("x-ignored-fields", "")
        found.append(cached(answer.json()["usage"]))
    assert [n > 100 for n in (found[1], found[4], found[5])] == [True] * 3
    assert (found[0], found[2], found[6]) == (0, 0, 0)


@pytest.mark.parametrize("path", ["/execute", *ROUTES])
@pytest.mark.parametrize("salt", ["", "secret" * 43])
def test_a_salt_of_a_wrong_length_is_refused_and_not_quoted(eloquent: WorkerProcess, path: str, salt: str) -> None:
    request = {"job_id": "a", "prompt": "b", "max_tokens": 1} if path == "/execute" else ROUTES[path][0]
    answer = eloquent.post(path, json=request | {"cache_salt": salt})
    assert answer.status_code == 400
    assert "cache_salt" in answer.text
    assert "secret" not in answer.text
