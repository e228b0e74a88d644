"""Large bodies: their limits, the memory that they share, the queue for it, and the time in which they must arrive."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Request
from litestar.exceptions import HTTPException

from worker.apis.core.payloads import NO_PLACES, MediaPlaces, Payloads
from worker.errors import WorkerBusy
from worker.server.web.connection import BODY_PART_BYTES, connection_of

LARGE_BODY_BYTES = 32 * 1024
"""A body of this size or more waits for memory and is decoded on a thread, which takes up to tens of milliseconds."""

SHARED_BYTES = 8 * 1024 * 1024
"""The memory for all large bodies together, or for one if one may be larger. Small bodies are limited by their
number."""

SHARED_TIMEOUT_S = 10.0
"""A body waits this long for memory. While other bodies wait, it may take this long to arrive, or, if it is longer than
BODY_PART_BYTES, each such part of it."""

RETRY_AFTER_S = 1


class BodyTooLarge(HTTPException):
    def __init__(self, what: str, max_bytes: int, way_out: str) -> None:
        super().__init__(status_code=413, detail=f"{what} exceeds {max_bytes:,} bytes: {way_out}")


class SharedMemory:
    """A fixed amount of memory that is lent in the order of the requests for it."""

    def __init__(self, n_bytes: int) -> None:
        self.n_waiting = 0
        """The number of callers that wait for memory."""
        self._n_free = n_bytes
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    async def take(self, n_bytes: int) -> None:
        """Wait for `n_bytes`, which must not exceed the total. The caller returns them with `give_back`."""
        self.n_waiting += 1
        try:
            async with self._turn:
                while n_bytes > self._n_free:
                    self._returned.clear()
                    await self._returned.wait()
                self._n_free -= n_bytes
        finally:
            self.n_waiting -= 1

    def give_back(self, n_bytes: int) -> None:
        self._n_free += n_bytes
        self._returned.set()


class LargeBodies:
    def __init__(self, max_text_bytes: int, max_whole_bytes: int) -> None:
        """`max_text_bytes` limits a body without its payloads, `max_whole_bytes` one that may have some."""
        self._max_text_bytes = max_text_bytes
        self._max_whole_bytes = max_whole_bytes
        self._memory = SharedMemory(max(SHARED_BYTES, max_text_bytes))
        self._latest: dict[asyncio.Timeout, float] = {}
        """The time by which each body, or its next part, must have arrived if others wait for memory."""

    @asynccontextmanager
    async def received(self, request: Request[Any, Any, Any], places: MediaPlaces | None) -> AsyncIterator[bytearray]:
        """The body without the payloads at these places; its memory is returned when the context ends. None: the route
        is not one of those that --max-body-mb limits.

        A body is not read from the connection before there is memory for it.
        Raises: WorkerBusy, BodyTooLarge.
        """
        n_taken = n_bytes = 0
        announced = request.content_length or 0
        is_sifted = places is not None and bool(places.paths) and not 0 < announced <= self._max_text_bytes
        payloads = Payloads(places or NO_PLACES, self._max_text_bytes)
        bound = asyncio.timeout(None)
        try:
            async with bound:
                self._check(announced, 0 if is_sifted else announced, places)
                if announced:
                    n_taken = await self._take_memory(request, min(announced, self._max_text_bytes), bound)
                async for piece in request.stream():
                    n_bytes += len(piece)
                    if is_sifted:
                        for _ in payloads.feed(piece):
                            await asyncio.sleep(0)
                    else:
                        payloads.kept += piece
                    self._check(n_bytes, len(payloads.kept), places, is_too_long=payloads.is_too_long)
                    if not n_taken and len(payloads.kept) >= LARGE_BODY_BYTES:
                        n_taken = await self._take_memory(request, self._max_text_bytes, bound)
                    elif n_taken and n_bytes % BODY_PART_BYTES < len(piece):
                        self._allow_time(bound)
                payloads.finish()
                self._check(n_bytes, len(payloads.kept), places, is_too_long=payloads.is_too_long)
            self._latest.pop(bound, None)
            yield payloads.kept
        except TimeoutError:
            text = "the body arrived too slowly while other requests waited; try again later"
            raise WorkerBusy(text, RETRY_AFTER_S) from None
        finally:
            self._latest.pop(bound, None)
            self._memory.give_back(n_taken)

    def _check(self, n_bytes: int, n_text_bytes: int, places: MediaPlaces | None, *, is_too_long: bool = False) -> None:
        if places is not None and n_bytes > self._max_whole_bytes:
            way_out = "leave out older pictures and files, or start the worker with a larger --max-body-mb"
            raise BodyTooLarge("the request body", self._max_whole_bytes, way_out)
        if is_too_long or n_text_bytes > self._max_text_bytes:
            way_out = "send a shorter prompt, or start the worker with a larger --max-prompt-chars"
            raise BodyTooLarge("the text of the request body", self._max_text_bytes, way_out)

    async def _take_memory(self, request: Request[Any, Any, Any], n_bytes: int, arrival: asyncio.Timeout) -> int:
        """Wait for memory. From then on the time of `arrival` is limited while others wait. Returns n_bytes."""
        for other, latest_s in self._latest.items():
            other.reschedule(latest_s)
        with connection_of(request.scope).body_held_back():
            try:
                async with asyncio.timeout(SHARED_TIMEOUT_S):
                    await self._memory.take(n_bytes)
            except TimeoutError:
                raise WorkerBusy("too many large requests at once; try again later", RETRY_AFTER_S) from None
        self._allow_time(arrival)
        return n_bytes

    def _allow_time(self, arrival: asyncio.Timeout) -> None:
        latest_s = self._latest[arrival] = asyncio.get_running_loop().time() + SHARED_TIMEOUT_S
        if self._memory.n_waiting:
            arrival.reschedule(latest_s)
