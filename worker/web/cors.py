"""Web pages may call this worker from a browser if their origin is allowed (--cors-origin); by default none is.

Owns: the headers that browsers check. Without an allowed origin no header is sent, and OPTIONS is an ordinary method.
"""

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

_MAX_AGE_S = 600
_EXPOSED = (
    b"x-request-id, x-ignored-fields, x-ignored-tools, x-unenforced-tools, x-max-tokens-cut, x-correlation-id, "
    b"retry-after"
)
"""The headers of an answer that a page may read."""


class Cors:
    def __init__(self, origins: Iterable[str]) -> None:
        """`origins`: as browsers send them, except for upper and lower case (config/option.py)."""
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The headers of the answer to this request. Caches must distinguish origins, also those that are not
        allowed."""
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        if (origin := self.allowed(request)) is None:
            return [vary]
        return [vary, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, method: str, request: Iterable[tuple[bytes, bytes]]) -> Headers | None:
        """The headers of the answer to a preflight request, which has no token; None if this request is not one."""
        asked = _value(request, b"access-control-request-headers") or b""
        is_asked = method == "OPTIONS" and _value(request, b"access-control-request-method") is not None
        if not is_asked or self.allowed(request) is None:
            return None
        return [
            (b"access-control-allow-methods", b"GET, HEAD, POST"),
            # The page may send any header: clients have their own, and the page is trusted.
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        ]

    def allowed(self, request: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The request's origin, unchanged, if it is allowed; browsers compare bytes."""
        origin = _value(request, b"origin")
        return origin if origin is not None and origin.lower() in self._origins else None


def _value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
