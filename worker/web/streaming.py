"""The responses that carry the output of jobs, as a stream or as one answer. They always end their jobs.

Litestar's own streams do not close their source if the client disconnects during a blocked send. These responses end
their jobs in a `finally`, and notice a disconnect while they wait for the engine. connection.py limits every send.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self

from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from worker.front.job import Job, next_chunk_of
from worker.front.state import Front
from worker.front.supervision import first_of, running
from worker.web.connection import wait_until_taken
from worker.web.refusals import note_refusal

SILENCE_S = 10.0
"""The longest silence of a stream: proxies close a silent stream after 60 s, some earlier."""

CHUNKS_PER_TURN = 32
"""A send that does not block does not yield either, so the loop serves other tasks after this many chunks."""


class Timers(Protocol):
    """The clock of an event loop: asyncio's, or a test's."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


class SignsOfLife:
    """Inside the `with`, one of the jobs sends a sign of life whenever their stream was silent for SILENCE_S.

    One timer serves the stream and is set again only when it has expired, so a token costs one look at the clock.
    """

    def __init__(self, jobs: Sequence[Job], timers: Timers) -> None:
        self._jobs = jobs
        self._timers = timers

    def __enter__(self) -> Self:
        self.sent()
        self._set_timer()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def sent(self) -> None:
        """Note that data was sent to the client."""
        self._due_s = self._timers.time() + SILENCE_S

    def _set_timer(self) -> None:
        self._timer = self._timers.call_at(self._due_s, self._look)

    def _look(self) -> None:
        if self._timers.time() >= self._due_s:
            if job := next((job for job in self._jobs if not job.is_ended), None):
                job.show_life()
            self.sent()
        self._set_timer()


class JobResponse(ASGIResponse, ABC):
    """A response that sends nothing before the engine has accepted every job. `render_error` answers a refusal."""

    def __init__(
        self,
        front: Front,
        jobs: Sequence[Job],
        render_error: Callable[[Exception], Response[bytes]],
        headers: Mapping[str, str],
        headers_when_accepted: Callable[[], Mapping[str, str]],
    ) -> None:
        """`headers_when_accepted`: further headers, which need the prompts' tokens."""
        # The media type is set as a header, because ASGIResponse would add a charset to it.
        super().__init__(headers={"content-type": jobs[0].dialect.media_type, **headers})
        del self.headers["content-length"]
        self._front = front
        self._jobs = jobs
        self._render_error = render_error
        self._headers_when_accepted = headers_when_accepted
        self._next_chunk = jobs[0].next_chunk if len(jobs) == 1 else partial(next_chunk_of, jobs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange and watch for a disconnect; the first to end ends the other."""
        with self._front.watched():
            await self._converse(scope, receive, send)

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with running(_departure(receive)) as departure, running(self._exchange(scope, receive, send)) as exchange:
            try:
                await first_of(exchange, departure)
            finally:
                for job in self._jobs:
                    job.fail("CANCELLED", "the client disconnected")

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        for job in self._jobs:
            await job.decided.wait()
            if job.refusal is not None:
                note_refusal(scope, job.refusal)
                answer = self._render_error(job.refusal)
                request = Request[Any, Any, Any](scope, receive, send)
                await answer.to_asgi_response(app=None, request=request)(scope, receive, send)
                return
        for name, value in self._headers_when_accepted().items():
            self.headers[name] = value
        await self._answer(scope, send)

    @abstractmethod
    async def _answer(self, scope: Scope, send: Send) -> None: ...


class JobStream(JobResponse):
    """A stream: headers are sent at once, then every event as it comes, then `ending`'s bytes if no job has failed."""

    def __init__(
        self,
        front: Front,
        jobs: Sequence[Job],
        render_error: Callable[[Exception], Response[bytes]],
        headers: Mapping[str, str] | None = None,
        ending: Callable[[], bytes] = bytes,
        *,
        headers_when_accepted: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        unbuffered = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(front, jobs, render_error, unbuffered | dict(headers or {}), headers_when_accepted)
        self._ending = ending
        self._living = () if front.settings.no_keepalive else jobs

    async def _answer(self, scope: Scope, send: Send) -> None:
        await wait_until_taken(scope)  # an earlier answer on the same connection may still be unread
        await self.start_response(send)
        with SignsOfLife(self._living, asyncio.get_running_loop()) as signs:
            await self._send_events(scope, send, signs)
        ending = self._ending() if all(job.failure is None for job in self._jobs) else b""
        await send({"type": "http.response.body", "body": ending, "more_body": False})

    async def _send_events(self, scope: Scope, send: Send, signs: SignsOfLife) -> None:
        """Take only the events from the jobs that can be sent at once, because a cancel drops the others."""
        n_sent = 0
        while chunk := await self._next_chunk():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await wait_until_taken(scope)
            signs.sent()
            n_sent += 1
            if n_sent % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)


class JobAnswer(JobResponse):
    """One answer. `made` returns its status and body when all jobs have ended or one has failed."""

    def __init__(
        self,
        front: Front,
        jobs: Sequence[Job],
        render_error: Callable[[Exception], Response[bytes]],
        headers: Mapping[str, str],
        made: Callable[[], tuple[int, bytes]],
        *,
        headers_when_accepted: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(front, jobs, render_error, headers, headers_when_accepted)
        self._made = made

    async def _answer(self, scope: Scope, send: Send) -> None:
        while await self._next_chunk():
            pass
        self.status_code, body = self._made()
        self.headers["content-length"] = str(len(body))
        await wait_until_taken(scope)
        await self.start_response(send)
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
