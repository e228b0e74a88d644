"""A fleet of workers behind one address, with Ray Serve: `serve run deploy.ray.fleet:app flags="--model X"`.

Each replica of `Worker` is a worker process of its own on a free port of the loopback, and lives as long as that
process does. `Door` is the fleet's HTTP: jobs go to one worker as `PrefixRouter` says, all else is asked of every
worker. Refuses to know what a request means beyond where its prompt begins. Imports nothing of the worker, so that the
two may be installed in different environments.
"""

import asyncio
import json
import os
import shlex
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from signal import SIGTERM
from subprocess import DEVNULL, PIPE
from typing import Any, cast

import aiohttp
from pydantic import BaseModel, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from deploy.ray.texts import blocks_of, merged

DRAIN_S = 25
"""--shutdown-timeout-sec of the workers: how long accepted jobs may take to end."""
MAX_APART = 4
"""A worker with this many jobs more than the least loaded one gets no more, even if their prefixes are cached there."""
MAX_OPEN = 10_000
"""Requests, of the fleet and of each worker."""
TRIES, _PAUSE_S = 3, 0.5
"""A job whose worker died before it said anything is given to another one, once Ray knows of that death."""

_MAX_BLOCKS = 500_000
"""Remembered, of the prompts that were sent last: some 16 million tokens."""
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--") if sys.platform == "linux" else ()
"""The option that makes the kernel end the worker when its replica is killed."""
_NO_WORKER = ("WORKER_LOADING", "no worker is ready")
_OF_ONE_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
"""Headers that end at each hop. Source: RFC 9110, 7.6.1."""
_RAYS_OWN = {"date", "server", "x-request-id"}
"""The headers of answers that Ray's proxy also sets."""

Headers = list[tuple[str, str]]


class Options(BaseModel, extra="forbid"):
    """The options of `serve run deploy.ray.fleet:app name=value …`."""

    flags: str = Field("", description="Flags of llorch-worker, as one argument.")
    command: str = Field("llorch-worker", description="What starts a worker; may be a path with arguments.")
    min_workers: int = Field(2, ge=1)
    max_workers: int = Field(2, ge=1)
    parallel: int = Field(8, ge=1, description="Jobs that generate at once in a worker; beyond it others are started.")
    max_queue: int = Field(256, ge=0, description="Jobs that wait for a worker, besides those that wait in one.")
    cpus: float = Field(1, ge=0, description="Of each worker, as Ray counts them.")
    gpus: float = Field(0, ge=0, description="Of each worker; it sees no others.")


def app(options: Options) -> Application:
    """The application that `serve run` deploys."""
    workers = serve.deployment(
        Worker,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        # Ray counts all requests of a worker, those that wait in its queue and those that wait for it in the router.
        autoscaling_config={
            "min_replicas": options.min_workers,
            "max_replicas": max(options.min_workers, options.max_workers),
            "target_ongoing_requests": options.parallel,
        },
        max_ongoing_requests=MAX_OPEN,
        max_queued_requests=options.max_queue,
        request_router_config={
            "request_router_class": PrefixRouter,
            "request_router_kwargs": {"max_jobs": 2 * options.parallel + MAX_APART},
        },
        health_check_period_s=5,
        graceful_shutdown_timeout_s=2 * DRAIN_S + 10,
    )
    door = serve.deployment(Door, max_ongoing_requests=MAX_OPEN, ray_actor_options={"num_cpus": 0})
    command = [*shlex.split(options.command), *shlex.split(options.flags), "--parallel", str(options.parallel)]
    return door.bind(workers.bind(command))


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way to a worker."""

    method: str
    target: str
    """Path and query."""
    headers: Headers
    body: bytes = b""
    blocks: tuple[bytes, ...] = ()
    """The blocks of its prompt, see `blocks_of`."""


class PrefixRouter(RequestRouter):  # type: ignore[misc] # Ray is not installed where types are checked
    """A job goes where the longest beginning of its prompt went last, unless that worker has MAX_APART jobs more than
    another one; else where there are fewest jobs, and of equals where fewest prompts went. It waits while all have as
    many jobs as they may.

    What went where is remembered in the process that has the handle, which is the one of `Door`.
    """

    def initialize_state(self, max_jobs: int) -> None:
        """Ray's own limit would hold back questions about a worker's health, too."""
        self._max_jobs = max_jobs
        self._running: dict[str, ReplicaID] = {}
        self._places: OrderedDict[bytes, ReplicaID] = OrderedDict()
        self._n_blocks: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are tried."""
        running = Counter(self._running.values())

        def n_jobs(replica: RunningReplica) -> int:
            """Ray's count has those that are being sent, but is forgotten when it has not changed for ten seconds."""
            return max(running[replica.replica_id], self.replica_queue_len_cache.get(replica.replica_id) or 0)

        free = [one for one in candidate_replicas if n_jobs(one) < self._max_jobs]
        ranked = sorted(free, key=lambda one: (n_jobs(one), self._n_blocks[one.replica_id]))
        if pending_request is not None:
            # Else Ray tries again and again without a pause.
            pending_request.routing_context.should_backoff = True
            near = {one.replica_id: one for one in ranked if n_jobs(one) < n_jobs(ranked[0]) + MAX_APART}
            places = (self._places.get(block) for block in reversed(_blocks(pending_request)))
            if (best := next((near[place] for place in places if place in near), None)) is not None:
                ranked.sort(key=lambda one: one is not best)
        return [[replica] for replica in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:  # noqa: ARG002 - Ray's
        """Remembers where the prompt went."""
        self._running[pending_request.metadata.internal_request_id] = replica_id
        for block in _blocks(pending_request):
            if block in self._places:
                self._forget(block)
            self._places[block] = replica_id
            self._n_blocks[replica_id] += 1
        while len(self._places) > _MAX_BLOCKS:
            self._forget(next(iter(self._places)))

    def _forget(self, block: bytes) -> None:
        self._n_blocks[self._places.pop(block)] -= 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:  # noqa: ARG002 - Ray's
        """Whichever way it ended."""
        self._running.pop(internal_request_id, None)


class Worker:
    """A worker process."""

    async def __init__(self, command: Sequence[str]) -> None:  # type: ignore[misc] # Ray awaits it
        """Returns when jobs are taken. Raises: RuntimeError if the process ends before."""
        own = ("--host", "127.0.0.1", "--port", "0", "--log-format", "json", "--shutdown-timeout-sec", str(DRAIN_S))
        name = serve.get_replica_context().replica_id.unique_id
        self._process = await asyncio.create_subprocess_exec(
            *_ENDS_WITH_US, *command, *own, "--worker-id", name, stdin=DEVNULL, stderr=PIPE, limit=2**20
        )
        self._is_stopping = False
        url = await self._until("listening", "url")
        unbounded = {"timeout": aiohttp.ClientTimeout(total=None), "connector": aiohttp.TCPConnector(limit=0)}
        self._http = aiohttp.ClientSession(url, auto_decompress=False, **unbounded)
        await self._until("ready", "event")
        self._tasks = [asyncio.create_task(self._relayed()), asyncio.create_task(self._watched())]

    async def stream(self, call: Call) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The answer's status and headers, then its bytes as they come.

        A client that leaves cancels this, which closes the connection, and the worker cancels the job.
        """
        async with self._http.request(call.method, call.target, headers=call.headers, data=call.body) as answer:
            yield answer.status, _kept(answer.headers.items())
            async for piece in answer.content.iter_any():
                yield piece

    async def answer(self, call: Call) -> tuple[int, Headers, bytes]:
        """A whole answer, in its usual form."""
        headers = [(name, value) for name, value in call.headers if name.lower() != "accept"]
        async with self._http.request(call.method, call.target, headers=headers, data=call.body) as answer:
            return answer.status, _kept(answer.headers.items()), await answer.read()

    async def check_health(self) -> None:
        """Raises: aiohttp.ClientError where the worker's event loop does not turn, or it is about to exit."""
        async with self._http.get("/livez") as answer:
            answer.raise_for_status()

    async def __del__(self) -> None:
        """Ray calls it once no request is left, or their time is over: drains and ends the worker."""
        self._is_stopping = True
        if self._process.returncode is None:
            self._process.send_signal(SIGTERM)
        await self._process.wait()

    async def _until(self, event: str, field: str) -> str:
        """The field of the first log line with the event; all lines are copied to our own log."""
        while line := await self._next_line():
            if line.startswith(b"{") and (entry := json.loads(line)).get("event") == event:
                return str(entry[field])
        raise RuntimeError(f"the worker ended with {await self._process.wait()} before it was {event}; see its log")

    async def _next_line(self) -> bytes:
        line = await cast(asyncio.StreamReader, self._process.stderr).readline()
        sys.stderr.write(line.decode("utf-8", "replace"))
        return line

    async def _relayed(self) -> None:
        while await self._next_line():
            pass

    async def _watched(self) -> None:
        """Ends this replica with its worker: Ray sees that at once, asks others and starts another one."""
        code = await self._process.wait()
        if not self._is_stopping:
            sys.stderr.write(f"the worker ended with {code}, and so does its replica\n")
            os._exit(1)


class Door:
    """The deployment that clients call. There must be exactly one, because it remembers the prompts of each worker."""

    def __init__(self, workers: DeploymentHandle[Any]) -> None:
        self._workers = workers

    async def __call__(self, request: Request) -> Response:
        """The answer of a worker; 503 if no worker can answer."""
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        body = await request.body()
        call = Call(request.method, target, _kept(request.headers.items()), body, blocks_of(body))
        is_job = request.method == "POST" and not target.startswith("/cancel")
        try:
            return await (self._job(call) if is_job else self._all(call))
        except BackPressureError:
            return _refused("WORKER_BUSY", "all workers and the queue before them are full")
        except DeploymentUnavailableError:
            return _refused(*_NO_WORKER)

    async def _job(self, call: Call) -> Response:
        error: Exception | None = None
        for _ in range(TRIES):
            stream = aiter(self._workers.options(method_name="stream", stream=True).remote(call))
            try:
                status, headers = await anext(stream)
            except (RayActorError, aiohttp.ClientError) as died:
                error = died
                await asyncio.sleep(_PAUSE_S)
            else:
                return _with_headers(StreamingResponse(stream, status), headers)
        return _refused("WORKER_UNHEALTHY", f"{TRIES} workers died over this request, the last with: {error}")

    async def _all(self, call: Call) -> Response:
        """The best of all workers' answers; a page of metrics is merged from all."""
        answers = await self._workers.broadcast("answer", call).results_async(return_exceptions=True)
        found = sorted(
            (one for one in answers if not isinstance(one, BaseException)), key=lambda one: cast(int, one[0])
        )
        if not found:
            return _refused(*_NO_WORKER)
        status, headers, content = found[0]
        if call.target != "/metrics" or status != 200:
            return _with_headers(Response(content, status), headers)
        pages = [page.decode() for status, _, page in found if status == 200]
        return Response(merged(pages), media_type="text/plain; version=0.0.4")


def _blocks(pending_request: PendingRequest) -> tuple[bytes, ...]:
    """A pickled copy of this module has a class `Call` of its own."""
    return cast(tuple[bytes, ...], pending_request.args[0].blocks)


def _kept(headers: Iterable[tuple[str, str]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_HOP]


def _with_headers(response: Response, headers: Headers) -> Response:
    named = [(name.lower(), value) for name, value in headers]
    response.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in named if name not in _RAYS_OWN]
    return response


def _refused(code: str, message: str) -> Response:
    """The refusal in both formats: `/execute` clients read `code`, `/v1` clients read `error`."""
    error = {"message": message, "type": "server_error", "code": code}
    body = {"code": code, "message": message, "retriable": True, "error": error}
    return JSONResponse(body, 503, headers={"Retry-After": "1"})
