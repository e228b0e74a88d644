"""vllm-router as it is, before two workers: what takes long in `make fleet-test`, the rest in `make test`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.clients.v1 import ask, chunks_of, content, pieces_of, streamed, streaming, user
from tests.fleet.processes import FLAGS, LONG, SYSTEM, Fleet, check_conversations_stay, router
from tests.worker_process import Event, Stream, WorkerProcess, check_order, eventually, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def workers(model_path: Path) -> Iterator[list[WorkerProcess]]:
    with ExitStack() as stack:
        started = [stack.enter_context(serve_default(model_path, *FLAGS[:2], "--access-log")) for _ in range(2)]
        yield [worker.ready() for worker in started]


@pytest.fixture(scope="module")
def routed(workers: list[WorkerProcess]) -> Iterator[Fleet]:
    with router(workers, "--policy", "cache_aware") as fleet:
        yield fleet


def n_ended(workers: list[WorkerProcess], outcome: str = "success") -> list[float]:
    return [worker.metrics()[f'worker_requests_total{{outcome="{outcome}"}}'] for worker in workers]


def test_it_finds_its_workers_healthy_and_lists_their_model(routed: Fleet, workers: list[WorkerProcess]) -> None:
    assert routed.get("/health").status_code == 200
    (model,) = routed.get("/v1/models").json()["data"]
    assert model["id"] == workers[0].get("/v1/models").json()["data"][0]["id"]


def test_chats_whole_and_streamed_and_jobs_pass_through(routed: Fleet) -> None:
    asked: Event = {"messages": user("Hello"), "max_tokens": 8, "ignore_eos": True}
    assert "".join(pieces_of(streamed(routed, **asked))) == content(ask(routed, **asked))
    completion = ask(routed, "/v1/completions", prompt="Once upon", max_tokens=4)
    assert completion["choices"][0]["text"]
    with Stream(routed.url, {"job_id": "through", "prompt": "Once upon a time", "max_tokens": 4}) as stream:
        check_order(list(stream))


@pytest.mark.fleet
def test_a_client_that_leaves_the_router_cancels_its_job(routed: Fleet, workers: list[WorkerProcess]) -> None:
    before = sum(n_ended(workers, "cancelled"))
    with streaming(routed, messages=user("Hello"), max_tokens=LONG, ignore_eos=True) as response:
        next(chunks_of(response))
    eventually(lambda: sum(n_ended(workers, "cancelled")) == before + 1)
    eventually(lambda: all(worker.is_idle() for worker in workers))


@pytest.mark.fleet
def test_conversations_stay_where_their_beginning_was_read(routed: Fleet) -> None:
    check_conversations_stay(routed, 6)


def test_it_follows_kv_events_and_asks_the_worker_that_knows_a_beginning(any_model: Path) -> None:
    """The router knows by its events what a worker was asked past the router: the next turn goes there."""
    numbers = count()
    with ExitStack() as stack:
        events = ("--kv-events", "tcp://127.0.0.1:0")
        workers = [stack.enter_context(serve_default(any_model, *FLAGS[:2], *events)) for _ in range(2)]
        flags = ["--policy", "kv_aware", "--kv-event-block-size", "16", "--kv-event-model", any_model.stem]
        for worker in workers:
            source = worker.listening().wait_for("kv_events_listening")["endpoint"]
            worker.wait_for("ready")
            flags += ["--kv-event-source", f"{worker.url}={source}"]
        routed = stack.enter_context(router(workers, *flags))

        def is_found(worker: WorkerProcess) -> bool:
            said = [{"role": "system", "content": f"{next(numbers)} {SYSTEM}"}, *user("Hello")]
            n_prompt = ask(worker, messages=said, max_tokens=4)["usage"]["prompt_tokens"]
            found = ask(routed, messages=said, max_tokens=4)["usage"]["prompt_tokens_details"]["cached_tokens"]
            return bool(found >= n_prompt - 1)

        for worker in workers:
            eventually(lambda worker=worker: all(is_found(worker) for _ in range(4)))  # type: ignore[misc]


@pytest.mark.fleet
def test_a_worker_that_is_taken_out_stopped_and_put_back_costs_no_request(any_model: Path) -> None:
    """docs/routers.md has the same steps."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve_default(any_model, *FLAGS[:2])).ready() for _ in range(2))
        routed = stack.enter_context(router([first, second], "--policy", "round_robin"))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        answers = [pool.submit(ask, routed, messages=user(f"{number}"), max_tokens=16) for number in range(64)]
        answers[8].result()
        assert routed.post("/remove_worker", params={"url": first.url}).status_code == 200
        first.process.terminate()
        assert first.process.wait(60) == 0
        again = stack.enter_context(serve_default(any_model, *FLAGS[:2], "--port", str(first.port))).ready()
        assert routed.post("/add_worker", params={"url": again.url}).status_code == 200
        answers += [pool.submit(ask, routed, messages=user(f"{number}"), max_tokens=16) for number in range(64, 96)]
        assert all(content(answer.result()) for answer in answers)
        eventually(lambda: content(ask(routed, messages=user("Hello"), max_tokens=1)) and n_ended([again])[0] > 0)


@pytest.mark.fleet
def test_a_worker_that_dies_is_left_out_and_comes_back(any_model: Path) -> None:
    """Requests that the dead one had not answered are tried again by the router itself."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve_default(any_model, *FLAGS[:2])).ready() for _ in range(2))
        routed = stack.enter_context(router([first, second], "--policy", "round_robin"))
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, routed, messages=user(f"{number}"), max_tokens=64) for number in range(24)]
            first.process.kill()
            assert all(content(answer.result()) for answer in answers)
        again = stack.enter_context(serve_default(any_model, *FLAGS[:2], "--port", str(first.port))).ready()
        # Asked after its health each second, it is taken back when it was found well twice.
        eventually(lambda: content(ask(routed, messages=user("Hello"), max_tokens=1)) and n_ended([again])[0] > 0)
