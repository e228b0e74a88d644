"""The response that streams a job and always lets go of it.

Litestar's own streams do not close what they opened when the client leaves during a blocked send; this one ends the
job in a `finally`, and notices a disconnect while it waits for the engine. connection.py bounds every send.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from worker.front.job import Job
from worker.front.state import Front
from worker.front.supervision import first_of, running
from worker.web.connection import wait_until_taken
from worker.web.edge import note_refusal

CHUNKS_PER_TURN = 32
"""A send that does not block does not yield either, so after this many the loop serves others."""


class JobStream(ASGIResponse):
    """Headers leave once the engine has accepted the job; a refusal becomes `render_error`'s answer instead."""

    def __init__(self, front: Front, job: Job, render_error: Callable[[Exception], Response[bytes]]) -> None:
        # The media type as a header: ASGIResponse would add a charset to it.
        super().__init__(
            headers={
                "content-type": job.dialect.media_type,
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )
        del self.headers["content-length"]
        self._front = front
        self._job = job
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the exchange next to a watch for the client's leaving; whichever ends first ends the other."""
        with self._front.watched():
            await self._converse(scope, receive, send)

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with running(_departure(receive)) as departure, running(self._exchange(scope, receive, send)) as exchange:
            try:
                await first_of(exchange, departure)
            finally:
                self._job.fail("CANCELLED", "the client went away")

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._job.decided.wait()
        if self._job.refusal is not None:
            note_refusal(scope, self._job.refusal)
            answer = self._render_error(self._job.refusal)
            request = Request[Any, Any, Any](scope, receive, send)
            await answer.to_asgi_response(app=None, request=request)(scope, receive, send)
            return
        await wait_until_taken(scope)  # an answer before this one, on the same connection
        await self.start_response(send)
        await self._send_chunks(scope, send)

    async def _send_chunks(self, scope: Scope, send: Send) -> None:
        """Take from the job only what can leave at once: tokens still with it are dropped by a cancel."""
        n_sent = 0
        while True:
            chunk = await self._job.next_chunk()
            await send({"type": "http.response.body", "body": chunk, "more_body": bool(chunk)})
            if not chunk:
                return
            await wait_until_taken(scope)
            n_sent += 1
            if n_sent % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
