"""`make soak`: a worker stays the same worker after a thousand jobs at both doors, a third of them abandoned."""

import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.clients.v1 import CHAT, COMPLETIONS, chunks_of, streaming, user
from tests.worker_process import Event, WorkerProcess, check_order, eventually, serve_default

pytestmark = [pytest.mark.soak, pytest.mark.process, pytest.mark.model, pytest.mark.timeout(3600)]

N_JOBS = 1000
N_SETTLED = 200
AT_ONCE = 12
MAX_GROWTH_BYTES = 10 * 1024 * 1024

WORDS = ["sea", "hill", "lamp", "river", "stone", "glass", "bread", "cloud", "winter", "garden", "letter", "mirror"]


def run_one(worker: WorkerProcess, number: int) -> str:
    """A short job, every other one at `/v1`; every third is cancelled or abandoned at a random moment. Returns how it
    ended.
    """
    rng = random.Random(number)
    request: Event = {
        "max_tokens": rng.randrange(1, 24),
        "temperature": rng.choice([0.0, 0.8]),
        "seed": number,
        "stop": rng.choice([[], ["the", "\n\n"]]),
    }
    text = " ".join(rng.choices(WORDS, k=rng.randrange(1, 60)))
    fate = rng.choice(["cancel", "disconnect"]) if number % 3 == 0 else "finish"
    run = run_at_v1 if number % 2 else run_at_execute
    return run(worker, number, text, request, fate=fate, n_before=rng.randrange(0, 12))


def run_at_execute(worker: WorkerProcess, number: int, prompt: str, request: Event, *, fate: str, n_before: int) -> str:
    """`n_before`: events before the fate."""
    with worker.stream(job_id=f"soak-{number}", prompt=prompt, **request) as stream:
        events = []
        for event in stream:
            events.append(event)
            if fate == "disconnect" and len(events) > n_before:
                return "disconnected"
            if fate == "cancel" and len(events) == n_before + 1:
                worker.post(f"/cancel/soak-{number}")
    check_order(events)
    return str(events[-1].get("code", "end"))


def run_at_v1(worker: WorkerProcess, number: int, prompt: str, request: Event, *, fate: str, n_before: int) -> str:
    """Chats and completions in turn. `n_before`: chunks before the fate. A cancelled one ends with an error."""
    is_chat = number % 4 == 1
    asked: Event = {"messages": user(prompt)} if is_chat else {"prompt": prompt}
    with streaming(worker, CHAT if is_chat else COMPLETIONS, **asked, **request) as response:
        chunks = []
        for chunk in chunks_of(response):
            chunks.append(chunk)
            if fate == "disconnect" and len(chunks) > n_before:
                return "disconnected"
            if fate == "cancel" and len(chunks) == n_before + 1:
                worker.post(f"/cancel/{response.headers['x-request-id']}")
    if "error" in chunks[-1]:
        assert fate == "cancel", chunks[-1]
        return "CANCELLED"
    assert chunks[-1]["choices"][0]["finish_reason"] in {"stop", "length"}
    return "end"


def resident_bytes(worker: WorkerProcess) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in (worker.process.pid, worker.engine.pid))


def test_a_thousand_jobs_leave_no_trace(model_path: Path) -> None:
    with serve_default(model_path, "--ctx-size", "4096", "--threads", "2") as worker:
        worker.ready()
        ends: Counter[str] = Counter()
        done = threading.Lock()

        def job(number: int) -> None:
            end = run_one(worker, number)
            with done:
                ends[end] += 1

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(job, range(N_SETTLED)))
            eventually(lambda: worker.health()["slots_busy"] == 0)
            settled_bytes = resident_bytes(worker)
            list(pool.map(job, range(N_SETTLED, N_JOBS)))
        eventually(lambda: worker.health()["slots_busy"] == 0)
        growth_bytes = resident_bytes(worker) - settled_bytes
        eventually(lambda: worker.metrics()["worker_kv_cells_used"] == 0)
        series = worker.metrics()
        outcomes = {name: count for name, count in series.items() if name.startswith("worker_requests_total")}
        sys.stdout.write(f"\nends {dict(ends)}; outcomes {outcomes}; growth {growth_bytes / 2**20:.1f} MiB\n")
        assert sum(outcomes.values()) == N_JOBS
        assert set(ends) <= {"end", "CANCELLED", "disconnected"}
        assert series["worker_queue_depth"] == series["worker_requests_running"] == 0
        assert series["worker_engine_restarts_total"] == 0
        assert growth_bytes <= MAX_GROWTH_BYTES
        worker.terminate()
        assert worker.exit_code() == 0
