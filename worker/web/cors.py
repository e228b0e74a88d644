"""Which web pages may ask this worker from a browser: none, or those of one origin (--cors-origin).

Owns: the headers by which a browser knows. Without an origin nothing is said, and OPTIONS is a method like any other.
Runs on the front's event loop.
"""

from collections.abc import Iterable

from litestar.types import Send

Headers = list[tuple[bytes, bytes]]

_MAX_AGE_S = 600
_EXPOSED = b"x-request-id, x-ignored-fields, x-max-tokens-cut, x-correlation-id, retry-after"
"""What a page may read of an answer's headers."""


class Cors:
    def __init__(self, origin: str | None) -> None:
        self._origin = None if origin is None else origin.encode()

    def headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """What an answer to such a request says. Caches must tell origins apart, also where this one may not ask."""
        if self._origin is None:
            return []
        vary = (b"vary", b"origin")
        if _value(request, b"origin") != self._origin:
            return [vary]
        return [vary, (b"access-control-allow-origin", self._origin), (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, method: str, request: Iterable[tuple[bytes, bytes]]) -> Headers | None:
        """What answers a browser that asks before it asks, without the token; None where this is no such question."""
        asked = _value(request, b"access-control-request-headers") or b""
        is_asked = method == "OPTIONS" and _value(request, b"access-control-request-method") is not None
        if not is_asked or self._origin is None or _value(request, b"origin") != self._origin:
            return None
        return [
            (b"access-control-allow-methods", b"GET, HEAD, POST"),
            # Whichever the page wants to send: clients have their own, and the page is trusted.
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        ]


def _value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)


async def send_preflight(headers: Headers, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
