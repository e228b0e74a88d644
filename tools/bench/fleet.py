"""Two workers behind one address: with vllm-router with one of its policies, or as replicas of Ray Serve.

Owns: what is started, in which order it ends, and how a worker is killed in the middle of it all. Refuses to know what
is asked (conversations.py). Runs on the load's event loop.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from client.child import free_port
from tools.bench.dialects import Chat
from tools.bench.exchange import Address
from tools.bench.servers import HOST, Plan, our_worker, served

N_WORKERS = 2
RAY, ROUND_ROBIN, CACHE_AWARE, KV_AWARE = "ray", "round_robin", "cache_aware", "kv_aware"
SIDES = (ROUND_ROBIN, CACHE_AWARE, KV_AWARE, RAY)
"""Ray Serve with deploy/ray, and policies of vllm-router."""

_ROOT = Path(__file__).parents[2]
_BLOCK_TOKENS = 16
_LOGGED_S, _LOOK_EVERY_S = 5.0, 0.1
_ENDED_WELL = (b'"event":"execute_end"', b'"outcome":"success"')


class RouterChat(Chat):
    """vllm-router has the health route of vLLM."""

    health_path = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The programs and files that fleets need."""

    model: Path
    worker_flags: Sequence[str]
    parallel: int
    vllm_router: Path | None
    """The program of that name."""
    ray_serve: Path | None
    """The program `serve`, of an environment with Ray Serve."""
    logs: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ready for requests."""

    address: Address
    lose_a_worker: Callable[[], Coroutine[None, None, None]]
    """Kill one, and return when it is back, or when another process restarts it."""
    logs: Path
    """A folder with all that its workers log."""

    def n_jobs(self, n_wanted: int) -> int:
        """The number of successful jobs in its workers' own logs; waits a while for the wanted number."""
        give_up_s = time.monotonic() + _LOGGED_S
        while (found := self._n_logged()) < n_wanted and time.monotonic() < give_up_s:
            time.sleep(_LOOK_EVERY_S)
        return found

    def _n_logged(self) -> int:
        texts = (path.read_bytes() for path in self.logs.rglob("*") if path.is_file())
        return sum(all(mark in line for mark in _ENDED_WELL) for text in texts for line in text.splitlines())


@asynccontextmanager
async def fleet(side: str, means: Means) -> AsyncIterator[Fleet]:
    """Two fresh workers behind one address; all of it has ended afterwards. Raises: NotStarted."""
    folder = Path(tempfile.mkdtemp(prefix=f"{side}-", dir=means.logs))
    async with (_ray if side == RAY else _routed)(side, replace(means, logs=folder)) as found:
        yield found


@asynccontextmanager
async def _routed(policy: str, means: Means) -> AsyncIterator[Fleet]:
    assert means.vllm_router is not None
    plans, sources = _workers(policy, means)
    urls = [f"http://{HOST}:{plan.port}" for plan in plans]
    flags = ["--policy", policy, "--worker-urls", *urls, "--health-check-interval-secs", "1"]
    flags += ["--worker-startup-check-interval", "1", "--prometheus-port", str(free_port())]
    for url, source in zip(urls, sources, strict=True):
        if source:
            replay = f"tcp://{HOST}:{int(source.rpartition(':')[2]) + 1}"
            flags += ["--kv-event-source", f"{url}={source}", "--kv-event-replay-source", f"{url}={replay}"]
    if any(sources):
        flags += ["--kv-event-block-size", str(_BLOCK_TOKENS), "--kv-event-model", means.model.stem]
        # A copy in main memory is as near as the KV memory here: it saves all of the prefill.
        flags += ["--kv-penalty-host", "1"]
    router = Plan(name="vllm-router", dialect=RouterChat(), program=(str(means.vllm_router),), flags=tuple(flags))
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(served(plan, means.logs, means.environment)) for plan in plans]
        front = await stack.enter_async_context(served(router, means.logs, means.environment))

        async def lose_a_worker() -> None:
            os.kill(started[0].pids["front"], signal.SIGKILL)
            await stack.enter_async_context(served(plans[0], means.logs, means.environment))

        yield Fleet(front.address, lose_a_worker, means.logs)


def _workers(policy: str, means: Means) -> tuple[list[Plan], list[str]]:
    """The workers, and the address of each one's KV events; empty if there is none."""
    plans, sources = [], []
    for _ in range(N_WORKERS):
        source = f"tcp://{HOST}:{free_port()}" if policy == KV_AWARE else ""
        own = ["--parallel", str(means.parallel), *(["--kv-events", source] if source else [])]
        plans.append(replace(our_worker(means.model, [*means.worker_flags, *own]), port=free_port()))
        sources.append(source)
    return plans, sources


@asynccontextmanager
async def _ray(side: str, means: Means) -> AsyncIterator[Fleet]:
    assert means.ray_serve is not None
    port = free_port()
    worker = our_worker(means.model, means.worker_flags)
    # JSON is YAML.
    config = {
        "http_options": {"host": HOST, "port": port},
        "applications": [
            {
                "name": "fleet",
                "route_prefix": "/",
                "import_path": "deploy.ray.fleet:app",
                "args": {
                    "command": " ".join([sys.executable, "-m", "worker"]),
                    "flags": " ".join([*worker.program[3:], *worker.flags]),
                    "parallel": means.parallel,
                    "min_workers": N_WORKERS,
                    "max_workers": N_WORKERS,
                    "cpus": 0,
                },
            }
        ],
    }
    file = means.logs / "serve.yaml"
    file.write_bytes(msgspec.json.encode(config))
    # Ray keeps sockets in this folder, and the path of a socket may have no more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        plan = Plan(
            name=side,
            dialect=Chat(),
            program=(str(means.ray_serve), "run", str(file)),
            flags=("--address", "local"),
            port=port,
            takes_address=False,
        )
        search = os.pathsep.join([str(_ROOT), *filter(None, [means.environment.get("PYTHONPATH")])])
        environment = {
            **means.environment,
            "PYTHONPATH": search,
            "RAY_TMPDIR": temporary,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        async with served(plan, means.logs, environment) as front:

            async def lose_a_worker() -> None:
                os.kill(await asyncio.to_thread(_a_replica, front.pids), signal.SIGKILL)

            yield Fleet(front.address, lose_a_worker, Path(temporary))


def _a_replica(pids: Mapping[str, int]) -> int:
    """The pid of a worker among all that `serve run` has started."""
    children = psutil.Process(next(iter(pids.values()))).children(recursive=True)
    return next(child.pid for child in children if "--worker-id" in child.cmdline())
