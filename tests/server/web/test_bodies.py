"""The memory for large bodies is lent in order, never exceeds the total, and is never lost."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.pool.vectors import R0
from tests.loops import on_a_loop
from tests.server.web.flood import Watch, apart, flood
from tests.server.web.wire import JSON, head, post_json, read_answer
from tests.worker_process import WorkerProcess
from worker.server.web.large_bodies import SHARED_BYTES, SharedMemory


async def settled() -> None:
    """Wait until every task has gone as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.sampled_from(["take", "give back", "cancel"]), st.integers(0, 10)), max_size=40))
@on_a_loop
async def test_memory_is_never_lent_twice_nor_lost_and_is_lent_in_order(moves: list[tuple[str, int]]) -> None:
    memory = SharedMemory(10)
    takers: list[tuple[int, asyncio.Task[None]]] = []
    for move, n in moves:
        if move == "take":
            takers.append((n, asyncio.create_task(memory.take(n))))
        elif takers:
            n_bytes, task = taker = takers[n % len(takers)]
            if task.done():
                memory.give_back(n_bytes)
                takers.remove(taker)
            elif move == "cancel":
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                takers.remove(taker)
        await settled()
        has = [task.done() for _, task in takers]
        n_taken = sum(n_bytes for n_bytes, task in takers if task.done())
        assert n_taken <= 10
        waiting = [n_bytes for n_bytes, task in takers if not task.done()]
        assert memory.n_waiting == len(waiting)
        assert has == sorted(has, reverse=True), "a later caller was served first"
        assert not waiting or n_taken + waiting[0] > 10
    for _, task in takers:
        task.cancel()
    await asyncio.gather(*(task for _, task in takers), return_exceptions=True)


@on_a_loop
async def test_memory_that_is_lent_to_a_cancelled_caller_goes_to_the_next() -> None:
    memory = SharedMemory(2)
    await memory.take(2)
    second, third = (asyncio.create_task(memory.take(2)) for _ in range(2))
    await settled()
    memory.give_back(2)
    second.cancel()
    await settled()
    assert second.cancelled()
    assert third.done()
    assert not memory.n_waiting


# ── the worker ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
@pytest.mark.model
def test_a_flood_of_large_bodies_neither_delays_health_nor_fills_memory(worker: WorkerProcess) -> None:
    """100 bodies of 2 MiB took 192 MB, which were not freed, when all of them were read at once."""
    with Watch(worker) as watch:
        statuses = apart(flood, worker.port)
    assert statuses.total() == 100
    assert set(statuses) <= {"HTTP/1.1 400 Bad Request", "HTTP/1.1 503 Service Unavailable"}
    assert statuses["HTTP/1.1 400 Bad Request"] >= 4
    assert watch.n_failed == 0
    assert watch.rss - watch.rss_before < 64e6


@pytest.mark.process
@pytest.mark.model
def test_large_bodies_that_do_not_arrive_lose_their_memory_to_those_that_do(worker: WorkerProcess) -> None:
    """Four stalled bodies hold all of it. After another body has waited ten seconds, they are refused for now."""
    stalled = [worker.connect() for _ in range(4)]
    for sock in stalled:
        sock.sendall(head("POST", "/execute", content_type=JSON, content_length=SHARED_BYTES // 4) + b'{"job_id":')
    with worker.connect() as patient:
        patient.sendall(post_json("/execute", R0 | {"prompt": "Hello " + " " * 40_000, "max_tokens": 1}))
        answer = read_answer(patient)
    assert answer.status in {400, 503}
    for sock in stalled:
        with sock:
            assert read_answer(sock).status == 503
