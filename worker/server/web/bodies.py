"""Request bodies: which are read, and the thread on which large ones are decoded."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from litestar import Request
from litestar.exceptions import HTTPException

from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.received import foreign_codings, is_json_content_type
from worker.config.settings import Settings
from worker.server.web.large_bodies import LARGE_BODY_BYTES, LargeBodies

AnyRequest = Request[Any, Any, Any]
Decoded = TypeVar("Decoded")

_MAX_SHOWN_CHARACTERS = 40


class EncodedBody(HTTPException):
    def __init__(self, codings: str) -> None:
        super().__init__(
            status_code=415,
            detail=f"Content-Encoding {codings[:_MAX_SHOWN_CHARACTERS]!r} is not supported: send the body unencoded",
            headers={"accept-encoding": "identity"},  # RFC 9110 15.5.16
        )


class Bodies:
    def __init__(self, settings: Settings) -> None:
        self._large = LargeBodies(settings.max_body_bytes, settings.max_whole_bytes)
        # One thread at a time: several threads would take the interpreter lock from the loop in turns, and malloc keeps
        # the memory that each of them has freed.
        self._decoding = asyncio.Lock()

    async def decoded(
        self, request: AnyRequest, read: Callable[[bytearray], Decoded], payloads: MediaPlaces | None = None
    ) -> Decoded:
        """The result of `read` for the body without its `payloads` (see LargeBodies.received).

        Raises: HTTPException 415, 413, WorkerBusy before and while the body is read; then what `read` raises.
        """
        if not is_json_content_type(request.headers.get("content-type")):
            raise HTTPException(status_code=415, detail="Expected request with `Content-Type: application/json`")
        if codings := foreign_codings(request.headers.getall("content-encoding", [])):
            raise EncodedBody(codings)
        if request.content_length is not None and request.content_length < LARGE_BODY_BYTES:
            return read(bytearray().join([piece async for piece in request.stream()]))
        async with self._large.received(request, payloads) as body:
            if len(body) < LARGE_BODY_BYTES:
                return read(body)
            async with self._decoding:
                return await asyncio.to_thread(read, body)
