"""Request bodies: the limit on the bytes held at once, and the thread on which large bodies are decoded.

Owns: the memory that large bodies share, and the queue for it. Refuses to know: the content of a body.
Runs on the front's event loop, except for the decoding.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from litestar import Request
from litestar.exceptions import HTTPException

from worker.errors import WorkerBusy
from worker.protocol.headers import foreign_codings, is_json_content_type
from worker.web.connection import connection_of

LARGE_BODY_BYTES = 32 * 1024
"""A body of this size or more waits for memory and is decoded on a thread, which takes up to tens of milliseconds."""

SHARED_BYTES = 8 * 1024 * 1024
"""The memory for all large bodies together, or for one if one may be larger. Small bodies are limited by their
number."""

SHARED_TIMEOUT_S = 10.0
"""A body waits this long for memory. It may take this long to arrive while other bodies wait."""

RETRY_AFTER_S = 1

AnyRequest = Request[Any, Any, Any]
Decoded = TypeVar("Decoded")


_MAX_SHOWN_CHARACTERS = 40


class EncodedBody(HTTPException):
    """The body was compressed or encoded in another way."""

    def __init__(self, codings: str) -> None:
        super().__init__(
            status_code=415,
            detail=f"Content-Encoding {codings[:_MAX_SHOWN_CHARACTERS]!r} is not supported: send the body unencoded",
            headers={"accept-encoding": "identity"},  # RFC 9110 15.5.16
        )


class SharedMemory:
    """A fixed amount of memory that is lent in the order of the requests for it."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._n_free = n_bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_wanted(self) -> bool:
        """True if a caller waits for memory."""
        return bool(self._queue)

    async def take(self, n_bytes: int) -> None:
        """Wait for `n_bytes`, which must not exceed the total. The caller returns them with `give_back`."""
        assert n_bytes <= self.n_bytes
        if not self._queue and n_bytes <= self._n_free:
            self._n_free -= n_bytes
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((n_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._hand_out()
            else:
                self.give_back(n_bytes)
            raise

    def give_back(self, n_bytes: int) -> None:
        self._n_free += n_bytes
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue:
            n_bytes, turn = self._queue[0]
            if not turn.cancelled():
                if n_bytes > self._n_free:
                    return
                self._n_free -= n_bytes
                turn.set_result(None)
            self._queue.popleft()


class Bodies:
    """Read and decode bodies. `decoded` is the usual call: it decodes a body while it is `received`."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._memory = SharedMemory(max(SHARED_BYTES, max_body_bytes))
        self._latest: dict[asyncio.Timeout, float] = {}
        """The time by which each large body must be complete if others wait for memory."""
        # One thread at a time: several threads would take the interpreter lock from the loop in turns, and malloc keeps
        # the memory that each of them has freed.
        self._decoding = asyncio.Lock()

    async def decoded(self, request: AnyRequest, read: Callable[[bytearray], Decoded]) -> Decoded:
        """The result of `read` for the body.

        Raises: HTTPException 415, 413, WorkerBusy before and while the body is read; then what `read` raises.
        """
        if not is_json_content_type(request.headers.get("content-type")):
            raise HTTPException(status_code=415, detail="Expected request with `Content-Type: application/json`")
        if codings := foreign_codings(request.headers.getall("content-encoding", [])):
            raise EncodedBody(codings)
        async with self.received(request) as body:
            return await self.decode(read, body)

    @asynccontextmanager
    async def received(self, request: AnyRequest) -> AsyncIterator[bytearray]:
        """The whole body; its memory is returned when the context ends.

        A large body is not read from the connection before there is memory for it.
        Raises: WorkerBusy, HTTPException 413.
        """
        n_taken = 0
        body = bytearray()
        bound = asyncio.timeout(None)
        try:
            async with bound:
                announced = request.content_length or 0
                if LARGE_BODY_BYTES <= announced <= self._max_body_bytes:
                    n_taken = await self._take_memory(request, announced, bound)
                async for piece in request.stream():
                    body += piece
                    if not n_taken and len(body) >= LARGE_BODY_BYTES:
                        n_taken = await self._take_memory(request, self._max_body_bytes, bound)
            self._latest.pop(bound, None)
            yield body
        except TimeoutError:
            raise WorkerBusy(
                "the body arrived too slowly while other requests waited; try again later", RETRY_AFTER_S
            ) from None
        finally:
            self._latest.pop(bound, None)
            self._memory.give_back(n_taken)

    async def decode(self, read: Callable[[bytearray], Decoded], body: bytearray) -> Decoded:
        """`read(body)`, on a thread if it may take long."""
        if len(body) < LARGE_BODY_BYTES:
            return read(body)
        async with self._decoding:
            return await asyncio.to_thread(read, body)

    async def _take_memory(self, request: AnyRequest, n_bytes: int, arrival: asyncio.Timeout) -> int:
        """Wait for memory. Then `arrival` may last SHARED_TIMEOUT_S while others wait. Returns n_bytes."""
        for other, latest_s in self._latest.items():
            other.reschedule(latest_s)
        with connection_of(request.scope).body_held_back():
            try:
                async with asyncio.timeout(SHARED_TIMEOUT_S):
                    await self._memory.take(n_bytes)
            except TimeoutError:
                raise WorkerBusy("too many large requests at once; try again later", RETRY_AFTER_S) from None
        latest_s = asyncio.get_running_loop().time() + SHARED_TIMEOUT_S
        self._latest[arrival] = latest_s
        if self._memory.is_wanted:
            arrival.reschedule(latest_s)
        return n_bytes
