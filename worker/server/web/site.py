"""The web pages that may call this worker from a browser (docs/security.md#web-pages).

`Cors` has the headers by which a browser learns that a page's origin is allowed (--cors-origin; by default none is).
`Site` is the judge of a worker without a token, which refuses what a browser sends for other pages than its own: any
page can have a browser send requests, and any site can give its own name the address of this machine. So the host of a
request must be known to be this worker, and the page that asks must be the worker's own, or be allowed. Forwarded
headers count for nothing, because any client can write them.
"""

import asyncio
import re
import socket
from collections.abc import Iterable
from contextlib import suppress

from litestar.datastructures import Headers

from worker.config.option import shown
from worker.errors import Forbidden, WrongHost

ANY_HOST_PATHS = frozenset({"/livez", "/readyz", "/ping"})
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+(?:%[^\]\s]*)?\]|[^\[\]@:/\\?#,\s]*)(?::([0-9]{0,5}))?")
_ADDRESS = re.compile(r"\[.*\]|[0-9][0-9.]*")
"""No name looks like this: a host that ends in a number is an address (WHATWG URL, 3.5)."""
_LOCAL = (".localhost", ".local", ".internal", ".svc")
_PORTS = {"http": 80, "https": 443}

_MAX_AGE_S = 600
_EXPOSED = (
    "x-request-id, x-ignored-fields, x-ignored-tools, x-unenforced-tools, x-max-tokens-cut, x-correlation-id, "
    "retry-after"
)
"""The headers of an answer that a page may read."""


class Cors:
    """Litestar's own CORS is not used: it sends no Vary without an Origin, and answers every OPTIONS that has one."""

    def __init__(self, origins: Iterable[str]) -> None:
        """`origins`: as browsers send them, except for upper and lower case (config/option.py)."""
        self._origins = frozenset(origin.lower() for origin in origins)

    def headers(self, asked: Headers) -> dict[str, str]:
        """The headers of the answer to this request. Caches must distinguish origins, also those that are not
        allowed."""
        if not self._origins:
            return {}
        if (origin := self.allowed(asked)) is None:
            return {"vary": "origin"}
        return {"vary": "origin", "access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED}

    def preflight(self, method: str, asked: Headers) -> dict[str, str] | None:
        """The headers of the answer to a preflight request, which has no token; None if this request is not one."""
        if method != "OPTIONS" or "access-control-request-method" not in asked or self.allowed(asked) is None:
            return None
        return {
            "access-control-allow-methods": "GET, HEAD, POST",
            # The page may send any header: clients have their own, and the page is trusted.
            "access-control-allow-headers": asked.get("access-control-request-headers", ""),
            "access-control-max-age": str(_MAX_AGE_S),
        }

    def allowed(self, asked: Headers) -> str | None:
        """The request's origin, unchanged, if it is allowed; browsers compare bytes."""
        origin = asked.get("origin")
        return origin if origin is not None and origin.lower() in self._origins else None


class Site:
    def __init__(self, names: Iterable[str], cors: Cors) -> None:
        """`names`: hosts besides addresses and local names; `*.NAME` is every host below NAME, and `*` any."""
        self._names = {name.lower().removesuffix(".") for name in names}
        self._suffixes = (*_LOCAL, *(name.removeprefix("*") for name in self._names if name.startswith("*")))
        self._cors = cors

    async def add_full_name(self, host: str) -> None:
        """Add the name that this machine, called `host`, has in its domain. No request waits for the lookup."""
        with suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, flags=socket.AI_CANONNAME)
            self._names.add(found[0][3].lower().removesuffix("."))

    def refusal(self, method: str, path: str, asked: Headers) -> WrongHost | Forbidden | None:
        """The reason to refuse a request, if there is one. Its headers have the host of its target."""
        hosts = asked.getall("host", [])
        wrong = next((host for host in hosts if not self._is_own(host)), None)
        if wrong is not None and path not in ANY_HOST_PATHS:
            return WrongHost(shown(wrong))
        if self._cors.allowed(asked) is not None or not _is_of_another_page(method, asked, hosts):
            return None
        return Forbidden(" ".join(map(shown, asked.getall("origin", []))) or "not named")

    def _is_own(self, host: str) -> bool:
        name = (_place(host, 0) or ("?.", 0))[0]  # no host has a question mark, but `*` is any
        is_local = "." not in name or _ADDRESS.fullmatch(name) is not None
        return is_local or name in self._names or name.endswith(self._suffixes)


def _is_of_another_page(method: str, asked: Headers, hosts: list[str]) -> bool:
    """True if a page of another origin sent the request, and it is not a link that was followed. Browsers send
    Sec-Fetch-Site only to https and to this machine, and no page can change it (W3C Fetch Metadata, 2)."""
    sites = set(asked.getall("sec-fetch-site", []))
    if sites & {"cross-site", "same-site"}:
        way = asked.getall("sec-fetch-mode", []) + asked.getall("sec-fetch-dest", [])
        return method not in ("GET", "HEAD") or way != ["navigate", "document"]
    origins = asked.getall("origin", [])
    return not (sites & {"same-origin", "none"} or all(_is_origin_of(hosts, origin) for origin in origins))


def _is_origin_of(hosts: list[str], origin: str) -> bool:
    """True if pages of the origin come from these hosts, which are one. A host without a port has that of the origin's
    scheme, because TLS may end in front of the worker."""
    scheme, _, authority = origin.lower().partition("://")
    place = _place(authority, _PORTS.get(scheme, 0))
    return scheme in _PORTS and place is not None and {place} == {_place(host, _PORTS[scheme]) for host in hosts}


def _place(authority: str, port: int) -> tuple[str, int] | None:
    """The host as browsers write it, and its port or this one; None for other text."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return found and (found[1].removesuffix("."), int(found[2] or port))
