"""Labels of metrics are closed sets: a path becomes a route that is offered, or one word for all others."""

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar, get, post
from litestar.params import FromPath

from tests.loops import on_a_loop
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.web.middleware import CLIENT_LEFT, OTHER, Middleware, Routes


@get(["/health", "/v1/health"], sync_to_thread=False)
def health() -> str:
    return ""


@post("/cancel/{job_id:str}", status_code=202, sync_to_thread=False)
def cancel(job_id: FromPath[str]) -> None: ...


APP = Litestar([health, cancel], openapi_config=None)
ROUTES = Routes(APP)
PATHS = {"/health": "/health", "/health/": "/health", "/v1/health": "/v1/health", "/cancel/7": "/cancel/{job_id}"}


def test_a_path_is_labelled_with_its_route() -> None:
    assert {path: ROUTES.label(path) for path in PATHS} == PATHS


def test_offered_routes_have_their_success_status_and_head_for_get() -> None:
    assert set(ROUTES.offered()) == {
        ("/health", "GET", 200),
        ("/health", "HEAD", 200),
        ("/v1/health", "GET", 200),
        ("/v1/health", "HEAD", 200),
        ("/cancel/{job_id}", "POST", 202),
    }


@given(st.text(max_size=30) | st.lists(st.sampled_from(["/", "health", "cancel", "7", "\n", "{job_id}"])).map("".join))
def test_no_path_makes_a_new_label(path: str) -> None:
    assert ROUTES.label("/" + path) in {*PATHS.values(), OTHER}


# ── an exchange without an answer ────────────────────────────────────────────────────────────────


@on_a_loop
async def test_a_client_that_leaves_before_its_answer_is_counted_with_499() -> None:
    has_begun = asyncio.Event()

    @get("/slow/{name:str}")
    async def slow(name: FromPath[str]) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def left(*_: object) -> Any:
        return {"type": "http.disconnect"}

    metrics = Metrics("w-1")
    app = Middleware(Litestar([slow], openapi_config=None), Settings(model="m.gguf"), metrics)
    scope: Any = {"type": "http", "method": "GET", "path": "/slow/7", "state": {}, "headers": [], "query_string": b""}
    exchange = asyncio.create_task(app(scope, left, left))
    await has_begun.wait()
    exchange.cancel()
    with suppress(asyncio.CancelledError):
        await exchange
    labels = f'method="GET",route="/slow/{{name}}",status="{CLIENT_LEFT}",worker_id="w-1"'
    assert f"worker_http_requests_total{{{labels}}} 1.0" in metrics.render(None)[0].decode()
