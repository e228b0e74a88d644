"""The responses that carry the output of jobs, as a stream or as one answer; and the route of `/execute`.

Litestar's own streams do not close their source if the client disconnects during a blocked send. These responses end
their jobs in a `finally`, and notice a disconnect while they wait for the engine.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from worker.apis.core.events import Dialect
from worker.apis.core.received import request_id, trace_context
from worker.apis.core.request import JobRequest, Request
from worker.apis.pool.execute import checked_prompt, choose_dialect, parse_execute
from worker.errors import WorkerError
from worker.server.front.job import Job, next_chunk_of
from worker.server.front.state import Front
from worker.server.front.supervision import first_of, running
from worker.server.web.bodies import AnyRequest, Bodies
from worker.server.web.connection import check_address, connection_of
from worker.server.web.middleware import counted

SILENCE_S = 10.0
"""The longest silence of a stream: proxies close a silent stream after 60 s, some earlier."""

CHUNKS_PER_TURN = 32
"""A send that does not block does not yield either, so the loop serves other tasks after this many chunks."""


class SignsOfLife:
    """Inside the `with`, one of the jobs sends a sign of life whenever their stream was silent for SILENCE_S.

    One timer serves the stream and is set again only when it has expired, so a token costs one look at the clock.
    """

    def __init__(self, jobs: Sequence[Job], loop: asyncio.AbstractEventLoop) -> None:
        self._jobs = jobs
        self._loop = loop

    def __enter__(self) -> Self:
        self.sent()
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def sent(self) -> None:
        """Note that data was sent to the client."""
        self._due_s = self._loop.time() + SILENCE_S

    def _look(self) -> None:
        if self._loop.time() >= self._due_s:
            if job := next((job for job in self._jobs if not job.is_ended), None):
                job.show_life()
            self.sent()
        self._timer = self._loop.call_at(self._due_s, self._look)


class JobResponse(ASGIResponse):
    """A response that sends nothing before the engine has accepted every job.

    It is a stream, whose events are sent as they come, unless `whole` makes one answer of all of them.
    """

    def __init__(
        self,
        front: Front,
        jobs: Sequence[Job],
        headers: Mapping[str, str],
        *,
        as_asked: Callable[[WorkerError], WorkerError] = lambda refusal: refusal,
        headers_when_accepted: Callable[[], Mapping[str, str]] = dict,
        ending: Callable[[], bytes] = bytes,
        whole: Callable[[], tuple[int, bytes]] | None = None,
    ) -> None:
        """`as_asked` words an engine's refusal. `headers_when_accepted` need the prompts' tokens. `ending` is the end
        of a stream in which no job failed. `whole` returns the status and the body when all jobs have ended or one has
        failed."""
        streamed = {"cache-control": "no-cache", "x-accel-buffering": "no"} if whole is None else {}
        # The media type is set as a header, because ASGIResponse would add a charset to it.
        super().__init__(headers={"content-type": jobs[0].dialect.media_type, **streamed, **headers})
        del self.headers["content-length"]
        self._front = front
        self._jobs = jobs
        self._as_asked = as_asked
        self._headers_when_accepted = headers_when_accepted
        self._ending = ending
        self._whole = whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange and watch for a disconnect; the first to end ends the other. Raises: WorkerError."""
        with self._front.watched():
            async with running(_departure(receive)) as left, running(self._exchange(scope, send)) as exchange:
                try:
                    await first_of(exchange, left)
                finally:
                    for job in self._jobs:
                        job.fail("CANCELLED", "the client disconnected")

    async def _exchange(self, scope: Scope, send: Send) -> None:
        for job in self._jobs:
            await job.decided.wait()
            if job.refusal is not None:
                raise self._as_asked(job.refusal)
        self.headers.update(self._headers_when_accepted())
        body = b""
        if self._whole is not None:
            while await next_chunk_of(self._jobs):
                pass
            self.status_code, body = self._whole()
            self.headers["content-length"] = str(len(body))
        await connection_of(scope).flow.drain()  # an earlier answer on it may still be unread
        await self.start_response(send)
        if self._whole is None:
            body = await self._send_events(scope, send)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_events(self, scope: Scope, send: Send) -> bytes:
        """Take only the events from the jobs that can be sent at once, because a cancel drops the others. Returns the
        end of the stream."""
        drained = connection_of(scope).flow.drain
        living = () if self._front.settings.no_keepalive else self._jobs
        with SignsOfLife(living, asyncio.get_running_loop()) as signs:
            n_sent = 0
            while chunk := await next_chunk_of(self._jobs):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await drained()
                signs.sent()
                n_sent += 1
                if n_sent % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return self._ending() if all(job.failure is None for job in self._jobs) else b""


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def opened_jobs(
    front: Front, request: AnyRequest, asked: Sequence[JobRequest], timeout_s: float | None
) -> Sequence[Job]:
    """Open the jobs of one request. Raises: see Front.open_jobs."""
    return front.open_jobs(
        asked,
        request.headers.get("x-deadline"),
        request.scope["state"]["correlation_id"],
        timeout_s=timeout_s,
        trace=trace_context(request.scope["headers"]),
        is_crowded=connection_of(request.scope).limits.is_full,
    )


def execute_route(front: Front, bodies: Bodies) -> HTTPRouteHandler:
    timeout_s, max_tokens_out = front.settings.execute_timeout_s, front.settings.execute_tokens_out

    @post("/execute", status_code=200)
    async def execute(request: AnyRequest) -> ASGIResponse:
        """Stream a job's tokens as server-sent events, or as JSON lines if Accept asks for them."""
        with counted(front, request):
            check_address(request.scope)
            dialect = choose_dialect(request.headers.get("accept"), sse_event_names=front.settings.sse_event_names)
            asked = await bodies.decoded(
                request, partial(_read_execute, front=front, dialect=dialect, max_tokens_out=max_tokens_out)
            )
            jobs = opened_jobs(front, request, [asked], timeout_s)
        job_id = request_id(jobs[0].request.job_id)
        return JobResponse(front, jobs, {} if job_id is None else {"x-request-id": job_id})

    return execute


def _read_execute(body: bytearray, front: Front, dialect: Dialect, max_tokens_out: int) -> JobRequest:
    """Raises: BodyRejected, FieldsRefused."""
    request = parse_execute(body)
    vocab_size = front.facts.vocab_size if front.facts is not None else None
    prompt = checked_prompt(request, max_tokens_out, vocab_size, max_prompt_chars=front.settings.max_prompt_chars)
    asked = Request(prompts=(prompt,), params=request)
    return JobRequest(job_id=request.job_id, asked=asked, prompt=prompt, dialect=dialect)
